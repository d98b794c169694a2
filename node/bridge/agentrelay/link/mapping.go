package link

import (
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The mapping between ARC types and intents (section 9). Nothing here has state.

// customPrefix begins the intents of types that the mesh has no intent for.
const customPrefix = "chat.agentrelay."

// ours is what two of us tell each other beside a payload (AR-58).
const (
	oursMember = "agentmesh"
	oursConv   = "agentmesh_conv"
	oursMsg    = "agentmesh_msg"
)

// heard is a direct message of a peer, as the link understood it.
type heard struct {
	id, from, kind, ref string
	payload             wire.Value // without our member
	conv                wire.ConversationID
	msg                 string // the peer's own id of it, where it is one of us
	ours                bool   // it carried our member
	ts                  int64
}

// takeOurs separates what one of us added from what was said.
func (h *heard) takeOurs(frame wire.Value) {
	conv, msg := frame.GetStr(oursConv), frame.GetStr(oursMsg)
	if h.payload.Kind() == wire.Object {
		if m, ok := h.payload.Get(oursMember); ok && m.Kind() == wire.Object {
			h.ours = true
			conv, msg = m.GetStr("conv"), m.GetStr("msg")
			h.payload = h.payload.Without(oursMember)
		}
	}
	if c := wire.ConversationID(conv); c.Valid() {
		h.conv, h.ours = c, true
	}
	if m := wire.MessageID(msg); m.Valid() {
		h.msg = msg
	}
}

// native is the message of the mesh that a frame means. ok is false where it means none. Members with a name that the
// mesh knows but of a type that it does not are no members: then the whole payload is shown as text.
func (h *heard) native() (intent wire.Intent, payload wire.Value, ok bool) {
	intent, payload, ok = h.meaning()
	if !ok {
		return "", wire.Value{}, false
	}
	if _, err := wire.CheckPayload(intent, payload); err == nil {
		return intent, payload, true
	}
	plain := *h
	plain.payload = wire.Text(string(h.payload.JSON()))
	return plain.meaning()
}

func (h *heard) meaning() (intent wire.Intent, payload wire.Value, ok bool) {
	switch h.kind {
	case "", "thought", "announcement":
		return wire.Deliver, deliverPayload(h.payload, "normal"), true
	case "alert":
		return wire.Deliver, deliverPayload(h.payload, "high"), true
	case "question":
		return wire.RequestInfo, askPayload(h.payload), true
	case "answer":
		return wire.RequestInfo, answerPayload(h.payload), true
	case "proposal":
		return wire.Negotiate, proposePayload(h.payload), true
	case "vote":
		return votePayload(h.payload)
	}
	name := lowerType(h.kind)
	if name == "" {
		return "", wire.Value{}, false
	}
	return wire.Intent(customPrefix + name), wire.Obj(wire.TextField("action", name), wire.Field("data", h.payload)), true
}

// lowerType writes a type with the letters that an intent may have; empty where nothing is left.
func lowerType(kind string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(kind) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			b.WriteRune(r)
		}
		if b.Len() == 64 {
			break
		}
	}
	return b.String()
}

// textOf returns a payload as text: what is none is shown as JSON.
func textOf(p wire.Value) string {
	if s, ok := p.Str(); ok {
		return s
	}
	return string(p.JSON())
}

func deliverPayload(p wire.Value, priority string) wire.Value {
	m := wire.Obj(wire.TextField("body", textOf(p)))
	if p.Kind() == wire.Object && p.GetStr("text") != "" {
		m = wire.Obj(wire.TextField("body", p.GetStr("text")))
		for _, extra := range p.Without("text", "body").Members() {
			m = m.With(extra.Key, extra.Value)
		}
	}
	if own := m.GetStr("priority"); own != "low" {
		m = m.With("priority", wire.Text(priority))
	}
	return wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", m))
}

func askPayload(p wire.Value) wire.Value {
	if p.Kind() == wire.Object && p.GetStr("question") != "" {
		return wire.Obj(append([]wire.Member{wire.TextField("action", "ask")}, p.Without("action").Members()...)...)
	}
	v := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", textOf(p)))
	if p.Kind() != wire.String {
		v = v.With("response_format", wire.Text("json"))
	}
	return v
}

func answerPayload(p wire.Value) wire.Value {
	if p.Kind() == wire.Object {
		if _, closes := p.Get("status"); !closes {
			return wire.Obj(append([]wire.Member{wire.TextField("action", "answer")}, p.Without("action").Members()...)...)
		}
	}
	return wire.Obj(wire.TextField("action", "answer"), wire.Field("answer", p))
}

func proposePayload(p wire.Value) wire.Value {
	if terms, ok := p.Get("terms"); ok && terms.Kind() == wire.Object && terms.GetStr("description") != "" {
		return wire.Obj(append([]wire.Member{wire.TextField("action", "propose")}, p.Without("action").Members()...)...)
	}
	terms := wire.Obj(wire.TextField("description", textOf(p)))
	if p.Kind() == wire.Object {
		terms = terms.With("proposal", p)
	}
	return wire.Obj(wire.TextField("action", "propose"), wire.Field("terms", terms))
}

func votePayload(p wire.Value) (wire.Intent, wire.Value, bool) {
	approve, _ := p.Get("approve")
	yes, ok := approve.Boolean()
	if !ok {
		return "", wire.Value{}, false
	}
	action := "reject"
	if yes {
		action = "accept"
	}
	out := wire.Obj(wire.TextField("action", action))
	for _, m := range p.Without("approve", "action", "weight").Members() {
		out = out.With(m.Key, m.Value)
	}
	return wire.Negotiate, out, true
}

// said is a message of ours as it leaves.
type said struct {
	kind    string
	payload wire.Value
	answers bool // its ref is that of what it answers
	silent  bool // ARC has no word for it, and nothing leaves
}

// foreign returns the frame that a message of ours means. answering is the type of what the peer last asked in the
// conversation. The error says what ARC cannot carry.
func foreign(intent wire.Intent, p wire.Value, answering string) (said, error) {
	p = withoutReplyID(p)
	switch p.GetStr("action") {
	case wire.ActionReceived:
		return said{silent: true}, nil
	case wire.ActionPending:
		return said{kind: "data", payload: p, answers: true}, nil
	case wire.ActionClose:
		return closing(p), nil
	}
	rest := p.Without("action")
	switch {
	case answering == "question" && p.GetStr("action") != "ask":
		return said{kind: "answer", payload: plainAnswer(intent, rest), answers: true}, nil
	case intent == wire.Deliver:
		return sayMessage(p), nil
	case intent == wire.RequestInfo && p.GetStr("action") == "ask":
		if rest.Len() == 1 {
			return said{kind: "question", payload: wire.Text(p.GetStr("question"))}, nil
		}
		return said{kind: "question", payload: rest}, nil
	case intent == wire.RequestInfo:
		return said{kind: "answer", payload: plainAnswer(intent, rest), answers: true}, nil
	case intent == wire.Negotiate:
		return sayTerms(p, rest)
	case strings.HasPrefix(string(intent), customPrefix):
		data, ok := p.Get("data")
		if !ok {
			data = rest
		}
		return said{kind: strings.TrimPrefix(string(intent), customPrefix), payload: data}, nil
	}
	return said{}, fmt.Errorf("AgentRelay has no word for %s; an agent of the mesh is reached through the tunnel", intent)
}

// withoutReplyID returns p without the id of the message that it answers, which the node adds to a reply: the ref of a
// frame says that here, and a payload that would be one text must stay one.
func withoutReplyID(p wire.Value) wire.Value {
	meta, ok := p.Get("metadata")
	if !ok {
		return p
	}
	if meta = meta.Without("in_reply_to"); meta.Len() == 0 {
		return p.Without("metadata")
	}
	return p.With("metadata", meta)
}

// sayMessage says mesh.message as a thought or an alert: plain text where the text is all there is.
func sayMessage(p wire.Value) said {
	m, _ := p.Get("message")
	out := said{kind: "thought"}
	switch m.GetStr("priority") {
	case "high":
		out.kind = "alert"
		m = m.Without("priority")
	case "normal":
		m = m.Without("priority")
	}
	if m.Len() == 1 {
		out.payload = wire.Text(m.GetStr("body"))
		return out
	}
	out.payload = wire.Obj(wire.TextField("text", m.GetStr("body")))
	for _, extra := range m.Without("body", "text").Members() {
		out.payload = out.payload.With(extra.Key, extra.Value)
	}
	return out
}

// plainAnswer is an answer without its wrapping where one text is all that it says.
func plainAnswer(intent wire.Intent, rest wire.Value) wire.Value {
	if rest.Len() == 1 {
		only := rest.Members()[0]
		switch {
		case only.Key == "answer", only.Key == "response", only.Key == "data":
			return only.Value
		case intent == wire.Deliver && only.Key == "message":
			if body, ok := only.Value.Get("body"); ok && only.Value.Len() == 1 {
				return body
			}
		}
	}
	return rest
}

func sayTerms(p, rest wire.Value) (said, error) {
	switch p.GetStr("action") {
	case "propose":
		return said{kind: "proposal", payload: rest}, nil
	case "counter":
		return said{kind: "proposal", payload: rest, answers: true}, nil
	case "accept", "reject", "withdraw":
		vote := wire.Obj(wire.Field("approve", wire.Bool(p.GetStr("action") == "accept")))
		for _, m := range rest.Without("approve", "weight").Members() {
			vote = vote.With(m.Key, m.Value)
		}
		return said{kind: "vote", payload: vote, answers: true}, nil
	}
	return said{}, fmt.Errorf("AgentRelay has no word for this step of %s", wire.Negotiate)
}

// closing is a close: ARC knows none, but a failure is worth a word.
func closing(p wire.Value) said {
	if p.GetStr("status") != "failed" {
		return said{silent: true}
	}
	reason := p.GetStr("reason")
	note := "the request failed"
	if reason == string(wire.OwnerRejected) {
		note = "the owner of this agent declined"
	}
	return said{kind: "answer", answers: true, payload: wire.Obj(wire.TextField("text", note), wire.Field(oursMember, wire.Obj(wire.TextField("code", reason))))}
}

// expects reports whether the peer refers to the message when it answers. It cannot know the id that the relay gave it, so
// the message carries our own id as its ref (AR-28). A ref of anything else would refer to nothing.
func (s said) expects() bool { return s.kind == "question" || s.kind == "proposal" }

// encode writes the frame for one peer, with what one of us wants to know of it (AR-58).
func (s said) encode(to, ref string, conv wire.ConversationID, msg wire.MessageID) []byte {
	payload := s.payload
	if payload.Kind() == wire.Object {
		own, _ := payload.Get(oursMember)
		if own.Kind() != wire.Object {
			own = wire.Obj()
		}
		payload = payload.With(oursMember, own.With("conv", wire.Text(string(conv))).With("msg", wire.Text(string(msg))))
	}
	v := frame.Request(to, s.kind, "", payload)
	if ref != "" {
		v = v.With("ref", wire.Text(ref))
	}
	return v.With(oursConv, wire.Text(string(conv))).With(oursMsg, wire.Text(string(msg))).JSON()
}
