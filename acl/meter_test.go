package acl_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func conv(peer string, n int) store.ConvKey {
	return store.ConvKey{Peer: peer, ID: fmt.Sprintf("conv_%d", n)}
}

// sourcesOf returns the sources of a message from one of many networks.
func sourcesOf(i int) []rate.Source {
	return rate.AddrSources(netip.AddrFrom4([4]byte{byte(10 + i>>8), byte(i), 1, 1}))
}

// charge fails the test unless the meter returns the wanted wait.
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
	charge(t, m, acl.Charge{Sender: "am_b", Conv: conv("am_b", 0)}, start, 0) // the same id with another peer
}

func TestTotal(t *testing.T) {
	m := acl.NewMeter(acl.Rates{Total: 100})
	for i := range 100 {
		sender := fmt.Sprintf("am_%d", i)
		charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, 0), Known: true}, start, 0)
	}
	charge(t, m, acl.Charge{Sender: "am_x", Conv: conv("am_x", 0), Known: true}, start, 36*time.Second)
}

// TestStrangersShareHalf checks that strangers cannot use up the tokens of known peers: they get half of the total, and
// if each comes from a network of its own, two fifths more (AM-42, AM-97).
func TestStrangersShareHalf(t *testing.T) {
	for total, want := range map[int]int{2: 1, 3: 1, 100: 70} {
		m := acl.NewMeter(acl.Rates{Total: total})
		strangers := 0
		for i := range total {
			sender := fmt.Sprintf("am_%d", i)
			if _, ok := m.Charge(acl.Charge{Sender: sender, Conv: conv(sender, 0), Sources: sourcesOf(i)}, start); ok {
				strangers++
			}
		}
		if strangers != want {
			t.Errorf("strangers got %d of %d, want %d", strangers, total, want)
		}
		for range total - strangers {
			charge(t, m, acl.Charge{Sender: "am_friend", Conv: conv("am_friend", 0), Known: true}, start, 0)
		}
	}
	if _, ok := acl.NewMeter(acl.Rates{Total: 1}).Charge(acl.Charge{Sender: "am_a"}, start); !ok {
		t.Error("with a total of one no stranger can ever ask to be approved")
	}
}

// TestStrangersShareFairly checks that an attacker with 60 cards and 6 tokens at one address leaves fits for a newcomer
// from another network, both at once and after hours in which the attacker takes each token as soon as it comes back
// (AM-42, THREATS row 31).
func TestStrangersShareFairly(t *testing.T) {
	m := acl.NewMeter(acl.DefaultRates())
	attack := func(i int, now time.Time) bool {
		sender := fmt.Sprintf("am_evil%d", i%60)
		sources := append(sourcesOf(0), rate.Source{Key: fmt.Sprintf("credential:%d", i%6), Width: 1})
		_, ok := m.Charge(acl.Charge{Sender: sender, Conv: conv(sender, i), New: true, Sources: sources}, now)
		return ok
	}
	served := 0
	for i := range 600 {
		if attack(i, start) {
			served++
		}
	}
	if served != 40 {
		t.Errorf("the attacker got %d messages in at once, want four fifths of what strangers have, 40", served)
	}
	charge(t, m, acl.Charge{Sender: "am_new", Conv: conv("am_new", 0), New: true, Sources: sourcesOf(1)}, start, 0)
	charge(t, m, acl.Charge{Sender: "am_mail", Conv: conv("am_mail", 0), New: true}, start, 0)
	for i := range 300 {
		now := start.Add(time.Duration(i+1) * 72 * time.Second)
		attack(i, now)
		if i%50 == 0 {
			sender := fmt.Sprintf("am_new%d", i)
			charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, 0), New: true, Sources: sourcesOf(2 + i)}, now, 0)
		}
	}
}

// TestReturn checks that a message that was refused for lack of a slot costs nothing (AM-41).
func TestReturn(t *testing.T) {
	m := acl.NewMeter(acl.Rates{NewConversations: 1, Conversation: 1, Total: 2}, "am_free")
	c := acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), New: true, Sources: sourcesOf(1)}
	for range 10 {
		charge(t, m, c, start, 0)
		m.Return(c, start)
	}
	m.Return(c, start) // never more than the message took
	m.Return(acl.Charge{Sender: "am_free"}, start)
	charge(t, m, c, start, 0)
	charge(t, m, c, start, time.Hour)
}

// TestAllOrNone checks that a refused message costs nothing, not even in the buckets that have tokens (AM-41).
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

// TestMeterProperties checks that, whatever messages arrive, no limit is exceeded in any hour, and no known peer waits
// because of strangers.
func TestMeterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := acl.Rates{
			NewConversations: rapid.IntRange(1, 5).Draw(t, "new"),
			Conversation:     rapid.IntRange(1, 8).Draw(t, "conversation"),
			Total:            rapid.IntRange(2, 20).Draw(t, "total"),
		}
		m := acl.NewMeter(r)
		opened, sent := map[string]int{}, map[store.ConvKey]int{}
		total, strangers := 0, 0
		for range rapid.IntRange(1, 100).Draw(t, "messages") { // all within one instant: the burst
			sender := rapid.SampledFrom([]string{"am_a", "am_b", "am_c"}).Draw(t, "sender")
			c := acl.Charge{
				Sender: sender, Conv: conv(sender, rapid.IntRange(0, 3).Draw(t, "conversation")),
				New: rapid.Bool().Draw(t, "new"), Known: sender == "am_c",
				Sources: rapid.SampledFrom([][]rate.Source{nil, sourcesOf(1), sourcesOf(2)}).Draw(t, "sources"),
			}
			fits := sent[c.Conv] < r.Conversation && total < r.Total && (!c.New || opened[sender] < r.NewConversations) &&
				(c.Known || strangers < r.Total/2+r.Total/2*2/5)
			wait, ok := m.Charge(c, start)
			if ok && !fits || c.Known && ok != fits || ok != (wait == 0) {
				t.Fatalf("Charge(%+v) = %v, %v, want %v", c, wait, ok, fits)
			}
			if ok && rapid.Bool().Draw(t, "no slot") { // costs nothing, like a message that was refused
				m.Return(c, start)
				continue
			}
			if !ok {
				continue
			}
			sent[c.Conv]++
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

// TestMeterSnapshot checks that buckets survive a restart (AM-44).
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

	for i := range 30 { // other cards at the same address continue with the buckets of the first
		sender := fmt.Sprintf("am_%d", i)
		charge(t, restarted, acl.Charge{Sender: sender, Conv: conv(sender, 0), New: true, Sources: sourcesOf(1)}, after, 0)
	}
	second := acl.NewMeter(rates)
	if err := second.Restore(restarted.Snapshot(after), after); err != nil {
		t.Fatal(err)
	}
	if _, ok := second.Charge(acl.Charge{Sender: "am_y", Conv: conv("am_y", 0), New: true, Sources: sourcesOf(1)}, after); ok {
		t.Error("after a restart a source that drew more than its share is served")
	}
	charge(t, second, acl.Charge{Sender: "am_z", Conv: conv("am_z", 0), New: true, Sources: sourcesOf(2)}, after, 0)

	old := acl.NewMeter(rates) // of a version in which strangers had one bucket
	if err := old.Restore(fmt.Appendf(nil, `{"strangers":{"":%d},"total":{"":%[1]d}}`, after.Add(time.Hour).UnixMilli()), after); err != nil {
		t.Fatal(err)
	}
	if _, ok := old.Charge(acl.Charge{Sender: "am_y", Known: true}, after); ok {
		t.Error("the total of an old snapshot is not restored")
	}

	without := acl.NewMeter(acl.Rates{Total: 100})
	if err := without.Restore(data, after); err != nil {
		t.Fatal(err)
	}
	charge(t, without, acl.Charge{Sender: "am_a", Conv: conv("am_a", 10), New: true}, after, 0)
	if err := without.Restore([]byte(`{"total":7}`), after); err == nil {
		t.Error("Restore of a damaged snapshot = nil, want an error")
	}
}

// TestTokenContexts checks that a caller with a token of the owner has a limit of its own, and takes nothing from others
// (AM-97).
func TestTokenContexts(t *testing.T) {
	m := acl.NewMeter(acl.DefaultRates())
	for _, sender := range []string{"a2a:ci/client", "a2a:home/client"} {
		for i := range 100 {
			charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, i), New: true, Token: true, Sources: sourcesOf(1)}, start, 0)
		}
		charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, 100), New: true, Token: true, Sources: sourcesOf(1)}, start, 36*time.Second)
		charge(t, m, acl.Charge{Sender: sender, Conv: conv(sender, 0), Token: true, Sources: sourcesOf(1)}, start, 0)
	}
	for i := range 40 {
		charge(t, m, acl.Charge{Sender: "am_a", Conv: conv("am_a", 0), New: i == 0, Sources: sourcesOf(1)}, start, 0)
	}
}
