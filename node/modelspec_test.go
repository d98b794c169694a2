package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// spec is what docs/protocol.md says that one node has to do with the messages that reach it. It was written from that
// page, not from the code, and knows only what a message, a command or a decision has told it. Where the page leaves
// something open, or where the answer depends on what the spec does not follow (the clock to the second, an agreement
// that ends a conversation), several outcomes are right.
//
// Turns (AM-92) become a field of exchange and of spec, counted in saw, and one more reason in waits. A guard (AM-95)
// becomes a field of spec with the verdict of each text, and one more reason in waits and in mustAsk.
type spec struct {
	mode     acl.Mode
	idle     time.Duration
	paused   bool
	standing map[wire.AgentID]acl.Standing
	written  map[wire.AgentID]bool // our owner wrote to it, which may have let it in (AM-97)
	talks    map[talkKey]*exchange
	heard    map[heardKey]*heard
	allowed  map[string]int // messages of ours that the owner let go, by [outKey]
}

type talkKey struct {
	peer wire.AgentID
	conv wire.ConversationID
}

// exchange is a conversation (AM-37).
type exchange struct {
	state    conversations.State
	rejected bool // by the owner (AM-35)
	refused  bool // by the agent
	last     time.Time
	wrote    likely               // our owner wrote in it unasked (AM-30)
	used     map[wire.Intent]bool // by our owner
	admitted []wire.Intent        // by the owner, for this conversation (AM-34)
	suspends bool                 // a question about it suspended its clock (AM-40)
	mayEnd   bool                 // it may end by something that the spec does not follow
}

type heardKey struct {
	from wire.AgentID
	id   wire.MessageID
}

// heard is a message that the node accepted, or that it is just answering.
type heard struct {
	m        wire.Message
	raw      []byte
	may      []outcome
	waits    bool // for the owner
	released bool // by the owner
	dropped  bool // taken back, rejected or expired: it never reaches an agent
	again    int  // how many more times a hook may run for it
	waited   bool // its sender got a 202 first
	status   int
	answer   []byte
}

// likely is how sure the spec is.
type likely int

const (
	no likely = iota
	perhaps
	yes
)

// outcome is what the node may do with a message.
type outcome struct {
	do     string // refuse, repeat, hold, take, close
	status int    // of refuse
	code   wire.Code
}

func (o outcome) String() string {
	if o.do == "refuse" {
		return fmt.Sprint(o.status, " ", o.code)
	}
	return o.do
}

func newSpec(mode acl.Mode, idle time.Duration) *spec {
	return &spec{
		mode: mode, idle: idle, standing: make(map[wire.AgentID]acl.Standing), written: make(map[wire.AgentID]bool), talks: make(map[talkKey]*exchange),
		heard: make(map[heardKey]*heard), allowed: make(map[string]int),
	}
}

// judge is the receive table from line 5 on: what the node may answer to m.
func (s *spec) judge(m wire.Message, raw []byte, now time.Time) (may []outcome) {
	add := func(do string, status int, code wire.Code) { may = append(may, outcome{do, status, code}) }
	standing, t := s.standing[m.From], s.talks[talkKey{m.From, m.Conversation}]
	action := m.Action()
	known := s.heard[heardKey{m.From, m.ID}]
	switch { // lines 5, 6, 9, 10
	case s.paused:
		add("refuse", 503, wire.AgentUnavailable)
		return may
	case standing == acl.Blocked:
		add("refuse", 403, wire.Unauthorized)
		return may
	case known != nil && bytes.Equal(known.raw, raw):
		add("repeat", 0, "")
		return may
	case m.Time.Before(now.Add(-15*time.Minute)) || m.Time.After(now.Add(5*time.Minute)):
		add("refuse", 400, wire.InvalidMessage)
		return may
	case known != nil:
		add("refuse", 409, wire.InvalidMessage)
		return may
	}
	if meta, _ := m.Payload.Get("metadata"); meta.GetStr("resend_of") != "" { // AM-48
		if first := s.heard[heardKey{m.From, wire.MessageID(meta.GetStr("resend_of"))}]; first != nil && first.m.Conversation == m.Conversation {
			add("repeat", 0, "")
			return may
		}
	}
	expected := no // AM-30
	if t != nil {
		expected = t.wrote
	}
	if m.Intent == wire.Schedule && (action == "cancel" || action == "decline") { // it may cancel what was agreed (AM-87)
		expected = max(expected, perhaps)
	}
	switch { // line 11
	case expected == yes || standing == acl.Allowed:
	case s.mode == acl.Allowlist:
		add("refuse", 403, wire.Unauthorized)
		if expected == no {
			return may
		}
	case standing == acl.Rejected:
		add("refuse", 403, wire.OwnerRejected)
		if expected == no {
			return may
		}
	}
	ended := s.hasEnded(t, now)
	if action == wire.ActionClose { // line 13
		if status := m.Payload.GetStr("status"); t != nil && ended != yes && status != "completed" && status != "failed" {
			add("refuse", 400, wire.InvalidMessage)
		} else if t != nil && ended != yes {
			add("close", 0, "")
		}
		if t == nil || ended != no {
			add("refuse", 409, wire.ConversationClosed)
		}
		if t != nil && (t.rejected || t.refused) {
			add("refuse", 403, wire.OwnerRejected)
		}
		return may
	}
	if t != nil && ended != no {
		if t.rejected || t.refused {
			add("refuse", 403, wire.OwnerRejected)
		}
		if !t.rejected {
			add("refuse", 409, wire.ConversationClosed)
		}
		decides := []string{"propose", "counter", "accept", "reject", "withdraw", "ask"}
		if t.state == conversations.Completed && !t.rejected && m.Intent.IsStandard() && !slices.Contains(decides, action) { // AM-96
			add("take", 0, "")
		}
		if ended == yes {
			return may
		}
	}
	if !m.Intent.IsStandard() && (t == nil || t.wrote == no || !t.used[m.Intent]) { // line 14
		add("refuse", 422, wire.IntentNotSupported)
		if t == nil || t.wrote != perhaps {
			return may
		}
	}
	if !hasShape(m) {
		add("refuse", 400, wire.InvalidMessage)
		return may
	}
	if (action == "withdraw" || action == "cancel") && s.waiting(m.From, m.Conversation) > 0 { // AM-36
		add("take", 0, "")
		return may
	}
	waits := s.waits(m, t, expected) // line 15
	if waits != no {
		add("hold", 0, "")
		if s.waiting(m.From, m.Conversation) >= 15 { // AM-33
			add("refuse", 429, wire.RateLimited)
		}
	}
	if waits != yes { // line 16
		add("take", 0, "")
	}
	return may
}

// hasShape reports whether a payload has the required fields of its intent, as far as the steps leave any out.
func hasShape(m wire.Message) bool {
	event, _ := m.Payload.Get("event")
	times, _ := event.Get("proposed_times")
	return m.Intent != wire.Schedule || m.Action() != "propose" || times.Len() > 0
}

// waits reports whether m waits for the owner (AM-29, AM-31).
func (s *spec) waits(m wire.Message, t *exchange, expected likely) likely {
	w := no
	if t == nil || !slices.Contains(t.admitted, m.Intent) {
		if s.written[m.From] {
			expected = max(expected, perhaps)
		}
		if s.mode == acl.Approval && s.standing[m.From] == acl.Unknown {
			w = yes - expected
		}
		switch {
		case isStatus(m.Action()):
			if m.Intent == wire.Handoff || !m.Intent.IsStandard() {
				w = max(w, perhaps)
			}
		case m.Intent == wire.Negotiate && slices.Contains([]string{"propose", "counter", "accept"}, m.Action()):
			w = yes
		case m.Intent == wire.Handoff, !m.Intent.IsStandard():
			w = yes
		}
	}
	return w
}

// isStatus reports whether an action only says what became of another message.
func isStatus(action string) bool {
	return action == wire.ActionReceived || action == wire.ActionPending
}

// mustAsk reports whether a message of ours needs the owner's decision before it leaves (AM-31, AM-50, AM-89). answered
// is the intent of the message that it answers, or "".
func mustAsk(m wire.Message, answered wire.Intent) bool {
	action := m.Action()
	if action == wire.ActionClose || isStatus(action) {
		return false
	}
	for _, intent := range []wire.Intent{m.Intent, answered} {
		if intent == wire.Negotiate && action != "reject" && action != "withdraw" {
			return true
		}
		if intent == wire.Handoff || intent != "" && !intent.IsStandard() {
			return true
		}
	}
	return false
}

// outKey names a message of ours by what the owner saw of it.
func outKey(to wire.AgentID, conv wire.ConversationID, payload wire.Value) string {
	return fmt.Sprint(to, " ", conv, " ", string(payload.Without("metadata").JSON()))
}

// hasEnded reports whether a conversation takes no further message (AM-35, AM-38, AM-40).
func (s *spec) hasEnded(t *exchange, now time.Time) likely {
	const slack = time.Minute
	switch {
	case t == nil:
		return no
	case t.state != conversations.Open:
		return yes
	case t.mayEnd, t.suspends && now.Sub(t.last) > s.idle-slack:
		return perhaps
	case now.Sub(t.last) > s.idle+slack:
		return yes
	case now.Sub(t.last) > s.idle-slack:
		return perhaps
	}
	return no
}

// waiting returns how many messages of a conversation wait for the owner.
func (s *spec) waiting(peer wire.AgentID, conv wire.ConversationID) (n int) {
	for _, h := range s.heard {
		if h.m.From == peer && h.m.Conversation == conv && h.waits {
			n++
		}
	}
	return n
}

// begin notes that the node is about to judge m, and returns the note.
func (s *spec) begin(m wire.Message, raw []byte, now time.Time) *heard {
	return &heard{m: m, raw: raw, may: s.judge(m, raw, now)}
}

// saw notes what the node did with a message.
func (s *spec) saw(h *heard, got outcome, status int, answer []byte, now time.Time) {
	if got.do == "refuse" || got.do == "repeat" {
		return
	}
	h.status, h.answer = status, answer
	s.heard[heardKey{h.m.From, h.m.ID}] = h
	key := talkKey{h.m.From, h.m.Conversation}
	t := s.talks[key]
	if t == nil {
		t = &exchange{state: conversations.Open, used: make(map[wire.Intent]bool)}
		s.talks[key] = t
	}
	t.last = now
	t.suspends = t.suspends || status == http.StatusAccepted
	switch {
	case got.do == "close":
		t.state = conversations.State(h.m.Payload.GetStr("status"))
		s.drop(key)
	case got.do == "hold":
		h.waits, t.suspends = true, true
	case h.m.Action() == "withdraw" || h.m.Action() == "cancel":
		s.drop(key)
	}
	t.mayEnd = t.mayEnd || isDeal(h.m)
}

// drop ends the questions about messages of the peer in a conversation (AM-36).
func (s *spec) drop(key talkKey) {
	for _, h := range s.heard {
		if h.waits && h.m.From == key.peer && h.m.Conversation == key.conv {
			h.waits, h.dropped = false, true
		}
	}
}

// wrote notes that a message of ours is stored.
func (s *spec) wrote(to wire.AgentID, conv wire.ConversationID, intent wire.Intent, unasked likely, now time.Time) {
	t := s.talks[talkKey{to, conv}]
	if t == nil {
		t = &exchange{state: conversations.Open, used: make(map[wire.Intent]bool)}
		s.talks[talkKey{to, conv}] = t
	}
	t.last, t.wrote = now, max(t.wrote, unasked)
	t.used[intent] = true
}

// mayRun reports whether the node may hand a message of a peer to an agent.
func (s *spec) mayRun(h *heard) bool {
	if h.dropped || h.waits {
		return false
	}
	return h.released || slices.ContainsFunc(h.may, func(o outcome) bool { return o.do == "take" })
}

// decide notes a decision of the owner, before it is made, and returns a function that takes the note back. ids are the
// messages of inbox items.
func (s *spec) decide(ask owner.Approval, choice acl.Choice, ids map[string]wire.MessageID, now time.Time) (undo func()) {
	subject := wire.AgentID(ask.Subject)
	before, key := s.standing[subject], talkKey{subject, wire.ConversationID(ask.Conv.ID)}
	if ask.Kind == owner.AskOutgoing {
		var out struct {
			To      wire.AgentID        `json:"to"`
			Conv    wire.ConversationID `json:"conversation_id"`
			Intent  wire.Intent         `json:"intent"`
			Payload json.RawMessage     `json:"payload"`
			Answers wire.MessageID      `json:"in_reply_to"`
		}
		payload := wire.Obj()
		if err := json.Unmarshal(ask.Body, &out); err == nil {
			payload, _ = wire.Parse(out.Payload)
		}
		name := outKey(out.To, out.Conv, payload)
		if choice.Approves() {
			s.allowed[name]++
			s.written[out.To] = true
			unasked := yes
			if out.Answers != "" {
				unasked = perhaps
			}
			s.wrote(out.To, out.Conv, out.Intent, unasked, now)
		}
		return func() { s.allowed[name] = 0 }
	}
	var notes []heard
	var about []*heard
	for _, m := range ask.Messages {
		if h := s.heard[heardKey{m.From, ids[m.Item]}]; h != nil {
			notes, about = append(notes, *h), append(about, h)
			h.waits, h.again = false, h.again+1
			h.released, h.dropped = choice.Approves(), !choice.Approves()
			if t := s.talks[talkKey{m.From, m.Conversation}]; t != nil && choice == acl.ApproveConversation {
				t.admitted = append(t.admitted, m.Intent)
			}
		}
	}
	isSender := len(ask.Messages) > 0 && ask.Messages[0].Hold == "sender"
	switch {
	case choice == acl.Approve && isSender:
		s.standing[subject] = acl.Approved
	case choice == acl.Reject && isSender:
		s.standing[subject] = acl.Rejected
	case choice == acl.Block:
		s.standing[subject] = acl.Blocked
		s.mayEndWith(subject)
	}
	for key, t := range s.talks { // messages that the owner did not see yet end, too (AM-34)
		if key.peer == subject && !choice.Approves() {
			t.mayEnd, t.refused = true, true
		}
	}
	if t := s.talks[key]; t != nil {
		t.mayEnd = true
		t.rejected = t.rejected || choice == acl.Reject
	}
	return func() {
		s.standing[subject] = before
		for i, h := range about {
			*h = notes[i]
		}
	}
}

// mayEndWith notes that what we still have for a peer is not delivered any more (AM-47).
func (s *spec) mayEndWith(peer wire.AgentID) {
	for key, t := range s.talks {
		if key.peer == peer {
			t.mayEnd = true
		}
	}
}
