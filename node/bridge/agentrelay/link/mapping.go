package link

import (
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// This file maps ARC types to intents and back. Nothing here has state.

// customPrefix begins the intent of an ARC type for which the mesh has no intent of its own.
const customPrefix = "chat.agentrelay."

// AgentMesh nodes add these members: the first inside a payload that is an object, the others beside it (AR-58).
const (
	meshMember     = "agentmesh"
	meshConvMember = "agentmesh_conv"
	meshMsgMember  = "agentmesh_msg"
)

// incoming is a frame from the relay, as the link understood it.
type incoming struct {
	id, from, kind, ref string
	payload             wire.Value // without the member "agentmesh"
	conv                wire.ConversationID
	msg                 string // the sender's own message id, if the sender is an AgentMesh node
	isMesh              bool   // the sender is an AgentMesh node
	ts                  int64
}

// extractMeshMembers reads the members that an AgentMesh node adds to a frame, stores them in conv, msg and isMesh, and
// removes the one inside the payload.
func (h *incoming) extractMeshMembers(tree wire.Value) {
	conv, msg := tree.GetStr(meshConvMember), tree.GetStr(meshMsgMember)
	if h.payload.Kind() == wire.Object {
		if m, ok := h.payload.Get(meshMember); ok && m.Kind() == wire.Object {
			h.isMesh = true
			conv, msg = m.GetStr("conv"), m.GetStr("msg")
			h.payload = h.payload.Without(meshMember)
		}
	}
	if c := wire.ConversationID(conv); c.Valid() {
		h.conv, h.isMesh = c, true
	}
	if m := wire.MessageID(msg); m.Valid() {
		h.msg = msg
	}
}

// toMesh maps the message to an intent and a payload; ok is false if the mesh has nothing like it. A payload that is
// not valid for the intent, for example because a member has the wrong type, or that no message can hold, for example
// because of a large integer, becomes a single text.
func (h *incoming) toMesh() (intent wire.Intent, payload wire.Value, ok bool) {
	intent, payload, ok = h.mapToIntent()
	if !ok {
		return "", wire.Value{}, false
	}
	if _, err := wire.ParseObject(payload.JSON()); err == nil {
		if _, err := wire.CheckPayload(intent, payload); err == nil {
			return intent, payload, true
		}
	}
	plain := *h
	plain.payload = wire.Text(string(h.payload.JSON()))
	if approve, ok := h.payload.Get("approve"); ok && h.kind == "vote" { // a text would not be a vote
		plain.payload = wire.Obj(wire.Field("approve", approve))
	}
	return plain.mapToIntent()
}

func (h *incoming) mapToIntent() (intent wire.Intent, payload wire.Value, ok bool) {
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

// lowerType returns the letters, digits, "_" and "-" of a type in lower case, at most 64 of them.
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

func textOf(p wire.Value) string {
	if s, ok := p.Str(); ok {
		return s
	}
	return string(p.JSON())
}

// prepend returns an object with first and then the members of rest, which must not have the key of first.
func prepend(first wire.Member, rest wire.Value) wire.Value {
	return wire.Obj(append([]wire.Member{first}, rest.Members()...)...)
}

// withAction returns an object with an action and the other members of p.
func withAction(action string, p wire.Value) wire.Value {
	return prepend(wire.TextField("action", action), p.Without("action"))
}

func deliverPayload(p wire.Value, priority string) wire.Value {
	m := wire.Obj(wire.TextField("body", textOf(p)))
	if p.Kind() == wire.Object && p.GetStr("text") != "" {
		m = prepend(wire.TextField("body", p.GetStr("text")), p.Without("text", "body"))
	}
	if m.GetStr("priority") != "low" { // no type stands for low, so AgentMesh nodes write it into the payload
		m = m.With("priority", wire.Text(priority))
	}
	return wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", m))
}

func askPayload(p wire.Value) wire.Value {
	if p.Kind() == wire.Object && p.GetStr("question") != "" {
		return withAction("ask", p)
	}
	v := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", textOf(p)))
	if p.Kind() != wire.String {
		v = v.With("response_format", wire.Text("json"))
	}
	return v
}

func answerPayload(p wire.Value) wire.Value {
	if p.Kind() == wire.Object {
		if _, hasStatus := p.Get("status"); !hasStatus { // with a status, it would look like a close
			return withAction("answer", p)
		}
	}
	return wire.Obj(wire.TextField("action", "answer"), wire.Field("answer", p))
}

func proposePayload(p wire.Value) wire.Value {
	if terms, ok := p.Get("terms"); ok && terms.Kind() == wire.Object && terms.GetStr("description") != "" {
		return withAction("propose", p)
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
	return wire.Negotiate, withAction(action, p.Without("approve", "weight")), true
}

// outgoing is a message of the node in the form in which it leaves.
type outgoing struct {
	kind    string
	payload wire.Value
	isReply bool // its ref names the message that it answers
	silent  bool // it is a receipt, or a close without failure: ARC has neither, so nothing leaves
}

// fromMesh maps a message of the node to ARC. answering is the type of the peer's last message in the conversation, or
// "" if the node has answered it. The error says what ARC cannot express.
func fromMesh(intent wire.Intent, p wire.Value, answering string) (outgoing, error) {
	p = withoutReplyID(p)
	switch p.GetStr("action") {
	case wire.ActionReceived:
		return outgoing{silent: true}, nil
	case wire.ActionPending:
		return outgoing{kind: "data", payload: p, isReply: true}, nil
	case wire.ActionClose:
		return mapClose(p), nil
	}
	rest := p.Without("action")
	switch {
	case answering == "question" && p.GetStr("action") != "ask":
		return outgoing{kind: "answer", payload: unwrapAnswer(intent, rest), isReply: true}, nil
	case intent == wire.Deliver:
		return mapMessage(p), nil
	case intent == wire.RequestInfo && p.GetStr("action") == "ask":
		if rest.Len() == 1 {
			return outgoing{kind: "question", payload: wire.Text(p.GetStr("question"))}, nil
		}
		return outgoing{kind: "question", payload: rest}, nil
	case intent == wire.RequestInfo:
		return outgoing{kind: "answer", payload: unwrapAnswer(intent, rest), isReply: true}, nil
	case intent == wire.Negotiate:
		return mapTerms(p, rest)
	case strings.HasPrefix(string(intent), customPrefix):
		data, ok := p.Get("data")
		if !ok {
			data = rest
		}
		return outgoing{kind: strings.TrimPrefix(string(intent), customPrefix), payload: data}, nil
	}
	return outgoing{}, fmt.Errorf("AgentRelay cannot express %s; if the peer is an AgentMesh agent, name its agent id, and messages go through the tunnel: agentmesh agentrelay peer LINK NAME --agent am_…", intent)
}

// withoutReplyID returns p without the id of the answered message, which the node adds to a reply. In ARC the ref of
// the frame has that function, and without the id a message that is only a text can be sent as plain text.
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

// mapMessage maps a message of the intent [wire.Deliver] to a thought or an alert. The payload is plain text if the message has only a body.
func mapMessage(p wire.Value) outgoing {
	m, _ := p.Get("message")
	out := outgoing{kind: "thought"}
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
	out.payload = prepend(wire.TextField("text", m.GetStr("body")), m.Without("body", "text"))
	return out
}

// unwrapAnswer returns the value alone if rest is only a wrapper such as {"answer": value}, or else rest.
func unwrapAnswer(intent wire.Intent, rest wire.Value) wire.Value {
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

func mapTerms(p, rest wire.Value) (outgoing, error) {
	switch p.GetStr("action") {
	case "propose":
		return outgoing{kind: "proposal", payload: rest}, nil
	case "counter":
		return outgoing{kind: "proposal", payload: rest, isReply: true}, nil
	case "accept", "reject", "withdraw":
		approve := wire.Field("approve", wire.Bool(p.GetStr("action") == "accept"))
		return outgoing{kind: "vote", payload: prepend(approve, rest.Without("approve", "weight")), isReply: true}, nil
	}
	return outgoing{}, fmt.Errorf("AgentRelay cannot express this action of %s", wire.Negotiate)
}

// mapClose maps a close. ARC has no close, but a failure is sent as an answer.
func mapClose(p wire.Value) outgoing {
	if p.GetStr("status") != "failed" {
		return outgoing{silent: true}
	}
	reason := p.GetStr("reason")
	note := "the request failed"
	if reason == string(wire.OwnerRejected) {
		note = "the owner of this agent declined"
	}
	return outgoing{kind: "answer", isReply: true, payload: wire.Obj(wire.TextField("text", note), wire.Field(meshMember, wire.Obj(wire.TextField("code", reason))))}
}

// expectsAnswer reports whether the peer will refer to this message in an answer. The answer must
// name the message, but the sender does not know the id that the relay gives it. So the frame has the AgentMesh id of
// the message as ref, except in a reply, whose ref names the message that it answers (AR-28).
func (s outgoing) expectsAnswer() bool { return s.kind == "question" || s.kind == "proposal" }

// encode returns the frame for one peer. It always has the members that an AgentMesh node reads (AR-58).
func (s outgoing) encode(to, ref string, conv wire.ConversationID, msg wire.MessageID) []byte {
	payload := s.payload
	if payload.Kind() == wire.Object {
		own, _ := payload.Get(meshMember)
		if own.Kind() != wire.Object {
			own = wire.Obj()
		}
		payload = payload.With(meshMember, own.With("conv", wire.Text(string(conv))).With("msg", wire.Text(string(msg))))
	}
	return frame.Request(to, s.kind, ref, payload).With(meshConvMember, wire.Text(string(conv))).With(meshMsgMember, wire.Text(string(msg))).JSON()
}
