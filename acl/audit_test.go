package acl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/store"
)

func newAudit(t *testing.T, s store.Store, cfg acl.AuditConfig) *acl.Audit {
	t.Helper()
	return acl.NewAudit(s.Records(), cfg)
}

// export returns the log as the owner exports it.
func export(t *testing.T, a *acl.Audit) []byte {
	t.Helper()
	var out bytes.Buffer
	for after := uint64(0); ; {
		list, next, err := a.List(t.Context(), acl.AuditFilter{}, after, 100, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(append(line, '\n'))
		}
		if after = next; after == 0 {
			return out.Bytes()
		}
	}
}

// TestAuditStandsWithItsDecision checks that an entry is stored if and only if the unit of its subject is applied.
func TestAuditStandsWithItsDecision(t *testing.T) {
	s := openStore(t)
	a, now := newAudit(t, s, acl.AuditConfig{}), time.Now()
	rule := acl.NewRules(s.Records(), acl.Policy{}).Change("am_a", acl.Blocked, now)
	entry := a.Change(acl.AuditEntry{At: now, Kind: acl.AuditRule, Subject: "am_a", By: "cli", Choice: acl.Block})
	if err := s.Records().Apply(t.Context(), []store.Change{rule, entry}, now); err != nil {
		t.Fatal(err)
	}
	rule.IfRev = store.Absent // refused, because the rule exists
	entry = a.Change(acl.AuditEntry{At: now, Kind: acl.AuditRule, Subject: "am_b", By: "cli"})
	if err := s.Records().Apply(t.Context(), []store.Change{rule, entry}, now); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("second unit: %v, want %v", err, store.ErrConflict)
	}
	// A process that starts later seals the entries that this one left.
	list, next, err := newAudit(t, s, acl.AuditConfig{}).List(t.Context(), acl.AuditFilter{}, 0, 10, now)
	if err != nil || next != 0 || len(list) != 1 {
		t.Fatalf("List = %v, %d, %v", list, next, err)
	}
	if e := list[0]; e.N != 1 || e.Subject != "am_a" || e.By != "cli" || e.Choice != acl.Block || e.Prev != strings.Repeat("0", 64) {
		t.Errorf("entry = %+v", e)
	}
}

// TestAuditChain checks that VerifyAudit finds every change to an exported log, except lines that are missing at its
// ends.
func TestAuditChain(t *testing.T) {
	a := newAudit(t, openStore(t), acl.AuditConfig{})
	for i := range 30 {
		e := acl.AuditEntry{At: time.Now(), Kind: acl.AuditDecided, Subject: fmt.Sprintf("am_%d", i%3), By: "page", Choice: acl.Approve}
		if err := a.Add(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	log := export(t, a)
	span, err := acl.VerifyAudit(bytes.NewReader(log))
	if err != nil || span.First != 1 || span.Last != 30 {
		t.Fatalf("VerifyAudit = %+v, %v", span, err)
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
	join := func(parts ...[][]byte) []byte { return bytes.Join(concat(parts), nil) }
	swapped := append([][]byte{}, lines...)
	swapped[3], swapped[4] = swapped[4], swapped[3]
	for name, bad := range map[string][]byte{
		"left out":     join(lines[:7], lines[8:]),
		"put in twice": join(lines[:7], lines[6:]),
		"swapped":      join(swapped),
		"decider":      bytes.Replace(log, []byte(`"by":"page"`), []byte(`"by":"cli"`), 1),
		"subject":      bytes.Replace(log, []byte(`"am_2"`), []byte(`"am_9"`), 1),
		"extra member": bytes.Replace(log, []byte(`{"n":4,`), []byte(`{"x":1,"n":4,`), 1),
		"two names":    bytes.Replace(log, []byte(`{"n":4,`), []byte(`{"n":4,"N":5,`), 1),
		"not JSON":     append([]byte("hello\n"), log...),
	} {
		if _, err := acl.VerifyAudit(bytes.NewReader(bad)); !errors.Is(err, acl.ErrAuditChain) {
			t.Errorf("%s: %v, want %v", name, err, acl.ErrAuditChain)
		}
	}
	for i := range log { // flip a bit in each byte
		bad := bytes.Clone(log)
		bad[i] ^= 1
		got, err := acl.VerifyAudit(bytes.NewReader(bad))
		if err == nil && got == span {
			t.Fatalf("byte %d (%q) was changed, and VerifyAudit did not notice", i, log[max(0, i-20):i+1])
		}
		if i > 2000 {
			break
		}
	}
	if _, err := acl.VerifyAudit(strings.NewReader("{}\n")); !errors.Is(err, acl.ErrAuditChain) || !goldentest.Refuses(t, "no number", err) {
		t.Errorf("an entry without a number: %v", err)
	}
	short, err := acl.VerifyAudit(bytes.NewReader(join(lines[5:20])))
	if err != nil || short.First != 6 || short.Last != 20 {
		t.Errorf("a stretch: %+v, %v", short, err)
	}
}

func concat(parts [][][]byte) [][]byte {
	var out [][]byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// TestAuditRotates checks that the oldest entries are removed by number and by age, and that the rest is still a chain.
func TestAuditRotates(t *testing.T) {
	s := openStore(t)
	a := newAudit(t, s, acl.AuditConfig{MaxEntries: 50, Keep: time.Hour})
	for range 12 {
		entries := make([]acl.AuditEntry, 30)
		for i := range entries {
			entries[i] = acl.AuditEntry{At: time.Now(), Kind: acl.AuditPause, By: "cli"}
		}
		if err := a.Add(t.Context(), entries...); err != nil {
			t.Fatal(err)
		}
		if err := a.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	span, err := acl.VerifyAudit(bytes.NewReader(export(t, a)))
	if err != nil || span.Last != 360 || span.Last-span.First >= 50 {
		t.Errorf("after 360 entries: %+v, %v, want at most 50 of them", span, err)
	}
	list, _, err := a.List(t.Context(), acl.AuditFilter{}, 0, 100, time.Now().Add(2*time.Hour))
	if err != nil || len(list) != 0 {
		t.Errorf("after the age: %d entries, %v", len(list), err)
	}
}

// TestAuditTwoProcesses checks that two processes that seal one log produce one chain.
func TestAuditTwoProcesses(t *testing.T) {
	s := openStore(t)
	done := make(chan error, 2)
	for range 2 {
		go func() {
			a := acl.NewAudit(s.Records(), acl.AuditConfig{})
			for range 40 {
				if err := errors.Join(a.Add(t.Context(), acl.AuditEntry{At: time.Now(), Kind: acl.AuditPause, By: "cli"}), a.Seal(t.Context())); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	span, err := acl.VerifyAudit(bytes.NewReader(export(t, newAudit(t, s, acl.AuditConfig{}))))
	if err != nil || span.First != 1 || span.Last != 80 {
		t.Errorf("VerifyAudit = %+v, %v", span, err)
	}
}

// TestAuditCounts checks that many refusals become few entries with sums, and do not displace an entry about a
// decision.
func TestAuditCounts(t *testing.T) {
	s := openStore(t)
	a := newAudit(t, s, acl.AuditConfig{})
	now := time.Now()
	if err := a.Add(t.Context(), acl.AuditEntry{At: now, Kind: acl.AuditDecided, Subject: "am_x", By: "cli"}); err != nil {
		t.Fatal(err)
	}
	const strangers, each = 5000, 4
	for i := range strangers * each {
		a.Count(acl.AuditEntry{At: now, Kind: acl.AuditRefused, Subject: fmt.Sprintf("am_%d", i%strangers), Rule: "access.mode=allowlist"})
	}
	if got := a.Recent(10); len(got) != 10 || got[0].Kind != acl.AuditRefused {
		t.Errorf("Recent = %v", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	a.Run(ctx) // stores what the bound allows, and returns
	list, next, err := a.List(t.Context(), acl.AuditFilter{}, 0, 1000, now)
	if err != nil || next != 0 {
		t.Fatal(next, err)
	}
	if len(list) > 61 {
		t.Errorf("%d entries for %d refusals, want at most 61", len(list), strangers*each)
	}
	if list[0].Kind != acl.AuditDecided {
		t.Errorf("first entry = %+v", list[0])
	}
	if many := list[1]; many.Note != "many" || many.Subject != "" || many.Count != (strangers-1000)*each {
		t.Errorf("the largest sum = %+v, want the %d of those beyond the bound", many, (strangers-1000)*each)
	}
}

// TestAuditFilters checks lists by kind, by subject and since a time, over several pages.
func TestAuditFilters(t *testing.T) {
	a := newAudit(t, openStore(t), acl.AuditConfig{})
	start := time.Date(2026, 2, 21, 12, 0, 0, 0, time.UTC)
	for i := range 20 {
		e := acl.AuditEntry{At: start.Add(time.Duration(i) * time.Minute), Kind: acl.AuditPause, Subject: "am_even", By: "cli"}
		if i%2 == 1 {
			e.Kind, e.Subject = acl.AuditResume, "am_odd"
		}
		if err := a.Add(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		f    acl.AuditFilter
		want int
	}{
		{"all", acl.AuditFilter{}, 20},
		{"kind", acl.AuditFilter{Kind: acl.AuditResume}, 10},
		{"subject", acl.AuditFilter{Subject: "am_even"}, 10},
		{"both, none", acl.AuditFilter{Subject: "am_even", Kind: acl.AuditResume}, 0},
		{"since", acl.AuditFilter{Since: start.Add(15 * time.Minute)}, 5},
	} {
		walk := func() (numbers []uint64) {
			for after := uint64(0); ; {
				list, next, err := a.List(t.Context(), c.f, after, 3, time.Now())
				if err != nil || len(list) > 3 {
					t.Fatal(len(list), err)
				}
				for _, e := range list {
					numbers = append(numbers, e.N)
				}
				if after = next; after == 0 {
					return numbers
				}
			}
		}
		got := walk()
		if len(got) != c.want || !slices.IsSorted(got) {
			t.Errorf("%s: entries %d, want %d", c.name, got, c.want)
		}
		c.f.Newest = true
		newest := walk()
		slices.Reverse(newest)
		if !slices.Equal(newest, got) {
			t.Errorf("%s, newest first: entries %d, want %d", c.name, newest, got)
		}
	}
}

func FuzzVerifyAudit(f *testing.F) {
	f.Add([]byte(`{"n":1,"at":"2026-02-21T12:00:00Z","kind":"pause","by":"cli","prev":"00","hash":"00"}`))
	f.Add([]byte("\n\n{}\n"))
	f.Add([]byte(`{"n":1e3,"hash":{}}`))
	f.Fuzz(func(t *testing.T, log []byte) {
		span, err := acl.VerifyAudit(bytes.NewReader(log))
		if err == nil && span.Last > 0 && len(span.Hash) != 64 {
			t.Errorf("VerifyAudit(%q) = %+v", log, span)
		}
	})
}
