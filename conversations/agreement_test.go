package conversations_test

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messageEvent returns the event of a mesh.schedule message with an id.
func messageEvent(t *testing.T, kind conversations.Kind, id wire.MessageID, text string) conversations.Event {
	t.Helper()
	p := payload(t, text)
	return conversations.Event{
		Kind: kind, At: start, Written: start, Intent: wire.Schedule, Payload: p, ID: id, Answers: conversations.AnswersIn(p),
	}
}

// eventAbout returns an event that concerns the message with an id.
func eventAbout(kind conversations.Kind, id wire.MessageID) conversations.Event {
	return conversations.Event{Kind: kind, At: start, Until: start.Add(time.Hour), ID: id, Answers: id, Written: start}
}

const (
	lunch      = `{"action":"propose","event":{"title":"Lunch","proposed_times":["2026-03-03T12:00:00Z","2026-03-04T12:00:00Z"],"duration":"1h"}}`
	atCafe     = `{"action":"counter","event":{"proposed_times":["2026-03-05T12:00:00Z"],"location":"Café"}}`
	agreeToIt  = `{"action":"accept"}`
	lunchTerms = "Lunch, 2026-03-05T12:00:00Z, 1h, Café"
)

// TestAgreement checks AM-88 step by step: what stands as the proposal, when an accept counts, and what ends it.
func TestAgreement(t *testing.T) {
	proposed := after(t, messageEvent(t, conversations.Sent, "msg_1", lunch), messageEvent(t, conversations.Received, "msg_2", atCafe))
	if p := proposed.Schedule.Proposal; p == nil || p.By != conversations.Theirs || p.Terms.String() != lunchTerms {
		t.Fatalf("a counter-proposal inherits what it leaves out: %+v", p)
	}
	next := func(c conversations.Conversation, events ...conversations.Event) conversations.Conversation {
		t.Helper()
		for _, e := range events {
			var err error
			if c, err = c.Next(e, idle); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	countered := next(proposed, messageEvent(t, conversations.Sent, "msg_3", atCafe), messageEvent(t, conversations.Replied, "msg_4", atCafe))
	if proposed.Schedule.Counters != 0 || countered.Schedule.Counters != 2 {
		t.Errorf("%d counters of ours before the first, %d after the second", proposed.Schedule.Counters, countered.Schedule.Counters)
	}
	accepted := next(proposed, messageEvent(t, conversations.Sent, "msg_3", `{"action":"accept","metadata":{"in_reply_to":"msg_2"}}`))
	if accepted.Schedule.Agreement != nil || accepted.Schedule.Accept == nil || accepted.Schedule.Accept.By != conversations.Ours {
		t.Errorf("before the answer to our accept: %+v, %+v", accepted.Schedule.Accept, accepted.Schedule.Agreement)
	}
	if c := next(accepted, eventAbout(conversations.AcceptCounts, "msg_other")); c.Schedule.Agreement != nil {
		t.Error("our accept counts by the answer to another message")
	}
	agreed := next(accepted, eventAbout(conversations.AcceptCounts, "msg_3"))
	if a := agreed.Schedule.Agreement; a == nil || a.String() != lunchTerms || a.AcceptedBy != conversations.Ours || agreed.Schedule.Accept != nil {
		t.Fatalf("after the answer to our accept: %+v", a)
	}
	for name, e := range map[string]conversations.Event{
		"declined":  messageEvent(t, conversations.Received, "msg_4", `{"action":"decline"}`),
		"countered": messageEvent(t, conversations.Received, "msg_4", `{"action":"counter","event":{"duration":"2h"}}`),
		"failed":    {Kind: conversations.DeliveryFailed, At: start},
	} {
		if c := next(accepted, e, eventAbout(conversations.AcceptCounts, "msg_3")); c.Schedule.Agreement != nil {
			t.Errorf("%s: our accept counts all the same", name)
		}
	}
	moved := next(accepted, messageEvent(t, conversations.Sent, "msg_4", lunch)) // the peer may have answered the accept before
	if c := next(moved, eventAbout(conversations.AcceptCounts, "msg_3")); c.Schedule.Agreement.String() != lunchTerms || c.Schedule.Proposal.Message != "msg_4" || c.Schedule.Proposal.Accepted {
		t.Errorf("an accept that we overtook with a proposal: %+v, and %+v stands", c.Schedule.Agreement, c.Schedule.Proposal)
	}
	for name, payload := range map[string]string{
		"countered": `{"action":"counter","event":{"duration":"2h"},"metadata":{"in_reply_to":"msg_3"}}`,
		"declined":  `{"action":"decline"}`,
	} {
		if c := next(moved, messageEvent(t, conversations.Received, "msg_5", payload), eventAbout(conversations.AcceptCounts, "msg_3")); c.Schedule.Agreement != nil {
			t.Errorf("%s: an accept that we overtook counts all the same", name)
		}
	}
	closed := next(accepted, conversations.Event{Kind: conversations.ClosedByPeer, At: start, Payload: closing("completed")})
	if c := next(closed, eventAbout(conversations.AcceptCounts, "msg_3")); c.Schedule.Agreement == nil || c.State != conversations.Completed {
		t.Error("a close that overtakes the answer to our accept undoes it")
	}

	for name, c := range map[string]struct {
		event conversations.Event
		by    conversations.Side
	}{
		"cancel":           {messageEvent(t, conversations.Received, "msg_4", `{"action":"cancel"}`), conversations.Theirs},
		"decline":          {messageEvent(t, conversations.Sent, "msg_4", `{"action":"decline"}`), conversations.Ours},
		"close failed":     {conversations.Event{Kind: conversations.ClosedByPeer, At: start, Payload: closing("failed")}, conversations.Theirs},
		"our close failed": {conversations.Event{Kind: conversations.ClosedByUs, At: start, Payload: closing("failed")}, conversations.Ours},
		"rejected":         {conversations.Event{Kind: conversations.OwnerRejected, At: start}, conversations.Ours},
	} {
		got := next(agreed, c.event)
		if got.Schedule.InForce() || got.Schedule.Agreement.Cancelled.By != c.by || got.Schedule.Agreement.Cancelled.At != start {
			t.Errorf("%s: %+v", name, got.Schedule.Agreement)
		}
		if !agreed.Schedule.InForce() {
			t.Fatalf("%s: changed a copy that somebody else holds", name)
		}
	}
	move := next(agreed, messageEvent(t, conversations.Received, "msg_4", `{"action":"counter","event":{"selected_time":"2026-03-06T12:00:00Z"}}`))
	if c := next(move, messageEvent(t, conversations.Sent, "msg_5", `{"action":"decline"}`)); !c.Schedule.InForce() || c.Schedule.Proposal != nil {
		t.Errorf("a move that was declined: %+v", c.Schedule.Agreement)
	}
	if c := next(agreed, messageEvent(t, conversations.Received, "msg_4", `{"action":"cancel","metadata":{"agreed_in":"conv_other"}}`)); !c.Schedule.InForce() {
		t.Error("a cancel of the agreement of another conversation cancels this one")
	}
	ownAccept := next(proposed, messageEvent(t, conversations.Received, "msg_3", `{"action":"accept","metadata":{"in_reply_to":"msg_2"}}`))
	if ownAccept = next(ownAccept, eventAbout(conversations.AcceptCounts, "msg_3")); ownAccept.Schedule.Agreement != nil {
		t.Error("the peer agrees with its own proposal")
	}
	if c := next(agreed, messageEvent(t, conversations.Received, "msg_4", `{"action":"accept","metadata":{"in_reply_to":"msg_1"}}`)); c.Schedule.Unclear != "msg_4" || !c.Schedule.InForce() {
		t.Error("an accept of an earlier proposal confirms what was agreed later")
	}
	other := messageEvent(t, conversations.Received, "msg_4", agreeToIt)
	other.Intent = wire.Negotiate
	if c := next(after(t, messageEvent(t, conversations.Sent, "msg_1", lunch)), other); c.Schedule.Accept != nil || c.Schedule.Unclear != "" {
		t.Error("an accept of another intent counts")
	}
}

// TestHeldCancel checks AM-88: a cancel that waits for our owner leaves the agreement in force, but ends a proposal
// that stands beside it, so that we cannot accept what the peer no longer has. Its release leaves a newer agreement
// alone.
func TestHeldCancel(t *testing.T) {
	at := func(minutes int, e conversations.Event) conversations.Event {
		e.At = start.Add(time.Duration(minutes) * time.Minute)
		return e
	}
	cancel := at(3, messageEvent(t, conversations.Received, "msg_4", `{"action":"cancel"}`))
	cancel.Waits = true
	held := after(t, messageEvent(t, conversations.Sent, "msg_1", lunch),
		messageEvent(t, conversations.Received, "msg_2", `{"action":"accept","selected_time":"2026-03-03T12:00:00Z","metadata":{"in_reply_to":"msg_1"}}`),
		at(1, eventAbout(conversations.AcceptCounts, "msg_2")), at(2, messageEvent(t, conversations.Received, "msg_3", atCafe)), cancel)
	if !held.Schedule.InForce() || held.Schedule.Proposal != nil {
		t.Fatalf("while the cancel waits: agreement %+v, proposal %+v; want only the agreement", held.Schedule.Agreement, held.Schedule.Proposal)
	}
	released := at(6, conversations.Event{Kind: conversations.HoldEnded, ID: "msg_4", Intent: wire.Schedule, Payload: cancel.Payload, Arrived: cancel.At})
	next := func(events ...conversations.Event) conversations.Conversation {
		t.Helper()
		c := held
		for _, e := range events {
			var err error
			if c, err = c.Next(e, idle); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	if _, err := held.Next(at(4, messageEvent(t, conversations.Sent, "msg_5", agreeToIt)), idle); err == nil {
		t.Error("our accept of the proposal that the peer took back is not refused")
	}
	if c := next(released); c.Schedule.InForce() {
		t.Error("after the release, the agreement is in force")
	}
	newer := next(at(4, messageEvent(t, conversations.Received, "msg_6", lunch)), at(4, messageEvent(t, conversations.Sent, "msg_7", `{"action":"accept","selected_time":"2026-03-04T12:00:00Z","metadata":{"in_reply_to":"msg_6"}}`)),
		at(5, eventAbout(conversations.AcceptCounts, "msg_7")), released)
	if a := newer.Schedule.Agreement; !newer.Schedule.InForce() || a.Time != "2026-03-04T12:00:00Z" {
		t.Errorf("after the release, the newer agreement is %+v, want it in force", a)
	}
}

// TestHeldAccept checks AM-88: a waiting accept is taken by the answer to it, by the next message if the peer said that
// its owner decides, or by a close as completed, and by nothing else.
func TestHeldAccept(t *testing.T) {
	sent := after(t, messageEvent(t, conversations.Received, "msg_1", lunch),
		messageEvent(t, conversations.Sent, "msg_2", `{"action":"accept","selected_time":"2026-03-03T12:00:00Z","metadata":{"in_reply_to":"msg_1"}}`))
	delivered, err := sent.Next(eventAbout(conversations.Delivered, "msg_2"), idle)
	if err != nil {
		t.Fatal(err)
	}
	held, err := delivered.Next(eventAbout(conversations.HeldByPeer, "msg_2"), idle)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][3]bool{
		`{"action":"received","metadata":{"in_reply_to":"msg_2"}}`: {false, true, true},
		`{"action":"received"}`: {false, false, true},
		`{"action":"received","metadata":{"in_reply_to":"msg_9"}}`:       {false, false, false},
		`{"action":"pending_approval","metadata":{"in_reply_to":"m_2"}}`: {false, false, false},
		`{"action":"close","status":"completed"}`:                        {false, true, true},
		`{"action":"close","status":"failed"}`:                           {false, false, false},
	} {
		got := [3]bool{}
		for i, c := range []conversations.Conversation{sent, delivered, held} {
			got[i] = c.FindAnsweredAccept(payload(t, text)) != nil
		}
		if got != want {
			t.Errorf("%s takes an accept that was sent, delivered, held: %v, want %v", text, got, want)
		}
	}

	// A counter of ours that crosses the peer's answer does not make the two sides disagree about the accept.
	overtake := func(c conversations.Conversation, then ...conversations.Event) conversations.Conversation {
		for _, e := range append([]conversations.Event{messageEvent(t, conversations.Sent, "msg_3", atCafe)}, then...) {
			if c, err = c.Next(e, idle); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	named := payload(t, `{"action":"received","metadata":{"in_reply_to":"msg_2"}}`)
	for name, c := range map[string]conversations.Conversation{
		"held":               overtake(held),
		"delivered":          overtake(delivered),
		"held afterwards":    overtake(sent, eventAbout(conversations.HeldByPeer, "msg_2")),
		"delivered meantime": overtake(sent, eventAbout(conversations.Delivered, "msg_2")),
	} {
		if a := c.FindAnsweredAccept(named); a == nil || a.Message != "msg_2" {
			t.Errorf("%s: the answer to an overtaken accept takes %+v", name, a)
		}
		if a := c.FindAnsweredAccept(payload(t, `{"action":"received"}`)); a != nil {
			t.Errorf("%s: an answer that names no message takes the overtaken accept", name)
		}
	}
	if a := overtake(sent).FindAnsweredAccept(named); a != nil {
		t.Errorf("an answer takes the overtaken accept %+v, which the peer does not have", a)
	}
}

// TestCoarseClocks checks that a peer may date its messages in whole seconds or milliseconds.
func TestCoarseClocks(t *testing.T) {
	at := start.Add(400*time.Millisecond + 300*time.Microsecond)
	for written, want := range map[time.Time]bool{
		start: true, start.Add(400 * time.Millisecond): true, start.Add(500 * time.Millisecond): true,
		start.Add(-time.Second): false, start.Add(399 * time.Millisecond): false, start.Add(400*time.Millisecond + time.Microsecond): false,
	} {
		c := after(t, messageEvent(t, conversations.Sent, "msg_1", `{"action":"propose","event":{"proposed_times":["2026-03-03"]}}`))
		delivered := eventAbout(conversations.Delivered, "msg_1")
		delivered.Written = at
		c, err := c.Next(delivered, idle)
		if err != nil {
			t.Fatal(err)
		}
		accept := messageEvent(t, conversations.Received, "msg_2", agreeToIt)
		accept.Written = written
		if c, err = c.Next(accept, idle); err != nil || (c.Schedule.Accept != nil) != want || (c.Schedule.Unclear == "") != want {
			t.Errorf("an accept written at %v: %+v, unclear %q, %v; want it to belong: %v", written.Sub(start), c.Schedule.Accept, c.Schedule.Unclear, err, want)
		}
	}
}

// TestHeldCancellation: while a cancel or a decline of an agreed event waits for our owner, the agreement stays. A held
// cancel of a proposal ends it at once, and so does any message about an agreement that is not an event.
func TestHeldCancellation(t *testing.T) {
	proposed := after(t, messageEvent(t, conversations.Received, "msg_1", lunch))
	agreed := after(t, messageEvent(t, conversations.Received, "msg_1", atCafe), messageEvent(t, conversations.Replied, "msg_2", `{"action":"accept","metadata":{"in_reply_to":"msg_1"}}`),
		eventAbout(conversations.AcceptCounts, "msg_2"))
	of := func(e conversations.Event) conversations.Event {
		e.Intent = wire.Negotiate
		return e
	}
	deal := after(t, of(messageEvent(t, conversations.Received, "msg_1", `{"action":"propose","terms":{"description":"A boat","price":"1000 EUR"}}`)),
		of(messageEvent(t, conversations.Replied, "msg_2", `{"action":"accept","metadata":{"in_reply_to":"msg_1"}}`)), eventAbout(conversations.AcceptCounts, "msg_2"))
	if !agreed.Schedule.InForce() || !deal.Negotiate.InForce() {
		t.Fatalf("no agreement: %+v, %+v", agreed.Schedule, deal.Negotiate)
	}
	for _, action := range []string{"cancel", "decline", "withdraw"} {
		e := messageEvent(t, conversations.Received, "msg_3", `{"action":"`+action+`"}`)
		e.Waits = true
		c, err := proposed.Next(e, idle)
		if err != nil || c.Schedule.Proposal != nil {
			t.Errorf("a held %s leaves the proposal: %+v, %v", action, c.Schedule.Proposal, err)
		}
		if c, err = agreed.Next(e, idle); err != nil || c.Schedule.InForce() != (action != "withdraw") {
			t.Errorf("a held %s of an event: the agreement is %+v, %v", action, c.Schedule.Agreement, err)
		}
		e.Intent = wire.Negotiate
		if c, err = deal.Next(e, idle); err != nil || c.Negotiate.InForce() {
			t.Errorf("a held %s of a deal: the agreement is %+v, %v", action, c.Negotiate.Agreement, err)
		}
		if c, err = agreed.Next(e, idle); err != nil || !c.Schedule.InForce() {
			t.Errorf("a held %s of a deal: the event is %+v, %v", action, c.Schedule.Agreement, err)
		}
	}
}

// TestHeldTerms: a proposal or an accept that waits for our owner changes nothing before its release. Then it takes
// effect, unless a later message has made or ended a proposal.
func TestHeldTerms(t *testing.T) {
	step := func(c conversations.Conversation, e conversations.Event, minutes int) conversations.Conversation {
		t.Helper()
		e.At = start.Add(time.Duration(minutes) * time.Minute)
		c, err := c.Next(e, idle)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	hold := func(c conversations.Conversation, e conversations.Event, minutes int) (held conversations.Conversation, release conversations.Event) {
		t.Helper()
		e.Waits = true
		c = step(c, e, minutes)
		opened := eventAbout(conversations.HoldOpened, e.ID)
		release = e
		release.Kind, release.Waits, release.Until = conversations.HoldEnded, false, opened.Until
		release.Arrived = start.Add(time.Duration(minutes) * time.Minute)
		return step(c, opened, minutes), release
	}
	theirs := messageEvent(t, conversations.Received, "msg_1", lunch)
	counter := messageEvent(t, conversations.Received, "msg_2", atCafe)
	held, release := hold(after(t, theirs), counter, 1)
	if held.Schedule.Proposal.Message != "msg_1" || !answers(held, "msg_1") {
		t.Errorf("a held counter stands before its release: %+v", held.Schedule.Proposal)
	}
	if p := step(held, release, 3).Schedule.Proposal; p.Message != "msg_2" || p.Terms.String() != lunchTerms {
		t.Errorf("after the release of a counter: %+v", p)
	}
	expired := eventAbout(conversations.HoldEnded, "")
	if c := step(held, expired, 3); c.Schedule.Proposal.Message != "msg_1" {
		t.Errorf("after the end of the hold without a release: %+v", c.Schedule.Proposal)
	}
	if c := step(step(held, messageEvent(t, conversations.Sent, "msg_3", lunch), 2), release, 3); c.Schedule.Proposal.Message != "msg_3" {
		t.Errorf("a released counter replaces our later proposal: %+v", c.Schedule.Proposal)
	}
	ours := step(held, messageEvent(t, conversations.Sent, "msg_3", lunch), 2)
	if c := step(step(ours, messageEvent(t, conversations.Received, "msg_4", `{"action":"reject"}`), 3), release, 4); c.Schedule.Proposal != nil {
		t.Errorf("a counter is released after a later message ended all proposals: %+v", c.Schedule.Proposal)
	}

	held, release = hold(after(t, messageEvent(t, conversations.Sent, "msg_1", lunch)),
		messageEvent(t, conversations.Received, "msg_2", `{"action":"accept","selected_time":"2026-03-03T12:00:00Z","metadata":{"in_reply_to":"msg_1"}}`), 1)
	if held.Schedule.Accept != nil {
		t.Errorf("a held accept: %+v", held.Schedule.Accept)
	}
	if c := step(held, release, 2); c.Schedule.Accept == nil || c.Schedule.Accept.Message != "msg_2" {
		t.Errorf("after the release of an accept: %+v", c.Schedule.Accept)
	}

	held, _ = hold(after(t, messageEvent(t, conversations.Received, "msg_0", `{}`)), theirs, 1)
	if _, err := held.Next(messageEvent(t, conversations.Sent, "msg_3", agreeToIt), idle); err == nil {
		t.Error("we accept while only a held proposal could be meant")
	}

	// The hook asked for a hold.
	stood := step(after(t, theirs), eventAbout(conversations.HoldOpened, "msg_1"), 1)
	accept := messageEvent(t, conversations.Replied, "msg_3", `{"action":"accept","selected_time":"2026-03-03T12:00:00Z"}`)
	accept.Answers = "msg_1"
	if _, err := stood.Next(accept, idle); err == nil {
		t.Error("we accept a proposal that stands without a release")
	}
	if c := step(step(stood, eventAbout(conversations.HoldEnded, "msg_1"), 2), accept, 3); c.Schedule.Accept == nil {
		t.Errorf("after the release of a proposal that stood before: %+v", c.Schedule.Proposal)
	}
}

// answers reports whether an accept of ours would answer the message.
func answers(c conversations.Conversation, id wire.MessageID) bool {
	about, ok := c.Matter("accept", wire.Schedule, "")
	return ok && about.Message == id
}

// TestTakenBackByName (AM-96): a cancel or a decline that names the agreement ends it, although a later proposal stands, and
// leaves that proposal. A decline that names nothing and may be older than our later proposal ends neither.
func TestTakenBackByName(t *testing.T) {
	const move = `{"action":"counter","event":{"selected_time":"2026-03-06T12:00:00Z"}}`
	accept := messageEvent(t, conversations.Received, "msg_2", `{"action":"accept"}`)
	accept.Answers, accept.Written = "msg_1", start.Add(time.Second)
	agreed := after(t, messageEvent(t, conversations.Sent, "msg_1", atCafe), accept, eventAbout(conversations.AcceptCounts, "msg_2"))
	ours, err := agreed.Next(messageEvent(t, conversations.Replied, "msg_3", move), idle)
	if err != nil || !ours.Schedule.InForce() || !ours.Schedule.Stands() {
		t.Fatalf("no later proposal: %+v, %v", ours.Schedule, err)
	}
	for _, tt := range []struct {
		name            string
		action          string
		answers         wire.MessageID
		written         time.Duration
		inForce, stands bool
		doubtful        bool
	}{
		{"names the accept", "decline", "msg_2", time.Minute, false, true, false},
		{"names the proposal", "cancel", "msg_1", time.Minute, false, true, false},
		{"is older than the accept", "decline", "msg_1", 0, true, true, false},
		{"names the later proposal", "decline", "msg_3", time.Minute, true, false, false},
		{"names nothing", "decline", "", time.Minute, true, true, true},
	} {
		e := messageEvent(t, conversations.Received, "msg_4", `{"action":"`+tt.action+`"}`)
		e.Answers, e.Written = tt.answers, start.Add(tt.written)
		c, err := ours.Next(e, idle)
		if d := c.Schedule; err != nil || d.InForce() != tt.inForce || d.Stands() != tt.stands || d.Agreement.Doubtful != tt.doubtful {
			t.Errorf("%s: in force %t, stands %t, doubtful %t, %v", tt.name, d.InForce(), d.Stands(), d.Agreement.Doubtful, err)
		}
	}
}
