package acl_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func conv(peer string, n int) store.ConvKey {
	return store.ConvKey{Peer: peer, ID: fmt.Sprintf("conv_%d", n)}
}

// charge fails the test where the meter does not answer as wanted.
func charge(t *testing.T, m *acl.Meter, c acl.Charge, now time.Time, want time.Duration) {
	t.Helper()
	if wait, ok := m.Charge(c, now); wait != want || ok != (want == 0) {
		t.Fatalf("Charge(%+v) at %v = %v, %v, want wait %v", c, now.Sub(start), wait, ok, want)
	}
}

func TestNewConversations(t *testing.T) {
	m := acl.NewMeter(acl.Rates{NewConversations: 10})
	for i := range 10 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", i), New: true}, start, 0)
	}
	eleventh := acl.Charge{Sender: "am_a", Conv: conv("am_a", 10), New: true}
	charge(t, m, eleventh, start, 360*time.Second)
	charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 3)}, start, 0)
	charge(t, m, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0), New: true}, start, 0)
	charge(t, m, eleventh, start.Add(359*time.Second), time.Second)
	charge(t, m, eleventh, start.Add(360*time.Second), 0)
}

func TestMessagesOfAConversation(t *testing.T) {
	m := acl.NewMeter(acl.Rates{Conversation: 60})
	for range 60 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0)}, start, 0)
	}
	charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0)}, start, 60*time.Second)
	charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 1)}, start, 0)
	charge(t, m, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0)}, start, 0) // the same id beside another peer
}

func TestTotal(t *testing.T) {
	m := acl.NewMeter(acl.Rates{Total: 100})
	for i := range 100 {
		sender := fmt.Sprintf("am_%d", i)
		charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, 0), Known: true}, start, 0)
	}
	charge(t, m, acl.Charge{Sender: "am_x", Conv: conv("am_x", 0), Known: true}, start, 36*time.Second)
}

// A stranger cannot starve known peers (AM-42).
func TestStrangersShareHalf(t *testing.T) {
	for _, total := range []int{2, 3, 100} {
		m := acl.NewMeter(acl.Rates{Total: total})
		strangers := 0
		for i := range total {
			sender := fmt.Sprintf("am_%d", i)
			if _, ok := m.Charge(acl.Charge{Sender: sender, Conv: conv(sender, 0)}, start); ok {
				strangers++
			}
		}
		if strangers != total/2 {
			t.Errorf("strangers got %d of %d, want %d", strangers, total, total/2)
		}
		for range total - strangers {
			charge(t, m, acl.Charge{Sender: "am_friend", Conv: conv("am_friend", 0), Known: true}, start, 0)
		}
	}
	if _, ok := acl.NewMeter(acl.Rates{Total: 1}).Charge(acl.Charge{Sender: "am_a"}, start); !ok {
		t.Error("with a total of one no stranger can ever ask to be approved")
	}
}

// A refused message costs nothing: not the buckets that would have served it (AM-41).
func TestAllOrNone(t *testing.T) {
	m := acl.NewMeter(acl.Rates{NewConversations: 1, Conversation: 2, Total: 4})
	charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), New: true, Known: true}, start, 0)
	for i := range 10 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 100+i), New: true, Known: true}, start, time.Hour)
	}
	charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), Known: true}, start, 0)
	for range 10 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), Known: true}, start, 30*time.Minute)
	}
	charge(t, m, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0), Known: true}, start, 0)
	charge(t, m, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0), Known: true}, start, 0)
	charge(t, m, acl.Charge{Sender: "am_c", Conv: conv("am_c", 0), Known: true}, start, 15*time.Minute)
}

func TestOffAndExempt(t *testing.T) {
	off := acl.NewMeter(acl.Rates{})
	exempt := acl.NewMeter(acl.Rates{NewConversations: 1, Conversation: 1, Total: 1}, "am_a")
	for range 1000 {
		c := acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), New: true}
		charge(t, off, c, start, 0)
		charge(t, exempt, c, start, 0)
	}
	charge(t, exempt, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0)}, start, 0)

	link := acl.NewMeter(acl.Rates{Total: 1}, "agentrelay:free", "agentrelay:den/owl")
	for range 10 {
		charge(t, link, acl.Charge{Sender: "agentrelay:free/owl"}, start, 0)
		charge(t, link, acl.Charge{Sender: "agentrelay:den/owl"}, start, 0)
	}
	charge(t, link, acl.Charge{Sender: "agentrelay:den/cat", Known: true}, start, 0)
	charge(t, link, acl.Charge{Sender: "agentrelay:den/cat", Known: true}, start, time.Hour)
}

// Whatever arrives, in any hour no limit is passed, and nobody known waits because of strangers.
func TestMeterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := acl.Rates{
			NewConversations: rapid.IntRange(1, 5).Draw(t, "new"),
			Conversation:     rapid.IntRange(1, 8).Draw(t, "conversation"),
			Total:            rapid.IntRange(2, 20).Draw(t, "total"),
		}
		m := acl.NewMeter(r)
		opened, said := map[string]int{}, map[store.ConvKey]int{}
		total, strangers := 0, 0
		for range rapid.IntRange(1, 100).Draw(t, "messages") { // all within one instant: the burst
			sender := rapid.SampledFrom([]string{"am_a", "am_b", "am_c"}).Draw(t, "sender")
			c := acl.Charge{
				Sender: sender, Conv: conv(sender, rapid.IntRange(0, 3).Draw(t, "conversation")),
				New: rapid.Bool().Draw(t, "new"), Known: sender == "am_c",
			}
			room := said[c.Conv] < r.Conversation && total < r.Total && (!c.New || opened[sender] < r.NewConversations) &&
				(c.Known || strangers < r.Total/2)
			wait, ok := m.Charge(c, start)
			if ok != room || ok != (wait == 0) {
				t.Fatalf("Charge(%+v) = %v, %v, want %v", c, wait, ok, room)
			}
			if !ok {
				continue
			}
			said[c.Conv]++
			total++
			if c.New {
				opened[sender]++
			}
			if !c.Known {
				strangers++
			}
		}
	})
}

// Buckets survive a restart (AM-44).
func TestMeterSnapshot(t *testing.T) {
	rates := acl.DefaultRates()
	m := acl.NewMeter(rates)
	for i := range 10 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", i), New: true}, start, 0)
	}
	data := m.Snapshot(start)
	after := start.Add(time.Minute)
	restarted := acl.NewMeter(rates)
	if err := restarted.Restore(data, after); err != nil {
		t.Fatal(err)
	}
	charge(t, restarted, acl.Charge{Sender: "am_a", Conv: conv("am_a", 10), New: true}, after, 300*time.Second)

	without := acl.NewMeter(acl.Rates{Total: 100})
	if err := without.Restore(data, after); err != nil {
		t.Fatal(err)
	}
	charge(t, without, acl.Charge{Sender: "am_a", Conv: conv("am_a", 10), New: true}, after, 0)
	if err := without.Restore([]byte(`{"total":7}`), after); err == nil {
		t.Error("Restore of a damaged snapshot = nil, want an error")
	}
}
