package rules

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var (
	now  = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	chat = store.ConvKey{Peer: "am_chris", ID: "conv_1"}
)

// noBoats is a schema that refuses every payload.
type noBoats struct{}

func (noBoats) Check(wire.Intent, wire.Value) error { return errors.New("no boats") }

// payload returns an object of texts.
func payload(pairs ...string) wire.Value {
	v := wire.Obj()
	for i := 0; i < len(pairs); i += 2 {
		v = v.With(pairs[i], wire.Text(pairs[i+1]))
	}
	return v
}

// in returns a text of an allowed peer, as the first message of a conversation; the inbox takes it.
func in() bridge.Inbound {
	return bridge.Inbound{
		Principal: chat.Peer, Peer: wire.AgentID(chat.Peer), ConvID: wire.ConversationID(chat.ID), MessageID: "msg_1", Intent: wire.Deliver,
		Payload: payload("action", "deliver").With("message", payload("body", "hello")), Digest: [32]byte{1}, Native: &wire.Message{Time: now}, Time: now,
	}
}

func state() State {
	return State{
		Now: now, Arrived: now, Standing: acl.Allowed, Policy: acl.Policy{Mode: acl.Approval},
		Conv: conversations.Conversation{Key: chat}, New: true, IdleFor: time.Hour, RetryKept: time.Minute, Supported: true, Turns: Turns{Autonomy: DefaultAutonomy},
	}
}

// proceed asks as the node does: Admit, Fit, Decide.
func proceed(s State, m bridge.Inbound) Verdict {
	v := Admit(s, m)
	if v.Do != Charge {
		return v
	}
	if err := Fit(s, m, v.Stranger); err != nil {
		return refuse(err)
	}
	return Decide(s, m)
}

// TestReceive has at least one row for each line of the receive table from 9 on. Each row changes what it names in an
// accepted message.
func TestReceive(t *testing.T) {
	open := conversations.Conversation{
		Key: chat, Principal: chat.Peer, State: conversations.Open, Intent: wire.Deliver, Opened: now.Add(-time.Minute), Last: now.Add(-time.Minute),
	}
	old := func(m *bridge.Inbound) { m.Native = &wire.Message{Time: now.Add(-16 * time.Minute)} }
	known := &store.Replay{MessageID: "msg_1", Digest: [32]byte{1}, Status: 200, Conv: chat}
	other := &store.Replay{MessageID: "msg_1", Digest: [32]byte{2}, Status: 200, Conv: chat}
	offer := func(m *bridge.Inbound) {
		m.Intent, m.Payload = wire.Negotiate, payload("action", "propose").With("terms", payload("description", "boat"))
	}
	tests := []struct {
		name string
		with func(s *State, m *bridge.Inbound)
		do   Action
		err  error
		wait []Reason
	}{
		{name: "accepted", with: func(*State, *bridge.Inbound) {}, do: Inbox},

		{name: "9: too old", with: func(_ *State, m *bridge.Inbound) { old(m) }, do: Refuse, err: wire.ErrTimeWindow},
		{name: "9: old, but it waited in a mailbox", with: func(s *State, m *bridge.Inbound) { old(m); s.Arrived = now.Add(-16 * time.Minute) }, do: Inbox},
		{name: "9: a foreign message has no time", with: func(s *State, m *bridge.Inbound) {
			m.Native, m.Address, s.Conv.Address = nil, "mew:lab/x", "mew:lab/x"
		}, do: Inbox},
		{name: "9: old and reused id", with: func(s *State, m *bridge.Inbound) { old(m); s.Replay = other }, do: Refuse, err: wire.ErrTimeWindow},
		{name: "10: exact repeat, whatever its age", with: func(s *State, m *bridge.Inbound) { old(m); s.Replay = known }, do: Repeat},
		{name: "10: reused id", with: func(s *State, _ *bridge.Inbound) { s.Replay = other }, do: Refuse, err: wire.ErrIDReused},
		{name: "10: resend", with: func(s *State, _ *bridge.Inbound) { s.Resent = other }, do: Repeat},
		{name: "10: resend of another conversation", with: func(s *State, _ *bridge.Inbound) { s.Resent = &store.Replay{Status: 200} }, do: Inbox},

		{name: "11: another agent in a foreign conversation", with: func(s *State, _ *bridge.Inbound) {
			s.New, s.Conv = false, open
			s.Conv.Address = "mew:lab/x"
		}, do: Refuse, err: wire.ErrNotAllowed},
		{name: "11: blocked", with: func(s *State, _ *bridge.Inbound) { s.Standing = acl.Blocked }, do: Refuse, err: wire.ErrNotAllowed},
		{name: "11: rejected", with: func(s *State, _ *bridge.Inbound) { s.Standing = acl.Rejected }, do: Refuse, err: wire.ErrOwnerRejected},
		{name: "11: not on the list", with: func(s *State, _ *bridge.Inbound) { s.Standing, s.Policy.Mode = acl.Approved, acl.Allowlist }, do: Refuse, err: wire.ErrNotAllowed},
		{name: "11: our owner wrote first", with: func(s *State, _ *bridge.Inbound) {
			s.Standing, s.Policy.Mode, s.New, s.Conv = acl.Unknown, acl.Allowlist, false, open
			s.Conv.WroteFirst = true
		}, do: Inbox},
		{name: "11: it cancels what we agreed", with: func(s *State, m *bridge.Inbound) {
			s.Standing, s.Policy.Mode, s.CancelsEvent = acl.Unknown, acl.Allowlist, true
			m.Intent, m.Payload = wire.Schedule, payload("action", "cancel")
		}, do: Inbox},

		{name: "12: the link has too many conversations", with: func(s *State, _ *bridge.Inbound) { s.Open, s.MaxOpen = 3, 3 }, do: Refuse, err: wire.ErrRateLimited},
		{name: "12: one more fits", with: func(s *State, _ *bridge.Inbound) { s.Open, s.MaxOpen = 2, 3 }, do: Inbox},
		{name: "12: an open conversation goes on", with: func(s *State, _ *bridge.Inbound) { s.New, s.Conv, s.Open, s.MaxOpen = false, open, 3, 3 }, do: Inbox},
		{name: "12: the conversation is full", with: func(s *State, _ *bridge.Inbound) { s.ConvFull = true }, do: Refuse, err: wire.ErrRateLimited},
		{name: "12: a close of a full conversation", with: func(s *State, m *bridge.Inbound) {
			s.New, s.Conv, s.ConvFull, m.Payload = false, open, true, payload("action", "close", "status", "completed")
		}, do: Close},
		{name: "12: no space for strangers", with: func(s *State, _ *bridge.Inbound) { s.Standing, s.KeptFull = acl.Unknown, true }, do: Refuse, err: wire.ErrRateLimited},
		{name: "12: space for known peers", with: func(s *State, _ *bridge.Inbound) { s.KeptFull = true }, do: Inbox},

		{name: "13: a close that opens", with: func(_ *State, m *bridge.Inbound) { m.Payload = payload("action", "close", "status", "completed") }, do: Refuse, err: wire.ErrConversationClosed},
		{name: "13: close", with: func(s *State, m *bridge.Inbound) {
			s.New, s.Conv, m.Payload = false, open, payload("action", "close", "status", "completed")
		}, do: Close},
		{name: "13: closed", with: func(s *State, m *bridge.Inbound) { s.Ended, m.Intent = wire.ErrConversationClosed, "mesh.unknown" }, do: Refuse, err: wire.ErrConversationClosed},

		{name: "14: not supported", with: func(s *State, _ *bridge.Inbound) { s.Supported = false }, do: Refuse, err: wire.ErrIntent},
		{name: "14: neither standard nor custom", with: func(_ *State, m *bridge.Inbound) { m.Intent = "boat" }, do: Refuse, err: wire.ErrIntent},
		{name: "14: our owner used it here", with: func(s *State, _ *bridge.Inbound) {
			s.Supported, s.New, s.Conv = false, false, open
			s.Conv.WroteFirst, s.Conv.Wrote = true, []wire.Intent{wire.Schedule, wire.Deliver}
		}, do: Inbox},
		{name: "14: our owner used another one", with: func(s *State, _ *bridge.Inbound) {
			s.Supported, s.New, s.Conv = false, false, open
			s.Conv.WroteFirst, s.Conv.Wrote = true, []wire.Intent{wire.Schedule}
		}, do: Refuse, err: wire.ErrIntent},
		{name: "14: a hook takes it", with: func(s *State, _ *bridge.Inbound) { s.Supported, s.Route.Handles = false, true }, do: Run},
		{name: "14: shape", with: func(_ *State, m *bridge.Inbound) { m.Intent, m.Payload = wire.Schedule, wire.Obj() }, do: Refuse, err: wire.ErrPayload},
		{name: "14: the owner's schema", with: func(s *State, m *bridge.Inbound) { m.Intent, s.Schemas = "com.example.boat", noBoats{} }, do: Refuse, err: wire.ErrPayload},
		{name: "14: not supported, of a stranger", with: func(s *State, _ *bridge.Inbound) { s.Standing, s.Supported = acl.Unknown, false }, do: Refuse, err: wire.ErrIntent},

		{name: "15: stranger", with: func(s *State, _ *bridge.Inbound) { s.Standing = acl.Unknown }, do: Hold, wait: []Reason{BySender}},
		{name: "15: stranger of an open node", with: func(s *State, _ *bridge.Inbound) { s.Standing, s.Policy.Mode = acl.Unknown, acl.Open }, do: Inbox},
		{name: "15: admitted to the conversation", with: func(s *State, _ *bridge.Inbound) {
			s.Standing, s.New, s.Conv = acl.Unknown, false, open
			s.Conv.Admitted = []wire.Intent{wire.Deliver}
		}, do: Inbox},
		{name: "15: admitted with another intent", with: func(s *State, _ *bridge.Inbound) {
			s.Standing, s.New, s.Conv = acl.Unknown, false, open
			s.Conv.Admitted = []wire.Intent{wire.Negotiate}
		}, do: Hold, wait: []Reason{BySender}},
		{name: "15: unproven key of a known peer", with: func(_ *State, m *bridge.Inbound) { m.Unproven = new(bridge.UnprovenKey) }, do: Hold, wait: []Reason{ByKey}},
		{name: "15: offer", with: func(_ *State, m *bridge.Inbound) { offer(m) }, do: Hold, wait: []Reason{ByIntent}},
		{name: "15: offer of a stranger", with: func(s *State, m *bridge.Inbound) { s.Standing = acl.Unknown; offer(m) }, do: Hold, wait: []Reason{BySender, ByIntent}},
		{name: "15: offers are admitted here", with: func(s *State, m *bridge.Inbound) {
			s.New, s.Conv = false, open
			s.Conv.Admitted = []wire.Intent{wire.Negotiate}
			offer(m)
		}, do: Inbox},
		{name: "15: its network asks", with: func(_ *State, m *bridge.Inbound) { m.Hold = true }, do: Hold, wait: []Reason{ByNetwork}},
		{name: "15: sealed, and passed on", with: func(s *State, _ *bridge.Inbound) { s.Sealed, s.Route = true, Route{"lab", true, false, true} }, do: Hold, wait: []Reason{BySeal}},
		{name: "15: passed on unsealed", with: func(s *State, _ *bridge.Inbound) { s.Route = Route{"lab", true, false, true} }, do: Run},
		{name: "15: withdrawal of a held message", with: func(s *State, m *bridge.Inbound) {
			s.New, s.Conv, s.Withdrawn = false, open, []acl.Ask{{}}
			m.Intent, m.Payload = wire.Negotiate, payload("action", "withdraw")
		}, do: Withdraw},

		{name: "16: hook", with: func(s *State, _ *bridge.Inbound) { s.Route.Handles = true }, do: Run},
		{name: "16: hook without a turn in the conversation", with: func(s *State, _ *bridge.Inbound) {
			s.Route.Handles, s.New, s.Conv = true, false, open
			s.Conv.Turns = DefaultAutonomy.Conversation
		}, do: Hold, wait: []Reason{ByTurns}},
		{name: "16: hook, and the owner lets them talk", with: func(s *State, _ *bridge.Inbound) {
			s.Route.Handles, s.New, s.Conv = true, false, open
			s.Conv.Turns, s.Conv.TurnsFree = DefaultAutonomy.Conversation, now.Add(time.Minute)
		}, do: Run},
		{name: "16: hook without a turn today", with: func(s *State, _ *bridge.Inbound) { s.Route.Handles, s.Turns.Spent = true, InAll }, do: Hold, wait: []Reason{ByTurns}},
		{name: "16: the inbox needs no turn", with: func(s *State, _ *bridge.Inbound) { s.Turns.Spent = InAll }, do: Inbox},
		{name: "16: nor does a bridge", with: func(s *State, _ *bridge.Inbound) { s.Route, s.Turns.Spent = Route{"lab", true, false, true}, InAll }, do: Run},
		{name: "16: an answer to ours, and the hook takes none", with: func(s *State, m *bridge.Inbound) { s.Route.Handles, m.Reply = true, true }, do: Inbox},
		{name: "16: an answer to ours, and the hook takes them", with: func(s *State, m *bridge.Inbound) { s.Route.Handles, s.Route.Replies, m.Reply = true, true, true }, do: Run},
		{name: "16: receipt", with: func(s *State, m *bridge.Inbound) {
			s.Route.Handles, m.Payload = true, payload("action", "received").With("metadata", payload("in_reply_to", "msg_0"))
		}, do: Read},
		{name: "16: a receipt that answers nothing", with: func(s *State, m *bridge.Inbound) {
			s.Route.Handles, m.Payload = true, payload("action", "received")
		}, do: Run},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, m := state(), in()
			tt.with(&s, &m)
			v := proceed(s, m)
			if v.Do != tt.do || !errors.Is(v.Error, tt.err) || !slices.Equal(v.Waits, tt.wait) {
				t.Errorf("%s (%v, waits %v), want %s (%v, waits %v)", v.Do, v.Error, v.Waits, tt.do, tt.err, tt.wait)
			}
			if v.Do == Hold && !v.Event.Waits {
				t.Error("the conversation would count it although it waits")
			}
		})
	}
}

// TestUnclearAccept: an accept that names nothing is answered with our offer reduced to one time, or by the owner (AM-88).
func TestUnclearAccept(t *testing.T) {
	s, m := state(), in()
	s.New, s.Route.Handles = false, true
	m.Intent, m.Payload = wire.Schedule, payload("action", "accept")
	m.Time = now
	begin := func(times ...string) conversations.Conversation {
		conv, err := conversations.Conversation{Key: chat}.Next(conversations.Event{
			Kind: conversations.Sent, At: now.Add(-time.Minute), Intent: wire.Schedule, ID: "msg_0",
			Payload: payload("action", "propose").With("event", payload("title", "Coffee").With("proposed_times", wire.Texts(times))),
		}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return conv
	}
	s.Conv = begin("2026-12-04T10:00:00Z", "2026-12-04T14:00:00Z")
	if v := Decide(s, m); v.Do != Clarify || v.Confirms {
		t.Errorf("%s, want clarify", v.Do)
	}
	s.Conv, _ = s.Conv.Next(conversations.Event{
		Kind: conversations.Sent, At: now.Add(-time.Second), Intent: wire.Schedule, ID: "msg_2", Payload: payload("action", "cancel"),
	}, time.Hour)
	if v := Decide(s, m); v.Do != Unclear {
		t.Errorf("%s, want unclear", v.Do)
	}
}

// TestWithheld: a message that closes a conversation or takes a held message back does not wait, but the agent does not
// see it if it would have to.
func TestWithheld(t *testing.T) {
	for _, tt := range []struct {
		name    string
		strange bool
		action  string
		want    Action
	}{
		{"close", true, "close", Close}, {"withdraw", true, "withdraw", Withdraw},
		{"close of a known peer", false, "close", Close}, {"withdraw of a known peer", false, "withdraw", Withdraw},
	} {
		s, m := state(), in()
		s.New, s.Conv = false, conversations.Conversation{Key: chat, State: conversations.Open, Last: now, Intent: wire.Negotiate}
		s.Withdrawn = []acl.Ask{{}}
		if tt.strange {
			s.Standing = acl.Unknown
		}
		m.Intent, m.Payload = wire.Negotiate, payload("action", tt.action, "status", "completed")
		if v := Decide(s, m); v.Do != tt.want || v.Event.Withheld != tt.strange || v.Event.Waits {
			t.Errorf("%s: %s, withheld %v, waits %v", tt.name, v.Do, v.Event.Withheld, v.Event.Waits)
		}
	}
}

// TestRuleNames: the audit log names the rule that let a sender in or refused it.
func TestRuleNames(t *testing.T) {
	s := state()
	if got := AdmittedBy(s); got != "peer=allowed" {
		t.Error(got)
	}
	s.Standing = acl.Unknown
	if got := AdmittedBy(s) + ", " + RefusedBy(s, wire.ErrNotAllowed); got != "access.mode=approval, access.mode=approval" {
		t.Error(got)
	}
	s.Standing, s.Conv.WroteFirst = acl.Blocked, true
	if got := AdmittedBy(s) + ", " + RefusedBy(s, wire.ErrNotAllowed) + RefusedBy(s, wire.ErrTimeWindow); got != "our owner wrote first, peer=blocked" {
		t.Error(got)
	}
}

// TestWords: each reason has its words, and the owner gets those of every reason.
func TestWords(t *testing.T) {
	s, m := state(), in()
	s.Route.Name = "lab"
	for _, r := range []Reason{BySender, ByKey, BySeal, ByNetwork, ByIntent} {
		if w := WordsFor(Verdict{Waits: []Reason{r}}, s, m); w.Hold == "" || w.Rule == "" || w.Sender == "" {
			t.Errorf("%s: %+v", r, w)
		}
	}
	got := WordsFor(Verdict{Waits: []Reason{BySender, BySeal, ByIntent}}, s, m)
	want := Words{"sender", "access.mode=approval", tellsSender, "it came sealed, and lab would forward it unsealed to a foreign network"}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestCancelledEvent: a message names only events of its own sender.
func TestCancelledEvent(t *testing.T) {
	conv := conversations.Conversation{Key: chat}
	for _, tt := range []struct {
		intent  wire.Intent
		payload wire.Value
		want    string
	}{
		{wire.Schedule, payload("action", "cancel"), calendar.UID(chat.Peer, chat.ID)},
		{wire.Schedule, payload("action", "decline"), ""},
		{wire.Deliver, payload("action", "cancel"), ""},
		{wire.Schedule, payload("action", "cancel").With("metadata", payload("agreed_in", "conv_2")), calendar.UID(chat.Peer, "conv_2")},
		{wire.Deliver, payload("action", "close", "status", "failed"), calendar.UID(chat.Peer, chat.ID)},
		{wire.Deliver, payload("action", "close", "status", "completed"), ""},
	} {
		if got := CancelledEvent(conversations.Event{Intent: tt.intent, Payload: tt.payload}, conv, conversations.Theirs); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.intent, tt.payload.JSON(), got, tt.want)
		}
	}
}

// TestAfterwards (AM-96): after the end of a conversation, a message counts that takes back the agreement that it names, and for
// a minute after a close the node keeps what decides nothing.
func TestAfterwards(t *testing.T) {
	accepted := now.Add(-time.Minute)
	agreed := conversations.Deal{
		Agreement: &conversations.Agreement{Intent: wire.Schedule, AcceptedBy: conversations.Theirs, Message: "msg_accept", Proposed: "msg_offer", Written: accepted},
		Proposal:  &conversations.Proposal{Intent: wire.Schedule, By: conversations.Ours, Message: "msg_later"},
	}
	text := in().Payload
	naming := func(action string, id wire.MessageID) wire.Value {
		return payload("action", action).With("metadata", payload("in_reply_to", string(id)))
	}
	for _, tt := range []struct {
		name    string
		intent  wire.Intent
		payload wire.Value
		with    func(*State, *bridge.Inbound)
		kept    bool
		cancels bool
	}{
		{"a text at once", wire.Deliver, text, nil, true, false},
		{"a receipt", wire.Schedule, payload("action", "received"), nil, true, false},
		{"a receipt of our accept", wire.Schedule, naming("received", "msg_ours"), func(s *State, _ *bridge.Inbound) {
			s.Conv.Schedule.Accept = &conversations.Acceptance{By: conversations.Ours, Message: "msg_ours", Delivered: true}
		}, true, false},
		{"a text too late", wire.Deliver, text, func(s *State, _ *bridge.Inbound) { s.Conv.Last = now.Add(-61 * time.Second) }, false, false},
		{"mail that arrived in time", wire.Deliver, text, func(s *State, _ *bridge.Inbound) { s.Now = now.Add(time.Hour) }, true, false},
		{"a text in a failed conversation", wire.Deliver, text, func(s *State, _ *bridge.Inbound) { s.Conv.State = conversations.Failed }, false, false},
		{"a text in an expired conversation", wire.Deliver, text, func(s *State, _ *bridge.Inbound) { s.Conv.State = conversations.Open }, false, false},
		{"a text that must wait", wire.Deliver, text, func(s *State, _ *bridge.Inbound) { s.Policy.Hold = []acl.HoldRule{{Intent: "*", Hold: acl.Always}} }, false, false},
		{"of a foreign network", wire.Deliver, text, func(s *State, m *bridge.Inbound) { s.Conv.Address, m.Address = "mess:ann", "mess:ann" }, false, false},
		{"a payload of a wrong shape", wire.Deliver, payload("message", "x"), nil, false, false},
		{"a proposal", wire.Schedule, payload("action", "propose").With("event", payload("title", "Tea")), nil, false, false},
		{"an accept", wire.Schedule, payload("action", "accept"), nil, false, false},
		{"a question", wire.RequestInfo, payload("action", "ask", "question", "why?"), nil, false, false},
		{"a cancel that names nothing", wire.Schedule, payload("action", "cancel"), nil, false, false},
		{"a cancel of the accept", wire.Schedule, naming("cancel", "msg_accept"), nil, true, true},
		{"a decline of the proposal, an hour later", wire.Schedule, naming("decline", "msg_offer"), func(s *State, _ *bridge.Inbound) { s.Conv.Last = now.Add(-time.Hour) }, true, true},
		{"a decline that is older than the accept", wire.Schedule, naming("decline", "msg_offer"), func(_ *State, m *bridge.Inbound) { m.Time = accepted.Add(-time.Second) }, false, false},
		{"a cancel of a later proposal", wire.Schedule, naming("cancel", "msg_later"), nil, false, false},
		{"a cancel of an offer", wire.Negotiate, naming("cancel", "msg_offer"), nil, false, false},
	} {
		s, m := state(), in()
		s.New, s.Ended = false, wire.ErrConversationClosed
		s.Conv.State, s.Conv.Opened, s.Conv.Last, s.Conv.Schedule = conversations.Completed, now, now.Add(-40*time.Second), agreed
		m.Intent, m.Payload = tt.intent, tt.payload
		if tt.with != nil {
			tt.with(&s, &m)
		}
		v := proceed(s, m)
		if v.Confirms {
			t.Errorf("%s: it confirms an accept", tt.name)
		}
		if (v.Do == Inbox) != tt.kept || v.Do != Inbox && v.Do != Refuse || (v.Cancels != "") != tt.cancels {
			t.Errorf("%s: %s (%v), cancels %q; want kept %t, cancels %t", tt.name, v.Do, v.Error, v.Cancels, tt.kept, tt.cancels)
		}
		if v.Do == Refuse && !errors.Is(v.Error, wire.ErrConversationClosed) {
			t.Errorf("%s: %v", tt.name, v.Error)
		}
		if v.Do != Inbox {
			continue
		}
		after, err := s.Conv.Next(v.Event, time.Hour)
		if err != nil || after.Schedule.InForce() == tt.cancels || after.State != s.Conv.State || !after.Last.Equal(s.Conv.Last) {
			t.Errorf("%s: afterwards %+v, %v", tt.name, after, err)
		}
	}
}
