package web

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// plainActions lists, for each intent, the actions that need no other member. The page has a button for each.
var plainActions = map[wire.Intent][]string{
	wire.Schedule: {"accept", "decline", "cancel"}, wire.Negotiate: {"accept", "reject", "withdraw"},
}

const (
	formTime  = "2006-01-02T15:04" // the format of an input of type datetime-local
	formTimes = 3                  // the form has this many inputs for times
)

// parseFormTime parses a time of a form by the wall clock of zone. It refuses a time that a change of the clock skips,
// because time.Date returns another time for it.
func parseFormTime(text string, zone *time.Location) (time.Time, error) {
	wall, err := time.Parse(formTime, text)
	if err != nil {
		return wall, errors.New("one of the times is not a date with a time of day")
	}
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, zone)
	if at.Hour() != wall.Hour() || at.Minute() != wall.Minute() {
		return at, errors.New("one of the times does not exist, because the clock is set forward on that day")
	}
	return at, nil
}

// eventOf returns the event of a payload for the meeting in a form, whose times have no zone and mean the local time of
// this machine. Empty times are ignored.
func eventOf(m owner.Meeting) (wire.Value, error) {
	var times []string
	for _, s := range m.Times {
		if s == "" {
			continue
		}
		at, err := parseFormTime(s, zone.Owner())
		if err != nil {
			return wire.Value{}, err
		}
		times = append(times, at.Format(time.RFC3339))
	}
	if len(times) == 0 {
		return wire.Value{}, errors.New("name at least one time")
	}
	event := wire.Obj(wire.Field("proposed_times", wire.Texts(times)))
	for _, text := range []struct{ key, value string }{{"title", m.Title}, {"duration", m.Duration}, {"location", m.Place}} {
		if value := strings.TrimSpace(text.value); value != "" {
			event = event.With(text.key, wire.Text(value))
		}
	}
	return event, nil
}

// payload returns the intent and the payload of the form: a counterproposal with another time, an exact payload, an
// action, or a text.
func (f replyForm) payload(intent wire.Intent) (wire.Intent, wire.Value, error) {
	switch {
	case f.Action == "counter" && intent == wire.Schedule:
		event, err := eventOf(owner.Meeting{Place: f.Place, Times: []string{f.Time}})
		if err != nil {
			return intent, event, err
		}
		return intent, wire.Obj(wire.TextField("action", "counter"), wire.Field("event", event)), nil
	case strings.TrimSpace(f.Payload) != "":
		v, err := wire.ParseObject([]byte(f.Payload))
		if err != nil {
			return intent, v, errors.New("the exact payload is not a JSON object")
		}
		return "", v, nil // of the message that it answers
	case f.Action != "":
		if !slices.Contains(plainActions[intent], f.Action) {
			return intent, wire.Value{}, errors.New("this conversation has no such answer")
		}
		members := []wire.Member{wire.TextField("action", f.Action)}
		if f.Action == "accept" && f.Selected != "" {
			members = append(members, wire.TextField("selected_time", f.Selected))
		}
		if reason := strings.TrimSpace(f.Text); reason != "" {
			members = append(members, wire.TextField("reason", reason))
		}
		return intent, wire.Obj(members...), nil
	case strings.TrimSpace(f.Text) == "":
		return intent, wire.Value{}, errors.New("the message is empty")
	}
	return wire.Deliver, wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", f.Text)))), nil
}

type composeView struct {
	To, Kind, Text, Intent, Payload string
	Seal                            owner.SealChoice
	Meeting                         owner.Meeting
	Zone                            string           // the zone of a meeting's times
	Known                           []choice         // recipients: what to type, and who that is
	Shown                           *owner.ShownName // of To, if that is an id
	Intents                         []wire.Intent
}

// maxPeerOptions bounds the suggested recipients.
const maxPeerOptions = 200

func (p *pages) showCompose(c echo.Context) error {
	return p.renderCompose(c, http.StatusOK, "", composeView{To: c.QueryParam("to"), Kind: "message"})
}

func (p *pages) renderCompose(c echo.Context, status int, errorText string, view composeView) error {
	peers, err := p.n.ListPeers(c.Request().Context(), "")
	if err != nil {
		return err
	}
	view.Known, view.Intents = recipients(peers), wire.StandardIntents()
	if id := wire.AgentID(view.To); id.Valid() {
		shown := p.shownAgent(c, id)
		view.Shown = &shown
	}
	view.Zone = zone.In(time.Now()).Format("MST, -07:00")
	view.Meeting.Times = append(view.Meeting.Times, "", "", "")[:formTimes]
	return p.shell.Render(c, p.compose, httpapi.View{Title: "Write", Status: status, Error: errorText, Data: view})
}

// recipients returns what the owner may type for each peer that is not blocked: its alias, or its name if no other peer has
// that name, or its id.
func recipients(peers []owner.Peer) (list []choice) {
	called := make(map[string]int)
	for _, peer := range peers {
		called[strings.ToLower(peer.Shown().Text)]++
	}
	for _, peer := range peers[:min(len(peers), maxPeerOptions)] {
		shown := peer.Shown()
		known := choice{shown.Text, shown.String() + " " + owner.ShortID(peer.ID)}
		if called[strings.ToLower(shown.Text)] > 1 || !shown.Trusted && !shown.Claimed {
			known.Value = peer.ID
		}
		if peer.Standing != acl.Blocked {
			list = append(list, known)
		}
	}
	return list
}

// shownAgent returns how to show an agent. It asks the directories for the name of an agent that the node does not know.
func (p *pages) shownAgent(c echo.Context, id wire.AgentID) owner.ShownName {
	names := p.namesOf(c.Request().Context(), string(id))
	if names == (owner.PeerNames{}) && p.setup != nil && httpapi.KeepOpen(c, discoverFor) == nil {
		for _, found := range p.setup.LookUp(c.Request().Context(), id) {
			for _, card := range found.Listing.Agents {
				names.PeerName = cmp.Or(names.PeerName, card.GetStr("name"))
			}
		}
	}
	return owner.ShowName(names, "", string(id))
}

func (p *pages) send(c echo.Context, form url.Values) error {
	view := composeView{
		To: strings.TrimSpace(form.Get("to")), Kind: form.Get("kind"), Text: form.Get("text"), Intent: strings.TrimSpace(form.Get("intent")),
		Payload: form.Get("payload"),
		Meeting: owner.Meeting{
			Title: form.Get("title"), Duration: form.Get("duration"), Place: form.Get("place"), Times: form["time"][:min(len(form["time"]), formTimes)],
		},
	}
	if view.Seal = owner.SealChoice(form.Get("seal")); !view.Seal.IsValid() {
		return p.renderCompose(c, http.StatusBadRequest, "unknown choice of who can read the message", view)
	}
	var sent owner.Sent
	intent, payload, err := view.message()
	if err == nil {
		sent, err = p.n.Send(c.Request().Context(), owner.NewMessage{To: view.To, Seal: view.Seal, Intent: intent, Payload: payload}, 0)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.renderCompose(c, refusal.Status, refusal.Message, view)
	}
	if err != nil {
		return err
	}
	return doneSent(c, sent, "sent")
}

// doneSent is [httpapi.Done] for a form that sent a message in a new conversation.
func doneSent(c echo.Context, sent owner.Sent, did string) error {
	if sent.State == owner.SendHeld {
		return httpapi.Done(c, "approvals", "held")
	}
	return httpapi.Done(c, convPath(string(sent.To), string(sent.Conversation)), did)
}

// message returns the intent and the payload of the form.
func (v composeView) message() (wire.Intent, wire.Value, error) {
	refuse := func(text string) error { return owner.Fault(http.StatusBadRequest, text, "") }
	if v.Kind == "exact" {
		payload, err := wire.ParseObject([]byte(v.Payload))
		if err != nil {
			return "", payload, refuse("the exact payload is not a JSON object")
		}
		intent := wire.Intent(v.Intent)
		if !intent.IsStandard() && !intent.IsCustom() {
			return "", payload, refuse("intent is neither a mesh.* nor a reverse-domain name")
		}
		return intent, payload, nil
	}
	if v.Kind == "meeting" {
		event, err := eventOf(v.Meeting)
		if err != nil {
			return "", event, refuse(err.Error())
		}
		return wire.Schedule, wire.Obj(wire.TextField("action", "propose"), wire.Field("event", event)), nil
	}
	if strings.TrimSpace(v.Text) == "" {
		return "", wire.Value{}, refuse("the message is empty")
	}
	if v.Kind == "question" {
		return wire.RequestInfo, wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", v.Text)), nil
	}
	return replyForm{Text: v.Text}.payload(wire.Deliver)
}
