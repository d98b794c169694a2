package node_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// withCalendarFolder is scheduling with a folder to which agreed events are written.
func withCalendarFolder(t *testing.T, dir string, day time.Time, from, until int) func(*node.Config) {
	return func(cfg *node.Config) {
		scheduling(t, day, from, until, calendar.Limits{Accept: true, Strangers: true})(cfg)
		cfg.Agreed = calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records(), Writer: calendar.Folder{Path: dir}})
	}
}

// countFiles counts the .ics files in a folder.
func countFiles(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".ics") {
			n++
		}
	}
	return n
}

// countNotices counts the notices of a kind.
func countNotices(t *testing.T, m *meshtest.Member, kind string) (n int) {
	t.Helper()
	list, _, err := m.Notices.List(t.Context(), "", 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Kind == kind {
			n++
		}
	}
	return n
}

// agree makes chris propose coffee to sarah, who accepts, and waits until both have the event in their folders.
func agree(t *testing.T, chris, sarah *meshtest.Member, day time.Time, conv wire.ConversationID, seal owner.SealChoice, dirs ...string) {
	t.Helper()
	out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: coffee(t, day.Add(14*time.Hour)), Conv: conv, Seal: seal, Via: "owner"}
	mustSend(t, chris.Node, out, 30*time.Second)
	waitFor(t, "the event is agreed", func() bool {
		back := node.Outgoing{To: chris.ID(), Conv: out.Conv}
		return convState(t, chris.Store, out) == conversations.Completed && convState(t, sarah.Store, back) == conversations.Completed &&
			countFiles(dirs[0]) == 1 && countFiles(dirs[1]) == 1
	})
}

// TestCancelEvent (AM-87): if either side cancels an agreed event, it leaves both calendars, although the conversation
// in which it was agreed has ended. The other owner gets one notice that names the event.
func TestCancelEvent(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		name    string
		byOpen  bool // the opener of the conversation cancels
		seal    owner.SealChoice
		mode    acl.Mode // of the other side
		outlook []string // the canceller's intents that its own owner must approve
		holds   bool     // the other side's owner must approve a cancel
		agent   bool     // the owner's agent cancels
	}{
		{name: "by the proposer", byOpen: true, mode: acl.Open},
		{name: "by the acceptor", mode: acl.Open},
		{name: "by the agent of the acceptor", mode: acl.Open, agent: true},
		{name: "to an owner who asks about strangers", byOpen: true, mode: acl.Approval},
		{name: "to an owner with a list", mode: acl.Allowlist},
		{name: "sealed", byOpen: true, mode: acl.Open, seal: owner.Sealed},
		{name: "sealed, to an owner with a list", mode: acl.Allowlist, seal: owner.Sealed},
		{name: "to an owner with a list who wants to be asked", byOpen: true, mode: acl.Allowlist, holds: true},
		{name: "after the owner's own approval", byOpen: true, mode: acl.Open, outlook: []string{"*"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			day, mesh := workday(), meshtest.New(t)
			dirs := []string{t.TempDir(), t.TempDir()}
			cfgs := []func(*node.Config){withCalendarFolder(t, dirs[0], day, 12, 13), withCalendarFolder(t, dirs[1], day, 9, 12)}
			chris, sarah := mesh.Node("chris", cfgs[0]), mesh.Node("sarah", cfgs[1])
			agree(t, chris, sarah, day, "conv_coffee", c.seal, dirs...)
			from, to := chris, sarah
			cfgFrom, cfgTo := cfgs[0], cfgs[1]
			if !c.byOpen {
				from, to, cfgFrom, cfgTo = to, from, cfgTo, cfgFrom
			}
			to = mesh.Restart(to, func(cfg *node.Config) {
				cfgTo(cfg)
				cfg.Policy.Mode = c.mode
				if c.holds {
					cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Actions: []string{"cancel"}, Hold: acl.Always}}
				}
			})
			if _, err := to.Registrar().Register(t.Context(), ""); err != nil { // at its new address, before another node looks it up
				t.Fatal(err)
			}
			from = mesh.Restart(from, func(cfg *node.Config) { cfgFrom(cfg); cfg.Outbound.Approve = c.outlook })
			if _, err := from.Registrar().Register(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			events := agreedEvents(t, from)
			if len(events) != 1 {
				t.Fatalf("events = %+v", events)
			}
			if _, err := from.CancelEvent(t.Context(), owner.Cancellation{Event: "nothing-of-the-kind"}, 0); err == nil {
				t.Error("an unknown event was cancelled")
			}
			cancel, author := from.Call, "via owner"
			if c.agent {
				cancel, author = from.CallAgent, "via agent"
			}
			var sent owner.Sent
			event := owner.Cancellation{Event: strings.TrimPrefix(events[0].UID, calendar.UIDPrefix)[:6], Reason: "a fever", WaitSeconds: 30}
			if status := cancel("POST", "/calendar/cancel", event, &sent); status != http.StatusOK {
				t.Fatalf("cancel = %d", status)
			}
			if recent := from.Audit().Recent(1); c.outlook == nil && (len(recent) != 1 || recent[0].Note != author) {
				t.Errorf("audit log: %+v, want %q", recent, author)
			}
			if c.outlook != nil {
				if sent.State != owner.SendHeld || len(agreedEvents(t, from)) != 1 {
					t.Fatalf("before the owner approved: %+v, %d events", sent, len(agreedEvents(t, from)))
				}
				ask := theAsk(t, from)
				if _, err := from.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if c.holds {
				decide(t, to, theAsk(t, to), acl.Approve)
			}
			waitFor(t, "both calendars are empty", func() bool {
				return len(agreedEvents(t, from)) == 0 && len(agreedEvents(t, to)) == 0 && countFiles(dirs[0]) == 0 && countFiles(dirs[1]) == 0
			})
			if n := countNotices(t, to, notify.Cancelled); n != 1 || countNotices(t, from, notify.Cancelled) != 0 {
				t.Errorf("%d notices at the other side, %d at the side that cancelled", n, countNotices(t, from, notify.Cancelled))
			}
			if c.seal != "" {
				if said, _ := conversations.ReadContent(transcriptOf(t, from, to.ID(), sent.Conversation)[0]); !said.Sealed {
					t.Error("the cancellation of a sealed agreement is not sealed")
				}
			}
		})
	}
}

// TestCancelOfOthers: a peer cannot cancel an event that it did not agree to, whatever it names.
func TestCancelOfOthers(t *testing.T) {
	day, mesh := workday(), meshtest.New(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	chris, sarah := mesh.Node("chris", withCalendarFolder(t, dirs[0], day, 12, 13)), mesh.Node("sarah", withCalendarFolder(t, dirs[1], day, 9, 12))
	agree(t, chris, sarah, day, "conv_coffee", "", dirs...)
	mallory := mesh.Stranger("mallory")
	for _, conv := range []wire.ConversationID{"conv_coffee", "conv_other"} {
		for _, payload := range []string{
			`{"action":"cancel"}`, `{"action":"cancel","metadata":{"agreed_in":"conv_coffee"}}`, `{"action":"decline","metadata":{"agreed_in":"conv_coffee"}}`,
		} {
			d := mallory.Draft(sarah.ID(), wire.Schedule, payload)
			d.Conversation = conv
			must(t, meshtest.Post(t, sarah.URL, mallory.Sign(d)), http.StatusOK)
		}
	}
	// Messages of the peer about other things do not cancel it either.
	mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, `{"action":"cancel","metadata":{"agreed_in":"conv_coffee"}}`), 30*time.Second)
	mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Schedule, `{"action":"cancel","metadata":{"agreed_in":"conv_none"}}`), 30*time.Second)
	if len(agreedEvents(t, sarah)) != 1 || countNotices(t, sarah, notify.Cancelled) != 0 {
		t.Errorf("the event was cancelled: %d left, %d notices", len(agreedEvents(t, sarah)), countNotices(t, sarah, notify.Cancelled))
	}
}

// TestSealIsNoWayIn: until it is opened, a sealed message counts as a cancellation, which is admitted in every mode.
// If it turns out to be something else, it is refused.
func TestSealIsNoWayIn(t *testing.T) {
	day, mesh := workday(), meshtest.New(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	cfg := withCalendarFolder(t, dirs[1], day, 9, 12)
	chris, sarah := mesh.Node("chris", withCalendarFolder(t, dirs[0], day, 12, 13)), mesh.Node("sarah", cfg)
	agree(t, chris, sarah, day, "conv_coffee", owner.Sealed, dirs...)
	sarah = mesh.Restart(sarah, func(c *node.Config) { cfg(c); c.Policy.Mode = acl.Allowlist })
	if _, err := sarah.Registrar().Register(t.Context(), ""); err != nil { // at its new address
		t.Fatal(err)
	}
	chris = mesh.Restart(chris, withCalendarFolder(t, dirs[0], day, 12, 13)) // looks up the new address
	payload := coffee(t, day.Add(15*time.Hour)).With("metadata", wire.Obj(wire.Member{Key: "agreed_in", Value: wire.Text("conv_coffee")}))
	out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: payload, Seal: owner.Sealed, Via: "owner"}
	if sent, err := chris.Send(t.Context(), out, 30*time.Second); err != nil || sent.State != owner.SendFailed || sent.Status != http.StatusForbidden {
		t.Errorf("sent = %+v, %v, want refused", sent, err)
	}
	if items, _, err := sarah.Inbox(t.Context(), "", "", 10); err != nil || len(items) > 1 {
		t.Errorf("%d items, %v", len(items), err)
	}
}

// coffeePoster returns a function that posts a payload about an appointment, always in the same conversation.
func coffeePoster(t *testing.T, from *meshtest.Stranger, to *meshtest.Member) func(payload string, status int) {
	return func(payload string, status int) {
		t.Helper()
		d := from.Draft(to.ID(), wire.Schedule, payload)
		d.Conversation = "conv_coffee"
		must(t, meshtest.Post(t, to.URL, from.Sign(d)), status)
	}
}

// TestHeldDecline: a held decline after the accept leaves the event and the agreement alone until the owner decides.
// Then both are cancelled either way: rejecting the decline closes the conversation as failed, which cancels the
// agreement (AM-88). An answer of the owner is a decision too. If the peer takes the decline back, both remain.
func TestHeldDecline(t *testing.T) {
	for choice, by := range map[acl.Choice]conversations.Side{acl.Approve: conversations.Theirs, acl.Reject: conversations.Ours, "": "", "answer": conversations.Theirs} {
		day, mesh, dir := workday(), meshtest.New(t), t.TempDir()
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			withCalendarFolder(t, dir, day, 9, 12)(cfg)
			cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Actions: []string{"decline"}, Hold: acl.Always}}
		})
		chris := mesh.Stranger("chris")
		say := coffeePoster(t, chris, sarah)
		say(string(coffee(t, day.Add(14*time.Hour)).JSON()), http.StatusOK)
		say(`{"action":"decline"}`, http.StatusAccepted)
		if a := showConversation(t, sarah, "conv_coffee").Agreement; len(agreedEvents(t, sarah)) != 1 || a == nil || a.Cancelled != nil {
			t.Fatalf("the event or the agreement went before the owner decided: %+v", a)
		}
		if choice == "" {
			say(`{"action":"withdraw"}`, http.StatusOK)
			if a := showConversation(t, sarah, "conv_coffee").Agreement; len(agreedEvents(t, sarah)) != 1 || a.Cancelled != nil {
				t.Errorf("a decline that was withdrawn cancels: %+v", a)
			}
			say(`{"action":"decline"}`, http.StatusAccepted) // the agreement can still be declined
			by, choice = conversations.Theirs, acl.Approve
		}
		ask := theAsk(t, sarah)
		if choice == "answer" { // it releases the decline too
			body := map[string]any{"conversation": "conv_coffee", "payload": parsePayload(t, `{"action":"confirmed"}`), "wait_seconds": 0}
			if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
				t.Fatalf("answer: %d", status)
			}
		} else {
			decide(t, sarah, ask, choice)
		}
		if a := showConversation(t, sarah, "conv_coffee").Agreement; a.Cancelled == nil || a.Cancelled.By != by {
			t.Errorf("%s: the agreement is %+v, want cancelled by %s", choice, a, by)
		}
		tells := map[acl.Choice]int{acl.Approve: 1, acl.Reject: 0, "answer": 1}[choice]
		if n := len(agreedEvents(t, sarah)); n != 0 || countNotices(t, sarah, notify.Cancelled) != tells {
			t.Errorf("%s: %d events, %d notices, want none and %d", choice, n, countNotices(t, sarah, notify.Cancelled), tells)
		}
	}
}

// TestSecondThoughts: while the conversation is open, a decline after the accept cancels the event, another accepted
// proposal moves it, and a decline of such a proposal leaves it unchanged.
func TestSecondThoughts(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  []string
		hour  int // of the event that remains; 0 for none
		tells int
	}{
		{"declined after all", []string{`{"action":"decline"}`}, 0, 1},
		{"cancelled", []string{`{"action":"cancel","reason":"a fever"}`}, 0, 1},
		{"cancelled twice", []string{`{"action":"cancel"}`, `{"action":"cancel"}`}, 0, 1},
		{"moved", []string{"15"}, 15, 0},
		{"moved and cancelled", []string{"15", `{"action":"cancel"}`}, 0, 1},
		{"a move that the peer takes back", []string{"10", `{"action":"decline"}`}, 14, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			day, mesh := workday(), meshtest.New(t)
			dir := t.TempDir()
			sarah := mesh.Node("sarah", withCalendarFolder(t, dir, day, 9, 12))
			chris := mesh.Stranger("chris") // opens the conversation and never closes it
			say := func(payload string) {
				t.Helper()
				if len(payload) == 2 { // an hour
					hour, _ := time.ParseDuration(payload + "h")
					payload = string(coffee(t, day.Add(hour)).JSON())
				}
				d := chris.Draft(sarah.ID(), wire.Schedule, payload)
				d.Conversation = "conv_coffee"
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
			}
			say("14")
			waitFor(t, "the event is filed", func() bool { return countFiles(dir) == 1 })
			for _, payload := range c.then {
				say(payload)
			}
			events := agreedEvents(t, sarah)
			switch {
			case c.hour == 0 && len(events) != 0:
				t.Errorf("events = %+v, want none", events)
			case c.hour != 0 && (len(events) != 1 || !events[0].Start.Equal(day.Add(time.Duration(c.hour)*time.Hour))):
				t.Errorf("events = %+v, want one at %d", events, c.hour)
			}
			waitFor(t, "the folder follows", func() bool { return countFiles(dir) == len(events) })
			if n := countNotices(t, sarah, notify.Cancelled); n != c.tells {
				t.Errorf("%d notices, want %d", n, c.tells)
			}
		})
	}
}

// TestCancelWithAMoveThatWaits: a cancel also cancels the event if a move of it waits for the owner.
func TestCancelWithAMoveThatWaits(t *testing.T) {
	day, mesh, dir := workday(), meshtest.New(t), t.TempDir()
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		withCalendarFolder(t, dir, day, 9, 12)(cfg)
		cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Actions: []string{"counter"}, Hold: acl.Always}}
	})
	chris := mesh.Stranger("chris")
	say := coffeePoster(t, chris, sarah)
	proposal := coffee(t, day.Add(14*time.Hour))
	say(string(proposal.JSON()), http.StatusOK)
	say(string(proposal.With("action", wire.Text("counter")).JSON()), http.StatusAccepted)
	say(`{"action":"cancel"}`, http.StatusOK)
	if n := len(agreedEvents(t, sarah)); n != 0 || countNotices(t, sarah, notify.Cancelled) != 1 || len(pendingAsks(t, sarah)) != 0 {
		t.Errorf("%d events, %d notices, %d questions", n, countNotices(t, sarah, notify.Cancelled), len(pendingAsks(t, sarah)))
	}
}

// TestCancellationBeforeTheAgreement: the owner's decision about an earlier cancellation, or an answer to it, leaves a
// later agreement in the conversation alone.
func TestCancellationBeforeTheAgreement(t *testing.T) {
	for _, c := range []struct {
		name, cancel string
		decide       func(t *testing.T, sarah *meshtest.Member)
	}{
		{"the owner answers", `{"action":"cancel"}`, func(t *testing.T, sarah *meshtest.Member) { answerCoffee(t, sarah.Call) }},
		{"the agent answers", `{"action":"cancel"}`, func(t *testing.T, sarah *meshtest.Member) { answerCoffee(t, sarah.CallAgent) }},
		{"the owner approves", `{"action":"decline"}`, func(t *testing.T, sarah *meshtest.Member) {
			decide(t, sarah, theAsk(t, sarah), acl.Approve)
		}},
		{"the owner answers the held one", `{"action":"decline"}`, func(t *testing.T, sarah *meshtest.Member) {
			answerCoffee(t, sarah.Call)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			day, mesh, dir := workday(), meshtest.New(t), t.TempDir()
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				withCalendarFolder(t, dir, day, 9, 12)(cfg)
				cfg.Policy.Hold = []acl.HoldRule{
					{Intent: "mesh.schedule", Actions: []string{"decline"}, Hold: acl.Always},
					{Intent: "mesh.schedule", Actions: []string{"confirmed"}, Direction: acl.Out, Hold: acl.Always},
				}
				calendarHook := cfg.Routes[0].Handler
				cfg.Routes[0].Handler = handler(func(ctx context.Context, call hook.Call) (hook.Answer, error) {
					if call.Message.Payload.GetStr("action") != "cancel" {
						return calendarHook.Handle(ctx, call)
					}
					confirmed := parsePayload(t, `{"action":"confirmed"}`)
					return hook.Answer{Payload: &confirmed}, nil
				})
			})
			say := coffeePoster(t, mesh.Stranger("chris"), sarah)
			say(string(coffee(t, day.Add(14*time.Hour)).JSON()), http.StatusOK)
			say(c.cancel, http.StatusAccepted)
			say(string(coffee(t, day.Add(15*time.Hour)).JSON()), http.StatusOK)
			notices := countNotices(t, sarah, notify.Cancelled)
			c.decide(t, sarah)
			if a := showConversation(t, sarah, "conv_coffee").Agreement; a == nil || a.Cancelled != nil {
				t.Errorf("the agreement is %+v, want one in force", a)
			}
			if n := countNotices(t, sarah, notify.Cancelled); len(agreedEvents(t, sarah)) != 1 || n != notices {
				t.Errorf("%d events, want 1; %d notices, want %d", len(agreedEvents(t, sarah)), n, notices)
			}
		})
	}
}

// answerCoffee answers the message of the peer that waits, as the owner or as the agent.
func answerCoffee(t *testing.T, call func(method, path string, body, into any) int) {
	t.Helper()
	body := map[string]any{"conversation": "conv_coffee", "payload": parsePayload(t, `{"action":"noted"}`), "wait_seconds": 0}
	if status := call("POST", "/reply", body, nil); status != http.StatusOK {
		t.Errorf("answer: %d", status)
	}
}

// accepting is a configuration without a calendar whose hook accepts every proposal.
func accepting(t *testing.T, mode acl.Mode) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Policy.Mode = mode
		cfg.Routes = []node.Route{{Pattern: string(wire.Schedule), Name: "agent", Handler: handler(func(_ context.Context, call hook.Call) (hook.Answer, error) {
			if call.Message.Payload.GetStr("action") != "propose" {
				return hook.Answer{}, nil
			}
			accept := parsePayload(t, `{"action":"accept"}`)
			return hook.Answer{Payload: &accept}, nil
		})}}
	}
}

// TestCancelWithoutCalendar: an event that only a hook accepted can be cancelled in its conversation in every access
// mode, also if the owner has no calendar (AM-87).
func TestCancelWithoutCalendar(t *testing.T) {
	for _, mode := range []acl.Mode{acl.Approval, acl.Allowlist} {
		mesh := meshtest.New(t)
		sarah, chris := mesh.Node("sarah", accepting(t, acl.Open)), mesh.Stranger("chris")
		coffeePoster(t, chris, sarah)(string(coffee(t, workday().Add(14*time.Hour)).JSON()), http.StatusOK)
		sarah = mesh.Restart(sarah, accepting(t, mode))
		coffeePoster(t, chris, sarah)(`{"action":"cancel"}`, http.StatusOK)
		if a := showConversation(t, sarah, "conv_coffee").Agreement; a.Cancelled == nil || a.Cancelled.By != conversations.Theirs {
			t.Errorf("%s: the agreement is %+v, want cancelled", mode, a)
		}
	}
}

// TestFirstCancellationCounts: a later cancel of either side, in any conversation, does not change by whom and when an
// agreement was cancelled.
func TestFirstCancellationCounts(t *testing.T) {
	for _, then := range []struct{ conv, payload string }{
		{"conv_new", `{"action":"cancel","metadata":{"agreed_in":"conv_coffee"}}`},
		{"conv_coffee", `{"action":"cancel"}`},
	} {
		t.Run(then.conv, func(t *testing.T) {
			mesh := meshtest.New(t)
			sarah, chris := mesh.Node("sarah", accepting(t, acl.Open)), mesh.Stranger("chris")
			say := coffeePoster(t, chris, sarah)
			say(string(coffee(t, workday().Add(14*time.Hour)).JSON()), http.StatusOK)
			mustSend(t, sarah.Node, outgoing(t, chris.ID, wire.Schedule, `{"action":"cancel","metadata":{"agreed_in":"conv_coffee"}}`), 0)
			first := showConversation(t, sarah, "conv_coffee").Agreement.Cancelled
			if first == nil || first.By != conversations.Ours {
				t.Fatalf("cancelled: %+v", first)
			}
			d := chris.Draft(sarah.ID(), wire.Schedule, then.payload)
			d.Conversation = wire.ConversationID(then.conv)
			must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
			if now := showConversation(t, sarah, "conv_coffee").Agreement.Cancelled; *now != *first {
				t.Errorf("cancelled: %+v, want %+v", now, first)
			}
		})
	}
}
