package thread

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// section5 is a second copy of the table of MESS section 5: who may set what.
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

// TestEveryTransition: for every state, code and role, what the table has is allowed, and everything else is refused
// and changes nothing (MESS-22).
func TestEveryTransition(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for _, from := range Codes() {
		for _, code := range Codes() {
			for name, r := range map[string]Role{"holder": AsHolder, "eligible": AsEligible, "requester": AsRequester, "stranger": 0} {
				th := &Thread{Ref: "r", Requester: "agent", Status: from, History: []Event{{}}}
				if from != Received {
					th.Holder = "bob"
				}
				var want bool
				switch {
				case name == "requester":
					want = slices.Contains(column(from, func(i int) string { return section5[i].requester }), string(code))
				case name == "eligible" && from == Received:
					want = code == Claimed || slices.Contains(WorkingCodes, code)
				case name == "holder" && from != Received:
					allowed := column(from, func(i int) string { return section5[i].holder })
					want = slices.Contains(allowed, string(code)) || from == code && !from.Terminal()
				}
				before := string(wire.MustMarshal(th))
				err := th.SetStatus(Status{Code: code, Message: "m"}, "bob", r, now)
				if (err == nil) != want {
					t.Errorf("%s sets %s on a thread that is %s: %v, want allowed %t", name, code, from, err, want)
				}
				if err != nil && string(wire.MustMarshal(th)) != before {
					t.Errorf("%s sets %s on %s: refused, and the thread changed", name, code, from)
				}
				if err == nil && from.Terminal() {
					t.Errorf("%s left %s", code, from)
				}
			}
		}
	}
}

// stub resolves from a fixed table.
type stub struct{}

func (stub) HasThread(ref string) bool                 { return ref == "2026-01-31-001" }
func (stub) SuggestionThread(id string) (string, bool) { return "2026-01-31-001", id == "s" }
func (stub) QuestionThread(id string) (string, bool)   { return "2026-01-31-001", id == "q" }
func (stub) NewestWith(id string) (string, bool)       { return "2026-01-31-001", id == "id:with:colons" }
func (stub) Newest() (string, bool)                    { return "2026-01-31-001", true }

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"last", "home:last", "2026-01-31-001", "2026-01-31-001/claim-002-a", "../..", "home:home:s", "id:with:colons", "home:", "q", "%2e%2e/", "a/b", "home:2026-01-31-001/status-999999-x", "home:home:last", "HOME:last", "last ", "s\x00", "\u202elast", "2026-01-31-001/", "home::q"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, re string) {
		to, ok := Resolve(stub{}, re, "home")
		if ok && to.Ref != "2026-01-31-001" {
			t.Fatalf("resolve(%q) = %+v", re, to)
		}
		if bare, found := Resolve(stub{}, strings.TrimPrefix(re, "home:"), "home"); ok && !found && !strings.HasPrefix(re, "home:home:") {
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
			r := Role(s>>4) & (AsRequester | AsHolder | AsEligible | AsOwner)
			if th.Holder == "" {
				r &^= AsHolder
			}
			var err error
			switch s % 24 {
			case 16:
				err = th.Respond("bob", r, s&64 != 0, now)
			case 17:
				err = th.Answer("", "agent", r, now)
			case 18:
				err = th.Confirm(s&64 != 0, "", "agent", r, now)
			case 19:
				err = th.Cancel("", "agent", now)
			case 20:
				th.Expire(now)
			case 21:
				err = th.Supersede([]string{"x"}, "replace", now)
			case 22:
				th.Unpark(now)
			case 23:
				if th.IsClaimable() {
					th.Park(ParkedPeer, now)
				}
			default:
				err = th.SetStatus(Status{Code: Codes()[s%16], Questions: []Question{{ID: "q"}}}, "bob", r, now)
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
