package acl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

// queue is a queue of asks over a real store, with a resolver that writes an effect in the same unit as the decision.
type queue struct {
	*acl.Asks
	t       *testing.T
	store   store.Store
	resolve func(acl.Ask, acl.Decision) error // called before the unit; may be nil

	mu   sync.Mutex
	seen []acl.Decision
}

func newQueue(t *testing.T) *queue {
	q := &queue{t: t, store: openStore(t)}
	q.Asks = acl.NewAsks(q.store)
	q.Handle("message", q)
	return q
}

func (q *queue) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	if q.resolve != nil {
		if err := q.resolve(ask, d); err != nil {
			return err
		}
	}
	effect := store.Change{IfRev: store.Any, Record: store.Record{NS: "effects", Key: ask.ID, Body: []byte(d.Choice)}}
	if err := q.store.Records().Apply(ctx, append(d.Changes, effect), d.Now); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = append(q.seen, d)
	return nil
}

// open opens an ask about a message, and returns the error of the store.
func (q *queue) open(sender string, slot acl.Slot, now time.Time) (acl.Ask, error) {
	q.t.Helper()
	ask, changes := q.Open(acl.Ask{
		Kind: "message", Subject: sender, Conv: conv(sender, 0), Title: "a message", Hash: "hash of " + sender,
		Body: json.RawMessage(`{"payload":1}`), Created: now,
		Choices: []acl.Choice{acl.Approve, acl.ApproveAlways, acl.Reject, acl.Block},
	}, slot)
	return ask, q.store.Records().Apply(q.t.Context(), changes, now)
}

func (q *queue) mustOpen(sender string, now time.Time) acl.Ask {
	q.t.Helper()
	ask, err := q.open(sender, acl.SenderSlot(sender), now)
	if err != nil {
		q.t.Fatalf("open an ask about %s: %v", sender, err)
	}
	return ask
}

func TestOpen(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	got, err := q.Get(t.Context(), ask.ID, start)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ask, got); diff != "" {
		t.Errorf("ask as stored (-opened +got):\n%s", diff)
	}
	if got.State != acl.AskPending || !got.Expires.Equal(start.Add(7*24*time.Hour)) {
		t.Errorf("state %s, expires %v, want pending for a week", got.State, got.Expires)
	}
	if _, err := q.Get(t.Context(), "ask_none", start); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get of no ask: %v, want not found", err)
	}
}

func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		choice acl.Choice
		want   acl.AskState
	}{
		{acl.Approve, acl.AskApproved},
		{acl.ApproveAlways, acl.AskApproved},
		{acl.Reject, acl.AskRejected},
		{acl.Block, acl.AskRejected},
	} {
		t.Run(string(tt.choice), func(t *testing.T) {
			q := newQueue(t)
			ask := q.mustOpen("am_a", start)
			later := start.Add(time.Hour)
			got, err := q.Decide(t.Context(), ask.ID, ask.Hash, tt.choice, "cli", later)
			if err != nil {
				t.Fatal(err)
			}
			want := ask
			want.State, want.Choice, want.Decided, want.By = tt.want, tt.choice, later, "cli"
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decided ask (-want +got):\n%s", diff)
			}
			stored, err := q.Get(t.Context(), ask.ID, later)
			if diff := cmp.Diff(want, stored); err != nil || diff != "" {
				t.Errorf("stored ask: %v (-want +got):\n%s", err, diff)
			}
			if len(q.seen) != 1 || q.seen[0].Choice != tt.choice || !q.seen[0].Now.Equal(later) {
				t.Errorf("the resolver saw %+v", q.seen)
			}
			again, err := q.Decide(t.Context(), ask.ID, ask.Hash, tt.choice, "page", later)
			if !errors.Is(err, acl.ErrAskGone) || again.State != tt.want || again.By != "cli" {
				t.Errorf("second decision = %s by %s, %v, want gone", again.State, again.By, err)
			}
		})
	}
}

// TestDecideRefusals checks that an approval must name what the owner saw (AM-34, THREATS row 30), and the other
// refusals.
func TestDecideRefusals(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	other, changes := q.Open(acl.Ask{Kind: "nobody", Hash: "h", Created: start}, acl.Slot{})
	if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("the sender is blocked")
	for _, tt := range []struct {
		name, id, hash string
		choice         acl.Choice
		want           error
	}{
		{"edited meanwhile", ask.ID, "hash of something else", acl.Approve, acl.ErrHashMismatch},
		{"no hash", ask.ID, "", acl.Approve, acl.ErrHashMismatch},
		{"no such choice", ask.ID, ask.Hash, "maybe", acl.ErrChoice},
		{"choice not offered", other.ID, other.Hash, acl.Block, acl.ErrChoice},
		{"no such ask", "ask_0", ask.Hash, acl.Approve, store.ErrNotFound},
		{"resolver refuses", ask.ID, ask.Hash, acl.Approve, refused},
	} {
		q.resolve = func(acl.Ask, acl.Decision) error { return refused }
		if _, err := q.Decide(t.Context(), tt.id, tt.hash, tt.choice, "cli", start); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if got, err := q.Get(t.Context(), ask.ID, start); err != nil || got.State != acl.AskPending {
			t.Errorf("%s: the ask is %s, %v, want pending", tt.name, got.State, err)
		}
	}
	if _, err := q.Decide(t.Context(), other.ID, "h", acl.Approve, "cli", start); err == nil {
		t.Error("a kind without a resolver was decided")
	}
	if len(q.seen) != 0 {
		t.Errorf("the resolver took effect %d times", len(q.seen))
	}
}

// TestAskExpires checks that an ask expires to the second, whether or not a sweep has run (AM-33).
func TestAskExpires(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	for _, tt := range []struct {
		at   time.Time
		want acl.AskState
	}{
		{ask.Expires.Add(-time.Second), acl.AskPending},
		{ask.Expires, acl.AskExpired},
		{ask.Expires.Add(29 * 24 * time.Hour), acl.AskExpired},
	} {
		if got, err := q.Get(t.Context(), ask.ID, tt.at); err != nil || got.State != tt.want {
			t.Errorf("%v after opening: %s, %v, want %s", tt.at.Sub(start), got.State, err, tt.want)
		}
	}
	got, err := q.Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "cli", ask.Expires)
	if !errors.Is(err, acl.ErrAskGone) || got.State != acl.AskExpired {
		t.Errorf("approval after expiry = %s, %v, want expired and gone", got.State, err)
	}
	if _, err := q.Get(t.Context(), ask.ID, ask.Expires.Add(30*24*time.Hour)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("30 days after expiry: %v, want not found", err)
	}
}

// TestDecideOnce checks that of many concurrent decisions exactly one wins and has an effect.
func TestDecideOnce(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	const deciders = 8
	var ready, done sync.WaitGroup
	ready.Add(deciders)
	q.Handle("message", resolverFunc(func(ctx context.Context, ask acl.Ask, d acl.Decision) error {
		ready.Done() // all of them have read the ask before the first one writes
		ready.Wait()
		return q.Resolve(ctx, ask, d)
	}))
	results := make([]error, deciders)
	choices := []acl.Choice{acl.Approve, acl.Reject}
	for i := range deciders {
		done.Go(func() {
			_, results[i] = q.Decide(t.Context(), ask.ID, ask.Hash, choices[i%2], fmt.Sprint(i), start)
		})
	}
	done.Wait()
	winner := -1
	for i, err := range results {
		switch {
		case err == nil && winner < 0:
			winner = i
		case err == nil:
			t.Errorf("deciders %d and %d both won", winner, i)
		case !errors.Is(err, acl.ErrAskGone):
			t.Errorf("decider %d: %v, want gone", i, err)
		}
	}
	got, err := q.Get(t.Context(), ask.ID, start)
	if err != nil || winner < 0 || got.By != fmt.Sprint(winner) || got.Choice != choices[winner%2] || len(q.seen) != 1 {
		t.Errorf("decider %d won, the ask says %s by %s, %d effects, %v", winner, got.Choice, got.By, len(q.seen), err)
	}
}

type resolverFunc func(context.Context, acl.Ask, acl.Decision) error

func (f resolverFunc) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	return f(ctx, ask, d)
}

// TestDecideRetries checks that Decide tries again if a row beside the ask changed.
func TestDecideRetries(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	tries := 0
	q.resolve = func(acl.Ask, acl.Decision) error {
		if tries++; tries < 3 {
			return fmt.Errorf("conversation: %w", store.ErrConflict)
		}
		return nil
	}
	if got, err := q.Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "cli", start); err != nil || got.State != acl.AskApproved {
		t.Errorf("Decide = %s, %v, want approved", got.State, err)
	}
	stuck := q.mustOpen("am_b", start)
	q.resolve = func(acl.Ask, acl.Decision) error { return store.ErrConflict }
	if _, err := q.Decide(t.Context(), stuck.ID, stuck.Hash, acl.Approve, "cli", start); !errors.Is(err, store.ErrConflict) {
		t.Errorf("Decide against endless conflicts: %v, want a conflict", err)
	}
}

func anyAsk(acl.Ask) bool { return true }

func TestWithdraw(t *testing.T) {
	q := newQueue(t)
	ask, other := q.mustOpen("am_a", start), q.mustOpen("am_b", start)
	changes, err := q.Withdraw(t.Context(), ask.Conv, anyAsk, start)
	if err != nil || len(changes) == 0 {
		t.Fatalf("Withdraw = %v, %v, want changes", changes, err)
	}
	if changes, err := q.Withdraw(t.Context(), ask.Conv, func(acl.Ask) bool { return false }, start); len(changes) != 0 || err != nil {
		t.Errorf("withdrawal of none = %v, %v, want none", changes, err)
	}
	// The owner decides between the read and the unit, so the unit fails.
	if _, err := q.Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "cli", start); err != nil {
		t.Fatal(err)
	}
	if err := q.store.Records().Apply(t.Context(), changes, start); !errors.Is(err, store.ErrConflict) {
		t.Errorf("withdrawal after a decision: %v, want a conflict", err)
	}

	changes, err = q.Withdraw(t.Context(), other.Conv, func(a acl.Ask) bool { return a.ID == other.ID }, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
		t.Fatal(err)
	}
	got, err := q.Decide(t.Context(), other.ID, other.Hash, acl.Approve, "cli", start)
	if !errors.Is(err, acl.ErrAskGone) || got.State != acl.AskWithdrawn {
		t.Errorf("approval after a withdrawal = %s, %v, want withdrawn and gone", got.State, err)
	}
	for _, key := range []store.ConvKey{other.Conv, conv("am_nobody", 0)} {
		if changes, err := q.Withdraw(t.Context(), key, anyAsk, start); len(changes) != 0 || err != nil {
			t.Errorf("withdrawal of nothing in %v = %v, %v, want none", key, changes, err)
		}
	}
}

// TestForgetAsks checks that Forget removes decided asks as well, and frees the slots of pending asks.
func TestForgetAsks(t *testing.T) {
	q := newQueue(t)
	ask := q.mustOpen("am_a", start)
	if _, err := q.Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "cli", start); err != nil {
		t.Fatal(err)
	}
	pending := q.mustOpen("am_a", start)
	changes, err := q.Forget(t.Context(), pending.Conv, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{ask.ID, pending.ID} {
		if _, err := q.Get(t.Context(), id, start); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("ask after Forget: %v, want not found", err)
		}
	}
	q.mustOpen("am_a", start) // its slot is free
}

func TestAskList(t *testing.T) {
	q := newQueue(t)
	byState := map[acl.AskState]string{}
	byState[acl.AskExpired] = q.mustOpen("am_old", start.Add(-8*24*time.Hour)).ID
	approved := q.mustOpen("am_a", start)
	byState[acl.AskApproved] = approved.ID
	byState[acl.AskPending] = q.mustOpen("am_b", start.Add(time.Second)).ID
	if _, err := q.Decide(t.Context(), approved.ID, approved.Hash, acl.Approve, "cli", start); err != nil {
		t.Fatal(err)
	}
	now := start.Add(time.Minute)
	for state, id := range byState {
		got, next, err := q.List(t.Context(), acl.AskFilter{State: state}, "", 10, now)
		if err != nil || len(got) != 1 || got[0].ID != id || next != "" {
			t.Errorf("List of %s = %+v, %q, %v, want %s", state, got, next, err, id)
		}
	}
	got, _, err := q.List(t.Context(), acl.AskFilter{Subject: "am_b"}, "", 10, now)
	if err != nil || len(got) != 1 || got[0].ID != byState[acl.AskPending] {
		t.Errorf("List of am_b = %+v, %v", got, err)
	}
	got, _, err = q.List(t.Context(), acl.AskFilter{Subject: "am_b", State: acl.AskApproved}, "", 10, now)
	if err != nil || len(got) != 0 {
		t.Errorf("List of am_b, approved = %+v, %v, want none", got, err)
	}

	want := []string{byState[acl.AskExpired], byState[acl.AskApproved], byState[acl.AskPending]}
	for _, newest := range []bool{false, true} {
		var order []string
		for after := ""; ; {
			page, next, err := q.List(t.Context(), acl.AskFilter{Newest: newest}, after, 2, now)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page {
				order = append(order, a.ID)
			}
			if after = next; after == "" {
				break
			}
		}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("pages, newest first: %t (-want +got):\n%s", newest, diff)
		}
		slices.Reverse(want)
	}
}

func TestAskListReadsPastExpired(t *testing.T) {
	q := newQueue(t)
	for n := range 101 {
		q.mustOpen(fmt.Sprintf("am_old%d", n), start.Add(time.Duration(n)*time.Millisecond-8*24*time.Hour))
	}
	var want []string
	for n := range 3 {
		want = append(want, q.mustOpen(fmt.Sprintf("am_new%d", n), start.Add(time.Duration(n)*time.Second)).ID)
	}
	now := start.Add(time.Minute)
	first, next, err := q.List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 2, now)
	if err != nil || len(first) != 2 || first[0].ID != want[0] || first[1].ID != want[1] || next != want[1] {
		t.Fatalf("first page = %+v, %q, %v, want %v", first, next, err, want[:2])
	}
	last, next, err := q.List(t.Context(), acl.AskFilter{State: acl.AskPending}, next, 2, now)
	if err != nil || len(last) != 1 || last[0].ID != want[2] || next != "" {
		t.Errorf("last page = %+v, %q, %v, want %s", last, next, err, want[2])
	}
}
