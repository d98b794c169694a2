package mess

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// linkOf returns the link to which an address belongs, or nil.
func (b *Bridge) linkOf(address string) *link {
	a, err := bridge.ParseAddress(address)
	if err != nil || a.Kind != Kind {
		return nil
	}
	l, _ := b.findLink(a.Link)
	return l
}

// linkBehind returns the link whose exchange has the foreign thread ref, or nil if t is not our copy of that thread.
func (b *Bridge) linkBehind(ctx context.Context, t *thread.Thread, ref string) (*link, error) {
	for id, p := range t.Peers {
		l := b.linkOf(p.Address)
		if l == nil {
			continue
		}
		if found, err := l.Knows(ctx, id, p.Conv, ref); err != nil || found {
			return l, err
		}
	}
	return nil, nil
}

// Deliver implements [bridge.Transport] for all links.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	l := b.linkOf(d.Address)
	if l == nil {
		return bridge.Delivered{}, fmt.Errorf("mess: there is no link to %s", d.Address)
	}
	return bridge.Delivered{Queued: true}, l.Deliver(ctx, d)
}

// Links returns the state of all links.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// Test asks the exchange of a link for its list, even if the link is down. If that works, a link that is down starts
// again.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

// sendThrough sends a thread to the exchange behind a link.
func (b *Bridge) sendThrough(c echo.Context, _ owner.None) (SentTo, error) {
	l, err := b.findLink(c.Param("link"))
	if err != nil {
		return SentTo{}, err
	}
	ctx := c.Request().Context()
	if _, err := b.x.Thread(ctx, exchange.Owner("cli"), c.Param("ref")); err != nil {
		return SentTo{}, err
	}
	t, sent, err := l.Send(ctx, c.Param("ref"))
	switch {
	case err != nil:
		return SentTo{}, err
	case !sent && t.IsClaimable():
		return SentTo{}, thread.Conflict("the thread is only for another executor")
	case !sent:
		return SentTo{}, thread.Conflict("the thread is %s and cannot be sent now", t.Status)
	}
	return SentTo{Ref: t.Ref, To: l.Address().String()}, nil
}

// SentTo is a thread, and the address of the exchange to which it was sent.
type SentTo struct {
	Ref string `json:"ref"`
	To  string `json:"to"`
}

func (b *Bridge) findLink(name string) (*link, error) {
	l, ok := b.links.Find(name)
	if !ok {
		return nil, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no link " + wire.OneLine(name, 60) + " of kind mess; agentmesh links list names them"}
	}
	return l, nil
}

// requestThrough handles POST /mess/send/:link: it applies a block of the owner. The requests in it are only for the
// exchange of the link. The answer contains the acks, and reports for each request whether it was sent. A request
// that may not be claimed yet is sent as soon as it may.
func (b *Bridge) requestThrough(c echo.Context) error {
	l, err := b.findLink(c.Param("link"))
	if err != nil {
		return err
	}
	block, replay, err := b.server.ReadBlock(c, "send", l.cfg.Name)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	res, err := b.x.Do(ctx, exchange.Owner("cli"), block, exchange.Options{Only: string(l.Address().Pseudonym()), Replay: replay})
	if err != nil {
		return err
	}
	var list []wire.Value
	for _, ref := range requestRefs(res.Answers) {
		t, sent, err := l.Send(ctx, ref)
		if err != nil {
			return err
		}
		list = append(list, wire.Obj(
			wire.TextField("ref", ref), wire.TextField("status", string(t.Status)),
			wire.Field("sent", wire.Bool(sent)),
			wire.Field("later", wire.Bool(!sent && t.Only == string(l.Address().Pseudonym()) && t.Status.Open()))))
	}
	out := wire.Obj(wire.Field("MESS", res.Answers.Tree()), wire.Field("threads", wire.Arr(list...)))
	status := http.StatusOK
	if len(res.Created) > 0 {
		status = http.StatusCreated
	}
	return httpapi.Raw(c, status, append(out.JSON(), '\n'))
}

// requestRefs returns the refs in the acks of requests. An ack names one thread or several (MESS-35).
func requestRefs(acks thread.Block) []string {
	var refs []string
	for _, e := range acks {
		requests, hasSeveral := e.Body.Get("requests")
		if !hasSeveral {
			requests = wire.Arr(e.Body)
		}
		for r := range requests.Elems() {
			// the ref of a message contains a slash, the ref of a thread does not
			if ref := r.GetStr("ref"); e.Type == "ack" && ref != "" && !strings.Contains(ref, "/") {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}
