package conversations_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

const idle = conversations.DefaultIdle

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func payload(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func action(name string) wire.Value {
	return wire.Obj(wire.Member{Key: "action", Value: wire.Text(name)})
}

func closing(status string) wire.Value {
	return action(wire.ActionClose).With("status", wire.Text(status))
}

// after applies events, and fails the test if an event is refused.
func after(t testing.TB, events ...conversations.Event) conversations.Conversation {
	t.Helper()
	var c conversations.Conversation
	for i, e := range events {
		next, err := c.Next(e, idle)
		if err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
		c = next
	}
	return c
}

func received(at time.Time) conversations.Event {
	return conversations.Event{Kind: conversations.Received, At: at, Principal: "am_p", Intent: wire.Deliver}
}

func sent(at time.Time) conversations.Event {
	return conversations.Event{Kind: conversations.Sent, At: at, Principal: "am_p", Intent: wire.Schedule}
}

func TestBegin(t *testing.T) {
	got := after(t, received(start))
	want := conversations.Conversation{
		Principal: "am_p", State: conversations.Open, Intent: wire.Deliver, HeardIntent: wire.Deliver, Opened: start, Last: start,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a first message received (-want +got):\n%s", diff)
	}
	want.Mine, want.WroteFirst, want.Intent, want.HeardIntent = true, true, wire.Schedule, ""
	want.Wrote = []wire.Intent{wire.Schedule}
	if diff := cmp.Diff(want, after(t, sent(start))); diff != "" {
		t.Errorf("after a first message sent (-want +got):\n%s", diff)
	}
	for kind := conversations.Replied; kind <= conversations.DeliveryFailed; kind++ {
		e := conversations.Event{Kind: kind, At: start, Payload: closing("completed"), Until: start.Add(time.Hour)}
		if c, err := (conversations.Conversation{}).Next(e, idle); !errors.Is(err, wire.ErrConversationClosed) || c.State != "" {
			t.Errorf("kind %d on a conversation that has not begun = %q, %v, want none and closed", kind, c.State, err)
		}
	}
}

// TestHeardIsNoReceipt (AM-91): whatever word a receipt has, it is not what an answer of ours answers.
func TestHeardIsNoReceipt(t *testing.T) {
	question := received(start)
	question.ID, question.Payload = "msg_1", payload(t, `{"action":"deliver","message":{"body":"x"}}`)
	for _, name := range []string{wire.ActionReceived, wire.ActionPending, "confirmed", "acknowledged"} {
		receipt := received(start)
		receipt.ID, receipt.Payload = "msg_2", action(name)
		if c := after(t, question, receipt); c.Heard != "msg_1" {
			t.Errorf("%s: heard %s", name, c.Heard)
		}
	}
	more := received(start)
	more.ID, more.Payload = "msg_2", payload(t, `{"action":"received","message":{"body":"and a question"}}`)
	if c := after(t, question, more); c.Heard != "msg_2" {
		t.Errorf("a receipt with a text: heard %s", c.Heard)
	}
}

// TestWroteFirst checks that a conversation counts as started by our owner only if the owner wrote unasked (AM-30).
func TestWroteFirst(t *testing.T) {
	reply := conversations.Event{Kind: conversations.Replied, At: start}
	if after(t, received(start), reply).WroteFirst {
		t.Error("an answer counts as writing first")
	}
	if !after(t, received(start), sent(start)).WroteFirst {
		t.Error("a message of our own does not count as writing first")
	}
}

// TestExpiry checks that a conversation expires to the second (AM-38).
func TestExpiry(t *testing.T) {
	last := start.Add(time.Hour)
	for name, c := range map[string]conversations.Conversation{
		"received": after(t, received(start), received(last)),
		"sent":     after(t, received(start), sent(last)),
		"replied":  after(t, received(start), conversations.Event{Kind: conversations.Replied, At: last}),
	} {
		if got := c.StateAt(last.Add(idle-time.Second), idle); got != conversations.Open {
			t.Errorf("%s: 24 h less a second after it = %s, want open", name, got)
		}
		for _, late := range []time.Duration{0, time.Second, 1000 * time.Hour} {
			if got := c.StateAt(last.Add(idle+late), idle); got != conversations.Expired {
				t.Errorf("%s: 24 h and %v after it = %s, want expired", name, late, got)
			}
		}
		if _, err := c.Next(received(last.Add(idle-time.Second)), idle); err != nil {
			t.Errorf("%s: message 24 h less a second after it: %v", name, err)
		}
		if _, err := c.Next(received(last.Add(idle)), idle); !errors.Is(err, wire.ErrConversationClosed) {
			t.Errorf("%s: message 24 h after it: %v, want closed", name, err)
		}
	}
}

// TestDeadline checks that a deadline ends a conversation whatever the two sides send and whichever owner is asked, and
// that only the first message sets the deadline.
func TestDeadline(t *testing.T) {
	opening := received(start)
	opening.Deadline = start.Add(time.Hour)
	later := received(start.Add(30 * time.Minute))
	later.Deadline = start.Add(40 * time.Minute)
	hold := conversations.Event{Kind: conversations.HoldOpened, At: start.Add(31 * time.Minute), Until: start.Add(48 * time.Hour)}
	c := after(t, opening, later, hold)
	if got := c.StateAt(start.Add(time.Hour-time.Second), idle); got != conversations.Open {
		t.Errorf("a second before the deadline it is %s", got)
	}
	if got := c.StateAt(start.Add(time.Hour), idle); got != conversations.Expired {
		t.Errorf("at the deadline it is %s", got)
	}
	if _, err := c.Next(sent(start.Add(time.Hour)), idle); !errors.Is(err, wire.ErrConversationClosed) {
		t.Errorf("a message of ours after the deadline: %v", err)
	}
	opening.Deadline = start.Add(1000 * time.Hour)
	if got := after(t, opening).StateAt(start.Add(idle), idle); got != conversations.Expired {
		t.Errorf("with a distant deadline, silence does not end the conversation: %s", got)
	}
}

// TestHoldSuspendsTheClock checks that a hold suspends the idle time, and that the end of the hold starts it again
// (AM-40).
func TestHoldSuspendsTheClock(t *testing.T) {
	const week = 7 * 24 * time.Hour
	until := start.Add(week)
	hold := conversations.Event{Kind: conversations.HoldOpened, At: start, Until: until}
	held := after(t, received(start), hold)
	peer := after(t, sent(start), conversations.Event{Kind: conversations.HeldByPeer, At: start, Until: until})
	open, expired := conversations.Open, conversations.Expired

	check := func(name string, c conversations.Conversation, at time.Time, want conversations.State) {
		t.Helper()
		if got := c.StateAt(at, idle); got != want {
			t.Errorf("%s: %v after the start = %s, want %s", name, at.Sub(start), got, want)
		}
	}
	for name, c := range map[string]conversations.Conversation{"held by us": held, "held by the peer": peer} {
		check(name, c, start.Add(idle+time.Second), open)
		check(name, c, until.Add(idle-time.Second), open)
		check(name, c, until.Add(idle), expired)
	}

	ended := start.Add(48 * time.Hour)
	c, err := held.Next(conversations.Event{Kind: conversations.HoldEnded, At: ended, Until: until}, idle)
	if err != nil || c.Holds(ended) != 0 {
		t.Fatalf("%d holds, %v", c.Holds(ended), err)
	}
	check("ended", c, ended.Add(idle-time.Second), open)
	check("ended", c, ended.Add(idle), expired)

	answered, err := peer.Next(received(ended), idle)
	if err != nil {
		t.Fatal(err)
	}
	check("answered by the peer", answered, ended.Add(idle), expired)
}

func TestSeveralHolds(t *testing.T) {
	first, second := start.Add(24*time.Hour), start.Add(72*time.Hour)
	c := after(t, received(start),
		conversations.Event{Kind: conversations.HoldOpened, At: start, Until: first},
		conversations.Event{Kind: conversations.HoldOpened, At: start, Until: second})
	if got := c.Holds(start); got != 2 {
		t.Errorf("Holds = %d, want 2", got)
	}
	if got := c.Holds(first); got != 1 {
		t.Errorf("Holds when the first ran out = %d, want 1", got)
	}
	decided := start.Add(50 * time.Hour)
	c, err := c.Next(conversations.Event{Kind: conversations.HoldEnded, At: decided, Until: second}, idle)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.StateAt(decided.Add(idle), idle); got != conversations.Expired {
		t.Errorf("24 h after the last hold ended = %s, want expired", got)
	}
	// The first hold expired by itself and must not be counted forever.
	if len(c.Held) != 0 {
		t.Errorf("Held = %v, want none", c.Held)
	}
}

// TestHoldOfShortenedQuestion checks that a decision ends the hold of a question that got an earlier end than its hold,
// and that the end of a hold that ran out ends no other hold.
func TestHoldOfShortenedQuestion(t *testing.T) {
	day := func(n int) time.Time { return start.Add(time.Duration(n) * 24 * time.Hour) }
	held := after(t, received(start), conversations.Event{Kind: conversations.HoldOpened, At: start, Until: day(7)})
	for _, c := range []struct {
		name  string
		until time.Time
		want  int
	}{
		{"the question ended on day 1 instead of day 7", day(1), 0},
		{"a hold that ran out", start, 1},
		{"a hold that ended later", day(8), 1},
	} {
		got, err := held.Next(conversations.Event{Kind: conversations.HoldEnded, At: start.Add(time.Hour), Until: c.until}, idle)
		if err != nil || got.Holds(start.Add(time.Hour)) != c.want {
			t.Errorf("%s: %d holds, %v, want %d", c.name, got.Holds(start.Add(time.Hour)), err, c.want)
		}
	}
}

func TestClose(t *testing.T) {
	for _, kind := range []conversations.Kind{conversations.ClosedByPeer, conversations.ClosedByUs} {
		for _, tt := range []struct {
			payload wire.Value
			want    conversations.State
			err     error
		}{
			{closing("completed"), conversations.Completed, nil},
			{closing("failed"), conversations.Failed, nil},
			{closing("expired"), conversations.Open, wire.ErrCloseStatus},
			{closing("open"), conversations.Open, wire.ErrCloseStatus},
			{action(wire.ActionClose), conversations.Open, wire.ErrCloseStatus},
			{closing("completed").With("status", wire.Int(1)), conversations.Open, wire.ErrCloseStatus},
		} {
			c, err := after(t, received(start)).Next(conversations.Event{Kind: kind, At: start, Payload: tt.payload}, idle)
			if c.State != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("kind %d, %s: %s, %v, want %s, %v", kind, tt.payload.JSON(), c.State, err, tt.want, tt.err)
			}
		}
	}
}

// TestRefusals checks which refusal wins at line 13 of the receive order (AM-24).
func TestRefusals(t *testing.T) {
	ended := func(k conversations.Kind) conversations.Conversation {
		return after(t, received(start), conversations.Event{Kind: k, At: start, Payload: closing("completed")})
	}
	rejected := after(t, received(start),
		conversations.Event{Kind: conversations.HoldOpened, At: start, Until: start.Add(time.Hour)},
		conversations.Event{Kind: conversations.OwnerRejected, At: start})
	if rejected.State != conversations.Failed || !rejected.Rejected || len(rejected.Held) != 0 {
		t.Errorf("rejected conversation = %+v", rejected)
	}
	bad := closing("nonsense")
	for _, tt := range []struct {
		name string
		conv conversations.Conversation
		kind conversations.Kind
		want error
	}{
		{"second close", ended(conversations.ClosedByPeer), conversations.ClosedByPeer, wire.ErrConversationClosed},
		{"crossing close", ended(conversations.ClosedByUs), conversations.ClosedByPeer, wire.ErrConversationClosed},
		{"message after close", ended(conversations.ClosedByPeer), conversations.Received, wire.ErrConversationClosed},
		{"our message after close", ended(conversations.ClosedByPeer), conversations.Sent, wire.ErrConversationClosed},
		{"message after rejection", rejected, conversations.Received, wire.ErrOwnerRejected},
		{"close after rejection", rejected, conversations.ClosedByPeer, wire.ErrOwnerRejected},
		{"our message after rejection", rejected, conversations.Sent, wire.ErrConversationClosed},
	} {
		if _, err := tt.conv.Next(conversations.Event{Kind: tt.kind, At: start, Payload: bad}, idle); !errors.Is(err, tt.want) {
			t.Errorf("%s with a bad status: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestDeliveryFailed(t *testing.T) {
	failed := after(t, sent(start), conversations.Event{Kind: conversations.DeliveryFailed, At: start})
	if failed.State != conversations.Failed {
		t.Errorf("state = %s, want failed", failed.State)
	}
	done := after(t, sent(start),
		conversations.Event{Kind: conversations.ClosedByUs, At: start, Payload: closing("completed")},
		conversations.Event{Kind: conversations.DeliveryFailed, At: start})
	if done.State != conversations.Completed {
		t.Errorf("state of an ended conversation = %s, want completed", done.State)
	}
}

// TestTerminalIsFinal checks that no sequence of events leaves a state that has ended, changes a conversation through a
// refusal, or writes to a copy that another caller holds.
func TestTerminalIsFinal(t *testing.T) {
	kinds := rapid.IntRange(int(conversations.Received), int(conversations.DeliveryFailed))
	statuses := rapid.SampledFrom([]string{"completed", "failed", "open", ""})
	rapid.Check(t, func(t *rapid.T) {
		var c conversations.Conversation
		now := start
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30*3600).Draw(t, "pause")) * time.Second)
			e := conversations.Event{
				Kind: conversations.Kind(kinds.Draw(t, "kind")), At: now, Intent: wire.Schedule,
				Payload: closing(statuses.Draw(t, "status")),
				Until:   now.Add(time.Duration(rapid.IntRange(0, 7*24).Draw(t, "until")) * time.Hour),
			}
			before, held := c.StateAt(now, idle), slices.Clone(c.Held)
			next, err := c.Next(e, idle)
			if !slices.EqualFunc(held, c.Held, time.Time.Equal) {
				t.Fatalf("Next changed the conversation it was called on")
			}
			switch before {
			case conversations.Completed, conversations.Failed, conversations.Expired:
				if got := next.StateAt(now, idle); got != before {
					t.Fatalf("event %d led from %s to %s", e.Kind, before, got)
				}
			case conversations.Open:
				if next.Last.Before(c.Last) {
					t.Fatalf("the clock went back from %v to %v", c.Last, next.Last)
				}
			}
			if err != nil && (next.State != c.State || next.Last.After(now)) {
				t.Fatalf("a refusal changed the conversation")
			}
			c = next
		}
	})
}

// TestIdleOfItsOwn checks that the first message may set an idle time for its conversation, which overrides the
// default.
func TestIdleOfItsOwn(t *testing.T) {
	const idle, longer = 24 * time.Hour, 90 * 24 * time.Hour
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	c, err := conversations.Conversation{}.Next(conversations.Event{Kind: conversations.Received, At: at, Intent: "com.example.slow", Idle: longer}, idle)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Next(conversations.Event{Kind: conversations.Sent, At: at.Add(48 * time.Hour), Intent: "com.example.slow"}, idle); err != nil {
		t.Fatalf("a message after two days: %v", err)
	}
	for after, want := range map[time.Duration]conversations.State{longer: conversations.Open, longer + 48*time.Hour: conversations.Expired} {
		if got := c.StateAt(at.Add(after), idle); got != want {
			t.Errorf("after %v it is %s, want %s", after, got, want)
		}
	}
}

// TestUnreleased checks that a message that waited stays unreleased until our owner releases it, and that no message of
// the peer counts as released once the list of unreleased messages is full.
func TestUnreleased(t *testing.T) {
	c := after(t, received(start))
	next := func(c conversations.Conversation, e conversations.Event) conversations.Conversation {
		t.Helper()
		c, err := c.Next(e, idle)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i := range 100 {
		hold := conversations.Event{Kind: conversations.HoldOpened, At: start, Until: start.Add(time.Hour), ID: wire.MessageID(fmt.Sprintf("msg_%d", i))}
		c = next(c, hold)
		withdrawn, released := hold, hold
		withdrawn.Kind, released.Kind = conversations.HoldEnded, conversations.HoldEnded
		withdrawn.ID = ""
		for _, end := range []struct {
			event conversations.Event
			want  bool
		}{{withdrawn, false}, {released, i < 99}} {
			if got := next(c, end.event).IsReleased(hold.ID); got != end.want {
				t.Fatalf("message %d after %+v: released %v, want %v", i, end.event, got, end.want)
			}
		}
		if other := c.IsReleased("msg_other"); other != (i < 99) {
			t.Fatalf("after %d messages: another message is released: %v", i+1, other)
		}
	}
}
