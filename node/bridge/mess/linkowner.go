package mess

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Links says how the links stand.
func (b *Bridge) Links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, l := range b.links {
		l.mu.Lock()
		s := l.status
		s.Peers = len(l.peers)
		l.mu.Unlock()
		out = append(out, s)
	}
	return out
}

// Test connects a link as if for the first time. One that is down goes on if it works.
func (b *Bridge) Test(ctx context.Context, name string) error {
	for _, l := range b.links {
		if l.cfg.Name != name {
			continue
		}
		if err := l.remote.probe(ctx); err != nil {
			return err
		}
		select {
		case l.retry <- struct{}{}:
		default:
		}
		return nil
	}
	return fmt.Errorf("there is no link %s", name)
}

// sendThrough hands a thread to the exchange behind a link.
func (b *Bridge) sendThrough(c echo.Context) error {
	l, err := b.linkNamed(c.Param("link"))
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if _, err := b.x.Thread(ctx, Owner("cli"), c.Param("ref")); err != nil {
		return err
	}
	t, sent, err := l.send(ctx, c.Param("ref"))
	switch {
	case err != nil:
		return err
	case !sent:
		return thread.Conflict("the thread is %s and cannot be sent now", t.Status)
	}
	return httpapi.JSON(c, http.StatusOK, sentTo{Ref: t.Ref, To: l.address().String()})
}

type sentTo struct {
	Ref string `json:"ref"`
	To  string `json:"to"`
}

func (b *Bridge) linkNamed(name string) (*link, error) {
	i := slices.IndexFunc(b.links, func(l *link) bool { return l.cfg.Name == name })
	if i < 0 {
		return nil, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no link " + wire.OneLine(name, 60) + " of kind mess; agentmesh links list names them"}
	}
	return b.links[i], nil
}

// requestThrough takes a block of the owner's whose requests are for the exchange behind a link and nobody else. The
// answer has the acks, and of each request whether it was sent: what waits goes there when it may be claimed.
func (b *Bridge) requestThrough(c echo.Context) error {
	l, err := b.linkNamed(c.Param("link"))
	if err != nil {
		return err
	}
	call := &call{door: b.door, c: c, who: Owner("cli"), path: []string{"send", l.cfg.Name}}
	data, err := call.body(thread.MaxDocument)
	if err != nil {
		return err
	}
	v, err := thread.ParseJSON(data)
	if err != nil {
		return err
	}
	once, err := call.once(v)
	if err != nil {
		return err
	}
	block, err := thread.FromTree(v)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	res, err := b.x.Do(ctx, call.who, block, Options{Only: string(l.address().Pseudonym()), Records: l.unsent(), Once: once})
	if err != nil {
		return err
	}
	var list []wire.Value
	for _, ref := range requestRefs(res.Answers) {
		t, sent, err := l.send(ctx, ref)
		if err != nil {
			return err
		}
		list = append(list, wire.Obj(
			wire.TextField("ref", ref), wire.TextField("status", string(t.Status)),
			wire.Field("sent", wire.Bool(sent)),
			wire.Field("later", wire.Bool(!sent && t.Only == string(l.address().Pseudonym()) && t.Status.Open()))))
	}
	out := wire.Obj(wire.Field("MESS", res.Answers.Tree()), wire.Field("threads", wire.Arr(list...)))
	status := http.StatusOK
	if len(res.Created) > 0 {
		status = http.StatusCreated
	}
	return httpapi.Raw(c, status, append(out.JSON(), '\n'))
}

// requestRefs are the threads that acks of requests name: of one, or of several (MESS-35).
func requestRefs(acks thread.Block) []string {
	var refs []string
	for _, e := range acks {
		requests, several := e.Body.Get("requests")
		if !several {
			requests = wire.Arr(e.Body)
		}
		for r := range requests.Elems() {
			if ref := r.GetStr("ref"); e.Type == "ack" && ref != "" && !strings.Contains(ref, "/") {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

func (l *link) address() bridge.Address {
	return bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: thread.ExchangeID}
}

// send sends a thread to the exchange behind the link, if it may be claimed now. sent says whether it went there, now or
// before.
func (l *link) send(ctx context.Context, ref string) (t *thread.Thread, sent bool, err error) {
	to := string(l.address().Pseudonym())
	if err := l.b.offerTo(ctx, ref, to, l.address().String(), nil); err != nil {
		return nil, false, err
	}
	if t, err = l.b.x.read(ctx, ref, time.Now()); err != nil {
		return nil, false, err
	}
	return t, t.Peers[to].Conv != "", nil
}

// unsent is the mark that there are requests for this exchange which have not been sent. It is set in the unit that makes
// them, so that a crash loses none.
func (l *link) unsent() []store.Change {
	return []store.Change{{Record: store.Record{NS: nsMeta, Key: l.unsentKey()}, IfRev: store.Any}}
}

func (l *link) unsentKey() string { return "link/" + l.cfg.Name + "/unsent" }

// sendWaiting sends what is for this exchange alone and may be claimed by now.
func (l *link) sendWaiting(ctx context.Context) error {
	rec, err := l.b.x.records.Get(ctx, nsMeta, l.unsentKey(), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = l.b.x.load()
	}
	if err != nil {
		return err
	}
	to := string(l.address().Pseudonym())
	const all = 1 << 20
	refs, _ := l.b.x.index.page("from:"+thread.OwnerID, position{}, all, func(e *entry) bool { return e.only == to && e.status.Open() && e.holder == "" })
	waits := false
	for _, ref := range refs {
		_, sent, err := l.send(ctx, ref)
		if err != nil {
			return err
		}
		waits = waits || !sent
	}
	if waits {
		return nil
	}
	err = l.b.x.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsMeta, Key: l.unsentKey()}, IfRev: rec.Rev, Delete: true}}, time.Now())
	if isConflict(err) {
		return nil // there is more by now
	}
	return err
}
