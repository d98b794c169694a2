package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestRelease: the owner's approval lets a held message in as if it came now, but not past a block or an end.
func TestRelease(t *testing.T) {
	handles := Route{Name: "test", Handles: true}
	tests := []struct {
		name   string
		change func(s *State, m *Answered)
		do     Action
		err    error
	}{
		{"inbox", func(*State, *Answered) {}, Inbox, nil},
		{"hook", func(s *State, _ *Answered) { s.Route = handles }, Run, nil},
		{"reply to a hook without replies", func(s *State, m *Answered) { s.Route, m.Reply = handles, true }, Inbox, nil},
		{"rejected before", func(s *State, _ *Answered) { s.Standing = acl.Rejected }, Inbox, nil},
		{"blocked since", func(s *State, _ *Answered) { s.Standing = acl.Blocked }, Refuse, wire.ErrNotAllowed},
		{"blocked, although it cancels", func(s *State, _ *Answered) { s.Standing, s.CancelsEvent = acl.Blocked, true }, Refuse, wire.ErrNotAllowed},
		{"not on the list", func(s *State, _ *Answered) { s.Standing, s.Policy.Mode = acl.Unknown, acl.Allowlist }, Refuse, wire.ErrNotAllowed},
		{"not on the list, but we wrote first", func(s *State, _ *Answered) {
			s.Standing, s.Policy.Mode, s.Conv.WroteFirst = acl.Unknown, acl.Allowlist, true
		}, Inbox, nil},
		{"ended", func(s *State, _ *Answered) { s.New, s.Ended = false, wire.ErrConversationClosed }, Refuse, wire.ErrConversationClosed},
		{"receipt", func(s *State, m *Answered) { s.Conv.WroteFirst, m.Payload = true, payload("action", "received") }, Read, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, m := state(), Answered{ID: "msg_1", Intent: wire.Deliver, Payload: in().Payload}
			tt.change(&s, &m)
			if v := Release(s, m); v.Do != tt.do || !errors.Is(v.Error, tt.err) {
				t.Errorf("%s, %v; want %s, %v", v.Do, v.Error, tt.do, tt.err)
			}
		})
	}
}

// TestChoices (AM-97): the first choice about a stranger lets the stranger in, if a proof says who that is.
func TestChoices(t *testing.T) {
	for _, tt := range []struct {
		hold, proof, want string
		letsIn            bool
	}{
		{"sender", bridge.VerifiedSignature, "approve once conversation reject block", true},
		{"sender", bridge.VerifiedBearer, "approve once conversation reject block", true},
		{"sender", bridge.VerifiedNone, "approve reject block", false},
		{"sender", "", "approve reject block", false},
		{"intent", bridge.VerifiedSignature, "approve conversation reject block", false},
		{"intent", bridge.VerifiedNone, "approve reject block", false},
		{"turns", bridge.VerifiedSignature, "approve conversation reject", false},
		{"turns", bridge.VerifiedNone, "approve conversation reject", false},
	} {
		choices := Choices(tt.hold, tt.proof)
		if got := strings.Trim(fmt.Sprint(choices), "[]"); got != tt.want {
			t.Errorf("%s, %q: %s, want %s", tt.hold, tt.proof, got, tt.want)
		}
		for _, c := range choices {
			if got := (acl.Ask{Choices: choices}).LetsIn(c); got != (tt.letsIn && c == acl.Approve) {
				t.Errorf("%s, %q: %s lets in: %t", tt.hold, tt.proof, c, got)
			}
		}
	}
}

func TestRejection(t *testing.T) {
	for _, tt := range []struct {
		first, block, aboutSender, proven bool
		want                              acl.Standing
	}{
		{true, false, true, true, acl.Rejected},
		{true, false, true, false, ""}, // an unproven id may belong to somebody else
		{true, false, false, true, ""}, // the question was about the intent
		{true, true, false, false, acl.Blocked},
		{false, true, true, true, ""}, // the first message stores the rule
		{false, false, true, true, ""},
	} {
		if got := Rejection(tt.first, tt.block, tt.aboutSender, tt.proven); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// TestHear: who gets the reply to a message of ours.
func TestHear(t *testing.T) {
	all := Route{Name: "test", Handles: true, Replies: true}
	text := in().Payload
	tests := []struct {
		name  string
		route Route
		reply Reply
		want  Action
	}{
		{"text", Route{}, Reply{Answered: Answered{Payload: text}}, Inbox},
		{"text to a hook", all, Reply{Answered: Answered{Payload: text}}, Run},
		{"text to a hook without replies", Route{Handles: true}, Reply{Answered: Answered{Payload: text}}, Inbox},
		{"echo of our close", all, Reply{Answered: Answered{Payload: payload("action", "close", "status", "completed")}, To: "close"}, Drop},
		{"close", all, Reply{Answered: Answered{Payload: payload("action", "close", "status", "failed")}}, Read},
		{"close with a text", all, Reply{Answered: Answered{Payload: payload("action", "close", "status", "failed", "message", "sorry")}}, Inbox},
		{"received", all, Reply{Answered: Answered{Payload: payload("action", "received")}}, Drop},
		{"pending", all, Reply{Answered: Answered{Payload: payload("action", "pending_approval")}}, Drop},
		{"received with a text", all, Reply{Answered: Answered{Payload: payload("action", "received", "question", "and you?")}}, Run},
		{"received of a custom intent", all, Reply{Answered: Answered{Intent: "org.example", Payload: payload("action", "received", "question", "and you?")}}, Drop},
		{"another receipt", all, Reply{Answered: Answered{Payload: payload("action", "acknowledged")}}, Read},
		{"receipt of the network", all, Reply{Answered: Answered{Intent: "org.example", Payload: payload("action", "ack")}, Receipt: "ack"}, Drop},
		{"no action is no receipt", all, Reply{Answered: Answered{Intent: "org.example", Payload: payload("text", "hi")}}, Run},
		{"not readable", all, Reply{Answered: Answered{Payload: text}}, Inbox},
		{"after the end", all, Reply{Answered: Answered{Payload: text}}, Inbox},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.reply
			r.ID, r.Reply, r.Turns.Autonomy, r.Open, r.Readable = "msg_2", true, DefaultAutonomy, tt.name != "after the end", tt.name != "not readable"
			if r.Intent == "" {
				r.Intent = wire.Deliver
			}
			if got, _ := Hear(conversations.Conversation{Key: chat, WroteFirst: true}, tt.route, r, now); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestSettle: what becomes of a message when its hook ends.
func TestSettle(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      Outcome
		do     Action
		counts bool
	}{
		{"answer", Outcome{}, Answer, false},
		{"nothing to say", Outcome{Silent: true}, Answer, false},
		{"nothing to say to a reply", Outcome{Reply: true, Silent: true}, Inbox, true},
		{"answer to a reply", Outcome{Reply: true}, Answer, false},
		{"later", Outcome{Later: true, Silent: true}, Await, false},
		{"later, to a reply", Outcome{Reply: true, Later: true, Silent: true}, Await, false},
		{"asks the owner", Outcome{Asks: true, Silent: true}, Hold, false},
		{"asks the owner about a reply", Outcome{Reply: true, Asks: true, Silent: true}, Inbox, true},
		{"refuses", Outcome{Refuses: true, Silent: true}, Refuse, false},
		{"deleted", Outcome{Deleted: true, Failed: true}, Deleted, false},
		{"ended", Outcome{Ended: true}, Late, false},
		{"ended and agreed", Outcome{Ended: true, Settled: true}, Inbox, false},
		{"failed after the end", Outcome{Ended: true, Failed: true, Retry: true}, Late, false},
		{"unreachable", Outcome{Failed: true, Retry: true, Silent: true}, Retry, false},
		{"failed", Outcome{Failed: true, Silent: true}, Fail, false},
		{"failed on a reply", Outcome{Reply: true, Failed: true, Silent: true}, Fail, false},
		{"failed on what confirms", Outcome{Failed: true, Confirms: true, Settled: true}, Inbox, true},
		{"failed on an agreement", Outcome{Failed: true, Settled: true}, Inbox, false},
	} {
		if do, counts := Settle(tt.o); do != tt.do || counts != tt.counts {
			t.Errorf("%s: %s, %t; want %s, %t", tt.name, do, counts, tt.do, tt.counts)
		}
	}
}

// TestCounts: an accept counts once its recipient has answered it (AM-88).
func TestCounts(t *testing.T) {
	theirs, ours := &conversations.Acceptance{By: conversations.Theirs, Message: "msg_theirs"}, &conversations.Acceptance{By: conversations.Ours, Message: "msg_reply"}
	for _, tt := range []struct {
		name      string
		accept    *conversations.Acceptance
		confirmed wire.MessageID
		reply     wire.MessageID
		want      wire.MessageID
	}{
		{"nothing was accepted", nil, "", "msg_reply", ""},
		{"we answer their accept", theirs, "", "", "msg_theirs"},
		{"our accept is the reply", ours, "", "msg_reply", "msg_reply"},
		{"our accept leaves through the outbox", ours, "", "", ""},
		{"they confirm an earlier accept of ours", theirs, "msg_ours", "", "msg_ours"},
	} {
		deal := conversations.Deal{Accept: tt.accept}
		for intent, c := range map[wire.Intent]conversations.Conversation{wire.Schedule: {Schedule: deal}, wire.Negotiate: {Negotiate: deal}} {
			if got := Counts(c, tt.confirmed, "msg_theirs", tt.reply); got != tt.want {
				t.Errorf("%s, %s: %q, want %q", tt.name, intent, got, tt.want)
			}
		}
	}
}

// TestMayLeaveOut: what decides something is never left out, and neither is the answer to an accept (AM-94).
func TestMayLeaveOut(t *testing.T) {
	if MayLeaveOut("counter", "accept") {
		t.Error("a receipt in the place of a counter would confirm the accept")
	}
	for action, want := range map[string]bool{
		"deliver": true, "propose": true, "counter": true, "ask": true, "answer": true, "": true,
		"accept": false, "decline": false, "reject": false, "withdraw": false, "cancel": false,
	} {
		if MayLeaveOut(action, "propose") != want {
			t.Errorf("%q may be left out: %t, want %t", action, !want, want)
		}
	}
}
