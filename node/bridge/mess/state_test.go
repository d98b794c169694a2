package mess

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/wire"
)

// section5 is the table of MESS section 5, written down a second time: who may set what.
var section5 = []struct {
	states, holder, requester, exchange string
}{
	{"received", "", "cancelled", "waiting held expired superseded declined failed"},
	{"claimed in_progress", "in_progress waiting held retrying needs_input needs_confirmation completed partial failed declined delegated", "cancelled", "superseded"},
	{"waiting held retrying", "in_progress waiting held retrying needs_input needs_confirmation completed partial failed declined delegated", "cancelled", "superseded"},
	{"needs_input", "in_progress needs_input needs_confirmation held failed declined delegated", "cancelled", "superseded"},
	{"needs_confirmation", "held failed declined delegated", "cancelled", "superseded"},
	{"partial", "completed", "", ""},
	{"completed failed declined expired cancelled superseded delegated", "", "", ""},
}

func column(state Code, pick func(i int) string) []string {
	for i, row := range section5 {
		if slices.Contains(strings.Fields(row.states), string(state)) {
			return strings.Fields(pick(i))
		}
	}
	return nil
}

// Every state, code and role: what the table has is allowed, everything else is refused and changes nothing (MESS-22).
func TestEveryTransition(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for _, from := range Codes() {
		for _, code := range Codes() {
			for name, r := range map[string]role{"holder": asHolder, "eligible": asEligible, "requester": asRequester, "stranger": 0} {
				th := &Thread{Ref: "r", Requester: "agent", Status: from, History: []Event{{}}}
				if from != Received {
					th.Holder = "bob"
				}
				var want bool
				switch {
				case name == "requester":
					want = slices.Contains(column(from, func(i int) string { return section5[i].requester }), string(code))
				case name == "eligible" && from == Received:
					want = code == Claimed || slices.Contains(working, code)
				case name == "holder" && from != Received:
					allowed := column(from, func(i int) string { return section5[i].holder })
					want = slices.Contains(allowed, string(code)) || from == code && !from.Terminal()
				}
				before := string(encode(th))
				err := th.setStatus(Status{Code: code, Message: "m"}, "bob", r, now)
				if (err == nil) != want {
					t.Errorf("%s sets %s on a thread that is %s: %v, want allowed %t", name, code, from, err, want)
				}
				if err != nil && string(encode(th)) != before {
					t.Errorf("%s sets %s on %s: refused, and the thread changed", name, code, from)
				}
				if err == nil && from.Terminal() {
					t.Errorf("%s left %s", code, from)
				}
			}
		}
	}
}

// The owner acts for the executor, the requester and the exchange.
func TestOwnerActs(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{intent: x}")
	l.status("bob", a, "claimed")
	l.status(ownerID, a, "in_progress")
	if th := l.thread(a); th.Holder != "bob" || th.History[2].By != ownerID {
		t.Errorf("thread = %+v", th)
	}
	l.status(ownerID, a, "cancelled")
	l.want(a, Cancelled)
	b := l.request("agent", "{intent: x}")
	l.do(ownerID, "- response: {re: "+b+", content: [it is done]}")
	if th := l.want(b, Completed); th.Holder != ownerID {
		t.Errorf("holder = %q", th.Holder)
	}
	c := l.request("agent", "{intent: x}")
	l.status(ownerID, c, "held, reason: later")
	if th := l.want(c, Held); th.Holder != "" || th.Parked != parkedApproval {
		t.Errorf("parked = %+v", th)
	}
	l.refuse(404, "bob", "- status: {re: "+c+", code: claimed}")
	l.status(ownerID, c, "received")
	l.status("bob", c, "claimed")
}

// entryOf makes one of the calls that an actor may try.
func entryOf(rt *rapid.T, refs []string) string {
	ref := rapid.SampledFrom(refs).Draw(rt, "ref")
	switch rapid.SampledFrom([]string{"status", "status", "status", "response", "confirm", "answers", "accept", "cancel", "suggest", "answer"}).Draw(rt, "call") {
	case "status":
		code := rapid.SampledFrom(Codes()).Draw(rt, "code")
		return "- status: {re: '" + ref + "', code: " + string(code) + ", reason: merge, superseded_by: x, delegated_to: eve, action: a, " +
			"expired_at: '2026-01-31T10:00:00Z', completed: [], remaining: [], attempt: 1, max_attempts: 2, next_attempt: 5m, " +
			"waiting_for: {type: condition, condition: sun}, questions: [{field: f, question: q}, {field: g, question: q}]}"
	case "response":
		return "- response: {re: '" + ref + "', content: [done]}"
	case "confirm":
		return fmt.Sprintf("- reply: {re: '%s', confirm: %t}", ref, rapid.Bool().Draw(rt, "yes"))
	case "answers":
		return "- reply: {re: '" + ref + "', answers: {f: 1}}"
	case "answer":
		return "- answer: {re: '" + ref + "', id: f, value: 1}"
	case "accept":
		return fmt.Sprintf("- reply: {re: '%s', accept: %t}", ref, rapid.Bool().Draw(rt, "yes"))
	case "suggest":
		kind := rapid.SampledFrom([]string{"split", "delegate", "alternative", "defer"}).Draw(rt, "kind")
		proposed := map[string]string{"split": "[a, b]", "delegate": "eve", "alternative": "x", "defer": "1h"}[kind]
		return "- suggestion: {id: s, type: " + kind + ", re: '" + ref + "', proposed: " + proposed + "}"
	}
	return "- cancel: {re: '" + ref + "'}"
}

// No sequence of calls leaves a terminal state or loses a message: after each call every thread is where its history
// says, terminal ones are unchanged but for a late response, and every accepted entry is among the messages.
func TestModel(t *testing.T) {
	l := newLab(t)
	for _, id := range []string{"bob", "eve", "agent"} {
		l.executor(id)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := l.do("agent", "- request: {intent: a, id: a"+fmt.Sprint(l.index.length(allThreads))+
			rapid.SampledFrom([]string{"", ", confirm_before: true"}).Draw(rt, "confirm")+"}\n- request: {intent: b, priority: urgent}")
		refs := r.Created
		said := map[string]int{refs[0]: 1, refs[1]: 1}
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			before := map[string]*Thread{}
			for _, ref := range refs {
				before[ref] = l.thread(ref)
			}
			who := rapid.SampledFrom([]string{"agent", "bob", "eve", ownerID, "stranger"}).Draw(rt, "who")
			block := entryOf(rt, refs)
			if rapid.Bool().Draw(rt, "two") {
				block += "\n" + entryOf(rt, refs)
			}
			res, err := l.try(who, block)
			if statusOf(err) >= 500 {
				rt.Fatalf("%s sends %s: %v", who, block, err)
			}
			for _, ref := range refs {
				th := l.thread(ref)
				if b := before[ref]; b.Status.Terminal() && th.Status != b.Status {
					rt.Fatalf("%s sends %s: %s became %s", who, block, b.Status, th.Status)
				}
				if err != nil && th.Version != before[ref].Version {
					rt.Fatalf("%s sends %s: refused (%v), and the thread changed", who, block, err)
				}
				if last := th.History[len(th.History)-1].Action; last != string(th.Status) && !(last == "created" && th.Status == Received) {
					rt.Fatalf("%s is %s, its history ends with %s", ref, th.Status, last)
				}
				messages, err := l.Messages(l.t.Context(), ref)
				if err != nil || len(messages) != th.Serial || len(messages) < said[ref] {
					rt.Fatalf("%s has %d messages, serial %d, had %d, %v", ref, len(messages), th.Serial, said[ref], err)
				}
				said[ref] = len(messages)
			}
			refs = append(refs, res.Created...)
			if err == nil {
				checkAcks(rt, l, res)
			}
		}
	})
}

// checkAcks holds every ack to naming a message that is there.
func checkAcks(rt *rapid.T, l *lab, res Result) {
	for _, e := range res.Answers {
		ref := e.Body.GetStr("ref")
		m := messageForm.FindStringSubmatch(ref)
		if m == nil {
			continue
		}
		messages, err := l.Messages(l.t.Context(), m[1])
		if err != nil || !slices.ContainsFunc(messages, func(x Message) bool { return x.Ref == ref }) {
			rt.Fatalf("the ack names %s, which is not there (%v)", ref, err)
		}
	}
}

// fixed resolves by a table.
type fixed struct{}

func (fixed) thread(ref string) bool              { return ref == "2026-01-31-001" }
func (fixed) suggestion(id string) (string, bool) { return "2026-01-31-001", id == "s" }
func (fixed) question(id string) (string, bool)   { return "2026-01-31-001", id == "q" }
func (fixed) newestWith(id string) (string, bool) { return "2026-01-31-001", id == "id:with:colons" }
func (fixed) newest() (string, bool)              { return "2026-01-31-001", true }

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"last", "home:last", "2026-01-31-001", "2026-01-31-001/claim-002-a", "../..", "home:home:s", "id:with:colons", "home:", "q", "%2e%2e/", "a/b", "home:2026-01-31-001/status-999999-x", "home:home:last", "HOME:last", "last ", "s\x00", "\u202elast", "2026-01-31-001/", "home::q"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, re string) {
		to, ok := resolve(fixed{}, re, "home")
		if ok && to.ref != "2026-01-31-001" {
			t.Fatalf("resolve(%q) = %+v", re, to)
		}
		if bare, found := resolve(fixed{}, strings.TrimPrefix(re, "home:"), "home"); ok && !found && !strings.HasPrefix(re, "home:home:") {
			t.Fatalf("resolve(%q) = %+v, but without namespace %+v", re, to, bare)
		}
	})
}

// FuzzTransition walks a thread through any sequence of steps: it never panics and never leaves a terminal state.
func FuzzTransition(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{17, 33, 130, 200, 255, 1})
	f.Add([]byte{0x41, 0x27, 0x92, 0x52, 0x24, 0x12, 0x92, 0x13, 0x94, 0x81, 0x17}) // claim, ask, refuse, hold, work, complete, cancel
	f.Add([]byte{0x17, 0x16, 0x41, 0x28, 0x20, 0x48, 0x28, 0x2f, 0x14, 0x15, 0x93})
	f.Fuzz(func(t *testing.T, steps []byte) {
		now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
		th := &Thread{Ref: "r", Requester: "agent", Status: Received, Deadline: now.Add(100 * time.Hour), ConfirmBefore: len(steps)%2 == 0, History: []Event{{}}}
		for _, s := range steps {
			now = now.Add(time.Hour)
			before, events := th.Status, len(th.History)
			r := role(s>>4) & (asRequester | asHolder | asEligible | asOwner)
			if th.Holder == "" {
				r &^= asHolder
			}
			var err error
			switch s % 24 {
			case 16:
				_, err = th.respond("bob", r, s&64 != 0, now)
			case 17:
				err = th.answer("", "agent", r, now)
			case 18:
				err = th.confirm(s&64 != 0, "", "agent", r, now)
			case 19:
				err = th.cancel("", "agent", now)
			case 20:
				th.expire(now)
			case 21:
				err = th.supersede([]string{"x"}, "replace", now)
			case 22:
				th.unpark(now)
			case 23:
				if th.claimable() {
					th.park(parkedPeer, now)
				}
			default:
				err = th.setStatus(Status{Code: Codes()[s%16], Questions: []Question{{ID: "q"}}}, "bob", r, now)
			}
			if before.Terminal() && th.Status != before {
				t.Fatalf("step %d: %s became %s", s, before, th.Status)
			}
			if err != nil && (th.Status != before || len(th.History) != events) {
				t.Fatalf("step %d: refused with %v, and it changed", s, err)
			}
			if th.Status == Completed && th.ConfirmBefore && !th.Confirmed {
				t.Fatalf("step %d: completed without the confirmation", s)
			}
			if len(th.History) > events && th.Status != before && wire.FormatTime(th.Updated) != wire.FormatTime(now) {
				t.Fatalf("step %d: changed without a time", s)
			}
		}
	})
}
