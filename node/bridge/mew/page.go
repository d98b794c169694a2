package mew

import (
	"context"
	"embed"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// spacePages is the part of the owner's page about spaces (MEW-L7).
type spacePages struct {
	shell       *httpapi.Pages
	places      []*place
	list, space *httpapi.PageTemplate
}

// topicSpaces has the live regions of these pages fetched again.
const topicSpaces = "mew"

// MountPages adds the entry "MEW" with the spaces of g and those behind the links of b; either may be nil.
func MountPages(shell *httpapi.Pages, g *gateway.Gateway, b *link.Bridge) {
	p := &spacePages{
		shell: shell,
		list:  shell.Template(pageFiles, "page/spaces.html"), space: shell.Template(pageFiles, "page/space.html"),
	}
	if g != nil {
		for _, s := range g.Spaces() {
			p.places = append(p.places, newHostedPlace(s))
		}
	}
	if b != nil {
		for _, l := range b.Spaces() {
			p.places = append(p.places, newLinkPlace(l))
		}
	}
	shell.Add(httpapi.Nav{Path: "mew", Title: "MEW", Count: p.waiting})
	shell.Follow(p.follow)
	shell.Group().GET("/mew", p.showList)
	shell.Group().GET("/mew/:kind/:name", p.show)
	shell.Group().POST("/mew/:kind/:name", p.act)
}

// tail is the last envelopes that passed while a page was open. Nothing else keeps those of a link (MEW-L5).
type tail struct {
	mu   sync.Mutex
	last []passed
}

// passed is an envelope on the page: names and payload are the words of others.
type passed struct {
	ID, Kind, From string
	To             []string
	Payload        json.RawMessage
}

const (
	maxTail   = 40
	maxOnPage = 4 << 10 // bytes of a payload
)

// see keeps an envelope. Several pages may be open, and each brings it.
func (t *tail) see(raw []byte) {
	e, fault := envelope.Parse(raw)
	if fault != nil {
		return
	}
	p := passed{ID: e.ID, Kind: e.Kind, From: e.From, To: e.To, Payload: json.RawMessage("{}")}
	if e.Payload.Kind() == wire.Object {
		p.Payload = e.Payload.JSON()
	}
	if len(p.Payload) > maxOnPage {
		p.Payload = json.RawMessage(`"…"`)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.last, func(had passed) bool { return had.ID == p.ID && had.From == p.From && had.Kind == p.Kind }) {
		return
	}
	if len(t.last) >= maxTail {
		t.last = slices.Delete(t.last, 0, 1)
	}
	t.last = append(t.last, p)
}

// newest returns what is kept, the newest first.
func (t *tail) newest() []passed {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Clone(t.last)
	slices.Reverse(out)
	return out
}

// follow tells an open page that something passed in a space.
func (p *spacePages) follow(ctx context.Context, changed func(topic string)) {
	var all sync.WaitGroup
	for _, pl := range p.places {
		feed := pl.Watch()
		all.Go(func() {
			defer feed.Close()
			for {
				select {
				case <-ctx.Done():
					return
				case raw := <-feed.C():
					pl.tail.see(raw)
					changed(topicSpaces)
				}
			}
		})
	}
	all.Wait()
}

// waiting counts the proposals that wait.
func (p *spacePages) waiting(context.Context) int {
	n := 0
	for _, pl := range p.places {
		n += len(pl.View().Proposals)
	}
	return min(n, httpapi.MaxCount)
}

// placeRow is a space in the list.
type placeRow struct {
	*place
	Participants, Connected, Streams, Proposals int
}

func (p *spacePages) showList(c echo.Context) error {
	rows := make([]placeRow, len(p.places))
	for i, pl := range p.places {
		st := pl.View()
		rows[i] = placeRow{pl, len(st.Participants), st.Connected(), len(st.Streams), len(st.Proposals)}
	}
	return p.shell.Render(c, p.list, httpapi.View{Title: "MEW spaces", Topics: []string{topicSpaces}, Data: rows})
}

// spaceView is what the page of a space shows.
type spaceView struct {
	*place
	view.Space
	Link   *bridge.LinkStatus // of a space behind one
	Passed []passed
}

// pageSaid are what a form before did (see [httpapi.Done]).
var pageSaid = map[string]string{
	"sent": "Sent. Everybody in the space sees it.", "connect": "It connects now.",
	"unheard": "Sent, but whom it is for is not connected now, and a space keeps nothing for those who are away.",
}

func (p *spacePages) at(c echo.Context) (*place, error) {
	path := "mew/" + c.Param("kind") + "/" + url.PathEscape(c.Param("name"))
	for _, pl := range p.places {
		if pl.Path == path {
			return pl, nil
		}
	}
	return nil, view.NewFault(http.StatusNotFound, "there is no such space")
}

func (p *spacePages) show(c echo.Context) error {
	pl, err := p.at(c)
	if err != nil {
		return p.shell.Fault(c, err)
	}
	view := spaceView{place: pl, Space: pl.View(), Passed: pl.tail.newest()}
	if pl.link != nil {
		st := pl.link.Status()
		view.Link = &st
	}
	return p.shell.Render(c, p.space, httpapi.View{
		Title: "Space " + pl.Title, Topics: []string{topicSpaces, "status"}, Said: pageSaid[c.QueryParam("did")], Data: view,
	})
}

var errFormSaysNothing = view.NewFault(http.StatusBadRequest, "the form says nothing that can be done")

// act carries out a form: a proposal, or an envelope of the owner's.
func (p *spacePages) act(c echo.Context) error {
	pl, err := p.at(c)
	if err != nil {
		return p.shell.Fault(c, err)
	}
	form, err := httpapi.Form(c, 64<<10)
	if err != nil {
		return p.shell.Fault(c, err)
	}
	ctx := c.Request().Context()
	switch do := form.Get("do"); do {
	case "connect":
		if pl.link == nil {
			return p.shell.Fault(c, errFormSaysNothing)
		}
		pl.link.Connect()
		return httpapi.Done(c, pl.Path, "connect")
	case "approve", "reject":
		_, _, err = pl.Decide(ctx, form.Get("id"), do == "approve", form.Get("reason"))
	default:
		e, ok := formEnvelope(do, form)
		if !ok || do == "kick" && !pl.Hosted {
			return p.shell.Fault(c, errFormSaysNothing)
		}
		there := pl.audience(e.JSON())
		if _, _, err = pl.Say(ctx, e.JSON()); err == nil && do == "chat" && (there.listeners == 0 || len(there.absent) > 0) {
			return httpapi.Done(c, pl.Path, "unheard")
		}
	}
	if err != nil {
		return p.shell.Fault(c, err)
	}
	return httpapi.Done(c, pl.Path, "sent")
}

// formEnvelope makes the envelope that a button stands for.
func formEnvelope(do string, form url.Values) (wire.Value, bool) {
	kind, payload := "", wire.Obj()
	id := form.Get("id")
	switch do {
	case "chat":
		kind, payload = envelope.KindChat, wire.Obj(wire.TextField("text", form.Get("text")), wire.TextField("format", "plain"))
		if form.Get("text") == "" {
			return wire.Value{}, false
		}
	case "cancel":
		kind, payload = envelope.KindReasoningCancel, wire.Obj(wire.TextField("reason", "cancelled_by_owner"))
	case "close":
		kind, payload = envelope.KindStreamClose, wire.Obj(wire.TextField("stream_id", id), wire.TextField("reason", "cancelled"))
	case "kick":
		kind, payload = envelope.KindKick, wire.Obj(wire.TextField("participant_id", id))
	case "pause", "resume", "shutdown", "request-status":
		kind = "participant/" + do
	default:
		return wire.Value{}, false
	}
	e := wire.Obj(wire.TextField("kind", kind), wire.Field("payload", payload))
	switch {
	case do == "cancel":
		e = e.With("context", wire.Text(id))
	case do == "chat" && form.Get("to") != "":
		e = e.With("to", wire.Texts([]string{form.Get("to")}))
	case do != "chat" && do != "close" && do != "kick":
		e = e.With("to", wire.Texts([]string{id}))
	}
	return e, do == "chat" || id != ""
}
