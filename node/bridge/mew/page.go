package mew

import (
	"context"
	"embed"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
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

// spacePages serves the spaces on the owner's page (MEW-L7).
type spacePages struct {
	shell  *httpapi.Pages // the owner's page, which renders the templates
	hosted []*ownerSpace
	links  *link.Bridge // nil: no spaces of others

	mu          sync.Mutex
	joined      map[*link.Link]*ownerSpace
	list, space *httpapi.PageTemplate
}

// topicSpaces is the name under which a change in a space is reported to browsers. Open pages then load the changed
// parts again.
const topicSpaces = "mew"

// pageFuncs are the methods that the templates call.
var pageFuncs = map[string]any{"nameOf": spaceView.NameOf}

// MountPages adds the navigation entry "MEW" with the spaces of g and those behind the links of b. Either may be nil.
func MountPages(shell *httpapi.Pages, g *gateway.Gateway, b *link.Bridge) {
	p := &spacePages{
		shell: shell,
		list:  shell.Template(pageFiles, pageFuncs, "page/spaces.html"), space: shell.Template(pageFiles, pageFuncs, "page/space.html"),
	}
	if g != nil {
		for _, s := range g.Spaces() {
			p.hosted = append(p.hosted, newHostedSpace(s))
		}
	}
	p.links = b
	shell.Add(httpapi.Nav{Path: "mew", Title: "MEW", Count: p.countWaiting, Shown: func() bool { return len(p.all()) > 0 }})
	shell.Follow(p.follow)
	shell.Group().GET("/mew", p.showList)
	shell.Group().GET("/mew/:kind/:name", p.showSpace)
	shell.Group().POST("/mew/:kind/:name", p.act)
}

// tail holds the last envelopes of a space that arrived while a page was open. No other part of the node stores the
// envelopes of a space behind a link (MEW-L5).
type tail struct {
	mu   sync.Mutex
	last []shownEnvelope
}

// shownEnvelope is an envelope on the page. Its names and payload are text of other participants.
type shownEnvelope struct {
	ID, Kind, From string
	To             []string
	Payload        json.RawMessage
}

const (
	maxTail   = 40
	maxOnPage = 4 << 10 // bytes of a payload on the page
)

// add appends an envelope, unless another open page has added it already.
func (t *tail) add(raw []byte) {
	e, fault := envelope.Parse(raw)
	if fault != nil {
		return
	}
	p := shownEnvelope{ID: e.ID, Kind: e.Kind, From: e.From, To: e.To, Payload: json.RawMessage("{}")}
	if e.Payload.Kind() == wire.Object {
		p.Payload = e.Payload.JSON()
	}
	if len(p.Payload) > maxOnPage {
		p.Payload = json.RawMessage(`"…"`)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.last, func(old shownEnvelope) bool { return old.ID == p.ID && old.From == p.From && old.Kind == p.Kind }) {
		return
	}
	if len(t.last) >= maxTail {
		t.last = slices.Delete(t.last, 0, 1)
	}
	t.last = append(t.last, p)
}

// newest returns the envelopes, the newest first.
func (t *tail) newest() []shownEnvelope {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Clone(t.last)
	slices.Reverse(out)
	return out
}

// all returns the hosted spaces, and those behind the links that there are now.
func (p *spacePages) all() []*ownerSpace {
	out := slices.Clone(p.hosted)
	if p.links == nil {
		return out
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.joined
	p.joined = make(map[*link.Link]*ownerSpace)
	for _, l := range p.links.RemoteLinks() {
		if p.joined[l] = before[l]; p.joined[l] == nil {
			p.joined[l] = newJoinedSpace(l)
		}
		out = append(out, p.joined[l])
	}
	return out
}

// follow notifies open pages of new envelopes, until ctx ends.
func (p *spacePages) follow(ctx context.Context, changed func(topic string)) {
	var running sync.WaitGroup
	defer running.Wait()
	stops := make(map[*ownerSpace]context.CancelFunc)
	for {
		var next <-chan struct{} // never, without links
		if p.links != nil {
			next = p.links.NextChange()
		}
		all := p.all()
		for s, stop := range stops {
			if !slices.Contains(all, s) {
				stop()
				delete(stops, s)
			}
		}
		for _, s := range all {
			if stops[s] == nil {
				var spaceCtx context.Context
				spaceCtx, stops[s] = context.WithCancel(ctx)
				feed := s.Watch()
				running.Go(func() { s.follow(spaceCtx, feed, changed) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
			changed(topicSpaces)
		}
	}
}

// follow keeps the newest envelopes of the feed until ctx ends.
func (s *ownerSpace) follow(ctx context.Context, feed *view.Feed, changed func(topic string)) {
	defer feed.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case raw := <-feed.C():
			s.tail.add(raw)
			changed(topicSpaces)
		}
	}
}

func (p *spacePages) countWaiting(context.Context) int {
	n := 0
	for _, s := range p.all() {
		n += len(s.View().Proposals)
	}
	return min(n, httpapi.MaxCount)
}

// spaceRow is a space in the list.
type spaceRow struct {
	*ownerSpace
	Participants, Connected, Streams, Proposals int
}

func (p *spacePages) showList(c echo.Context) error {
	all := p.all()
	rows := make([]spaceRow, len(all))
	for i, s := range all {
		st := s.View()
		rows[i] = spaceRow{s, len(st.Participants), st.CountPresent(), len(st.Streams), len(st.Proposals)}
	}
	return p.shell.Render(c, p.list, httpapi.View{Title: "MEW spaces", Topics: []string{topicSpaces}, Data: rows})
}

// spaceView is the data of the page of a space.
type spaceView struct {
	*ownerSpace
	view.Space
	Self    string             // our id in the space; see space.Name
	Link    *bridge.LinkStatus // nil for a hosted space
	Latest  []shownEnvelope
	Invited *invitee // the participant that the owner has just invited; otherwise nil
}

// invitee is a new participant with its token, which the page shows only once.
type invitee struct{ Name, Token, URL string }

// doneTexts holds what the page says after a form was handled (see [httpapi.Done]).
var doneTexts = map[string]string{
	"sent": "Sent. Everybody in the space sees it.", "connect": "The link connects now.",
	"unheard": "Sent, but a recipient is not connected now. A space stores nothing for participants that are away.",
}

func (p *spacePages) findSpace(c echo.Context) (*ownerSpace, error) {
	path := "mew/" + c.Param("kind") + "/" + url.PathEscape(c.Param("name"))
	for _, s := range p.all() {
		if s.Path == path {
			return s, nil
		}
	}
	return nil, view.NewFault(http.StatusNotFound, "there is no such space")
}

func (p *spacePages) showSpace(c echo.Context) error {
	s, err := p.findSpace(c)
	if err != nil {
		return err
	}
	return p.renderSpace(c, s, nil)
}

// renderSpace shows a space and, if it is not nil, the participant that was just invited.
func (p *spacePages) renderSpace(c echo.Context, s *ownerSpace, invited *invitee) error {
	data := spaceView{ownerSpace: s, Space: s.View(), Self: s.Name(), Latest: s.tail.newest(), Invited: invited}
	if s.link != nil {
		st := s.link.Status()
		data.Link = &st
	}
	return p.shell.Render(c, p.space, httpapi.View{
		Title: "Space " + s.Title, Topics: []string{topicSpaces, "status"}, Done: doneTexts[c.QueryParam("did")], Data: data,
	})
}

var errBadForm = view.NewFault(http.StatusBadRequest, "the form is incomplete, or its action is not possible in this space")

// act handles the forms on the page of a space.
func (p *spacePages) act(c echo.Context) error {
	s, err := p.findSpace(c)
	if err != nil {
		return err
	}
	form, err := httpapi.Form(c, 64<<10)
	if err != nil {
		return err
	}
	ctx, did := c.Request().Context(), "sent"
	switch do := form.Get("do"); do {
	case "connect":
		if s.link == nil {
			return errBadForm
		}
		s.link.Connect()
		did = "connect"
	case "invite":
		return p.invite(c, s, form)
	case "approve", "reject":
		_, err = s.Decide(ctx, form.Get("id"), do == "approve", form.Get("reason"))
	default:
		e, ok := formEnvelope(do, form)
		if !ok || do == "kick" && !s.Hosted {
			return errBadForm
		}
		var sent Sent
		if sent, err = s.send(ctx, e.JSON()); do == "chat" && (sent.Listeners == 0 || len(sent.Absent) > 0) {
			did = "unheard"
		}
	}
	if err != nil {
		return err
	}
	return httpapi.Done(c, s.Path, did)
}

// invite adds a participant to a hosted space and shows its token.
func (p *spacePages) invite(c echo.Context, s *ownerSpace, form url.Values) error {
	name := strings.TrimSpace(form.Get("participant"))
	if !s.Hosted || name == "" {
		return errBadForm
	}
	payload := wire.Obj(wire.TextField("participant_id", name))
	if caps := strings.Fields(form.Get("capabilities")); len(caps) > 0 {
		payload = payload.With("initial_capabilities", wire.Texts(caps))
	}
	e := wire.Obj(wire.TextField("kind", envelope.KindInvite), wire.Field("payload", payload))
	sent, err := s.send(c.Request().Context(), e.JSON())
	if err != nil {
		return err
	}
	return p.renderSpace(c, s, &invitee{name, sent.Token, sent.URL})
}

// formEnvelope returns the envelope for the button of a form. It reports false if the form is incomplete or
// the button is unknown.
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
	case "grant", "revoke":
		kind = map[string]string{"grant": envelope.KindGrant, "revoke": envelope.KindRevoke}[do]
		payload = wire.Obj(wire.TextField("recipient", id), wire.Field("capabilities", wire.Texts(strings.Fields(form.Get("capabilities")))))
		if len(strings.Fields(form.Get("capabilities"))) == 0 {
			return wire.Value{}, false
		}
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
	case kind == "participant/"+do:
		e = e.With("to", wire.Texts([]string{id}))
	}
	return e, do == "chat" || id != ""
}
