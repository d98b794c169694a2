package mailbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAllMailboxes: a sender that fills one mailbox after another meets the bound of all mailboxes together, and
// mailboxes with little mail still take more.
func TestAllMailboxes(t *testing.T) { // AM-68
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for name, size := range map[string]int{"large messages": wire.MaxMessage, "small messages": 700} {
		t.Run(name, func(t *testing.T) {
			var counts Counts
			if err := counts.Load(now, func(func(string, Mail)) error { return nil }); err != nil {
				t.Fatal(err)
			}
			n := 0
			fill := func(box string) (kept int) {
				for from := range 10 {
					for counts.Admit(fmt.Sprint(n), Mail{Box: wire.AgentID(box), From: wire.AgentID(fmt.Sprint("am_", from)), Size: size, Created: now}, now) == nil {
						n++
						kept++
					}
				}
				return kept
			}
			large, small := 0, 0
			for i := range 2000 {
				switch kept := fill(fmt.Sprint("am_greedy", i)); {
				case kept*size > MaxMailBytes/2 || kept > MaxMail/2:
					large++
				case kept >= 10:
					small++
				}
			}
			if all, full := counts.Total(now); all.N > MaxAllMail || all.Size > MaxAllMailBytes || !full {
				t.Errorf("all mailboxes have %+v; full: %t", all, full)
			}
			if large == 0 || small < 8*large {
				t.Errorf("%d large mailboxes left room for %d small ones", large, small)
			}
			// After a week all of the mail has expired.
			if all, _ := counts.Total(now.Add(Life)); all != (Usage{}) || len(counts.boxes)+len(counts.shares)+len(counts.mails) != 0 {
				t.Errorf("a week later %+v are counted", all)
			}
		})
	}
}

// TestCallsAtAHalfFullRelay: once half of the relay is used, calls of different sources can still use half of a
// mailbox, and each source has one of the last places.
func TestCallsAtAHalfFullRelay(t *testing.T) { // AM-68
	var counts Counts
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	err := counts.Load(now, func(add func(string, Mail)) error {
		for i := range MaxAllMail/2 + 1 {
			add(fmt.Sprint("old", i), Mail{Box: "am_other", Created: now})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	call := func(source int, key string) error {
		return counts.Admit(key, Mail{Box: "am_alice", From: wire.AgentID(fmt.Sprint("a2a:", source)), Call: true, Created: now}, now)
	}
	for i := range MaxMail / 10 / 2 {
		if err := call(i, fmt.Sprint("call", i)); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if i > MaxMail/10/4 && call(i, "second") == nil {
			t.Fatalf("source %d has two of the last places", i)
		}
	}
	if call(1000, "last") == nil {
		t.Error("calls use more than half of the mailbox")
	}
}
