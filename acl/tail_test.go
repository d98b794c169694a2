package acl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

// join lets a sender send text in a conversation of its own, whose id is the text.
func (q *queue) join(sender, text string, size int, now time.Time) (acl.Ask, error) {
	q.t.Helper()
	ask, changes, err := q.Join(q.t.Context(), acl.Ask{
		Kind: "message", Subject: sender, Conv: store.ConvKey{Peer: sender, ID: text}, Hash: "hash of " + text, Size: size,
		Body: json.RawMessage(`{}`), Created: now,
		Choices: []acl.Choice{acl.Approve, acl.ApproveConversation, acl.ApproveAlways, acl.Reject, acl.Block},
	}, acl.SenderSlot(sender))
	if err != nil {
		return acl.Ask{}, err
	}
	return ask, q.store.Records().Apply(q.t.Context(), changes, now)
}

func (q *queue) mustJoin(sender, text string) acl.Ask {
	q.t.Helper()
	ask, err := q.join(sender, text, 1, start)
	if err != nil {
		q.t.Fatalf("join %s: %v", text, err)
	}
	return ask
}

// first returns the only ask that a list shows as pending, and the conversations of the asks behind it.
func (q *queue) first(now time.Time) (acl.Ask, []string) {
	q.t.Helper()
	asks, _, err := q.List(q.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 100, now)
	if err != nil || len(asks) != 1 {
		q.t.Fatalf("%d asks wait, %v, want 1", len(asks), err)
	}
	return asks[0], q.behind(asks[0], now)
}

func (q *queue) behind(ask acl.Ask, now time.Time) (convs []string) {
	q.t.Helper()
	tail, err := q.Tail(q.t.Context(), ask, now)
	if err != nil || len(tail) != ask.Waiting {
		q.t.Fatalf("%d asks are behind, %v, want %d", len(tail), err, ask.Waiting)
	}
	for _, t := range tail {
		convs = append(convs, t.Conv.ID)
	}
	return convs
}

func (q *queue) apply(changes []store.Change, err error) {
	q.t.Helper()
	if err == nil {
		err = q.store.Records().Apply(q.t.Context(), changes, start)
	}
	if err != nil {
		q.t.Fatal(err)
	}
}

// TestJoin checks that all messages of a new contact are one question (AM-33).
func TestJoin(t *testing.T) {
	q := newQueue(t)
	a := q.mustJoin("am_a", "a")
	if a.Behind != "" {
		t.Errorf("the first ask is behind %s", a.Behind)
	}
	for _, text := range []string{"b", "c", "d"} {
		if ask := q.mustJoin("am_a", text); ask.Behind != a.ID {
			t.Errorf("ask %s is behind %q, want %s", text, ask.Behind, a.ID)
		}
	}
	if _, err := q.join("am_other", "x", 1, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	asks, _, err := q.List(t.Context(), acl.AskFilter{}, "", 100, start)
	if err != nil || len(asks) != 2 || asks[0].ID != a.ID {
		t.Fatalf("%d asks are listed, %v, want 2, %s first", len(asks), err, a.ID)
	}
	if diff := cmp.Diff([]string{"b", "c", "d"}, q.behind(asks[0], start)); diff != "" {
		t.Errorf("behind the first (-want +got):\n%s", diff)
	}
	if want := acl.Chain("hash of a", "hash of b", "hash of c", "hash of d"); asks[0].Hash != want || asks[0].OwnHash != "hash of a" {
		t.Errorf("hash = %s, own %s, want %s", asks[0].Hash, asks[0].OwnHash, want)
	}
	if each, _, err := q.List(t.Context(), acl.AskFilter{IncludeBehind: true}, "", 100, start); err != nil || len(each) != 5 {
		t.Errorf("%d asks in all, %v, want 5", len(each), err)
	}
}

func TestJoinIsBounded(t *testing.T) {
	q := newQueue(t)
	for i := range 16 {
		q.mustJoin("am_a", fmt.Sprint(i))
	}
	if _, err := q.join("am_a", "17", 1, start); !errors.Is(err, store.ErrQuota) {
		t.Errorf("17th: %v, want a quota error", err)
	}
	if _, err := q.join("am_b", "large", 60<<10, start); err != nil {
		t.Errorf("large first: %v", err)
	}
	if _, err := q.join("am_b", "fits", 4<<10, start); err != nil {
		t.Errorf("64 KiB in all: %v", err)
	}
	if _, err := q.join("am_b", "more", 1, start); !errors.Is(err, store.ErrQuota) {
		t.Errorf("a byte more: %v, want a quota error", err)
	}
	if _, err := q.join("am_c", "huge", 200<<10, start); err != nil {
		t.Errorf("the first may be as large as a message: %v", err)
	}
}

// TestDecideWhatWasShown checks that an approval applies only to what was shown. Asks that joined since stay, and
// become the next question (AM-34).
func TestDecideWhatWasShown(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Approve, acl.ApproveConversation, acl.ApproveAlways} {
		q := newQueue(t)
		q.mustJoin("am_a", "a")
		q.mustJoin("am_a", "b")
		shown, _ := q.first(start)
		q.mustJoin("am_a", "c")
		q.mustJoin("am_a", "d")
		got, err := q.Decide(t.Context(), shown.ID, shown.Hash, choice, "cli", start)
		if err != nil || got.State != acl.AskApproved || got.Waiting != 1 {
			t.Fatalf("%s: %s with %d behind, %v", choice, got.State, got.Waiting, err)
		}
		if behind := q.behind(got, start); !slices.Equal(behind, []string{"b"}) || len(q.seen[0].Tail) != 1 {
			t.Errorf("%s: decided with it: %v, the resolver saw %d", choice, behind, len(q.seen[0].Tail))
		}
		next, behind := q.first(start)
		if next.Conv.ID != "c" || !slices.Equal(behind, []string{"d"}) || next.Hash != acl.Chain("hash of c", "hash of d") {
			t.Errorf("%s: %s and %v wait, hash %s", choice, next.Conv.ID, behind, next.Hash)
		}
		if e := q.mustJoin("am_a", "e"); e.Behind != next.ID {
			t.Errorf("%s: what comes next is behind %q, want %s", choice, e.Behind, next.ID)
		}
		last, _ := q.first(start)
		if _, err := q.Decide(t.Context(), last.ID, last.Hash, choice, "cli", start); err != nil {
			t.Errorf("%s: decide the rest: %v", choice, err)
		}
		if f := q.mustJoin("am_a", "f"); f.Behind != "" {
			t.Errorf("%s: the slot is not free", choice)
		}
	}
}

// TestRejectAll checks that a rejection applies to the contact, so that no ask of it stays pending.
func TestRejectAll(t *testing.T) {
	q := newQueue(t)
	q.mustJoin("am_a", "a")
	shown, _ := q.first(start)
	q.mustJoin("am_a", "b")
	got, err := q.Decide(t.Context(), shown.ID, shown.Hash, acl.Reject, "cli", start)
	if err != nil || got.Waiting != 1 || len(q.seen[0].Tail) != 1 || q.seen[0].Tail[0].State != acl.AskRejected {
		t.Errorf("rejected with %d behind, %v", got.Waiting, err)
	}
	if pending, _, err := q.List(t.Context(), acl.AskFilter{State: acl.AskPending, IncludeBehind: true}, "", 9, start); err != nil || len(pending) != 0 {
		t.Errorf("%d asks wait, %v", len(pending), err)
	}
}

func TestDecideTailRefusals(t *testing.T) {
	q := newQueue(t)
	a := q.mustJoin("am_a", "a")
	b := q.mustJoin("am_a", "b")
	q.mustJoin("am_a", "c")
	for name, hash := range map[string]string{
		"one behind alone": b.Hash, "another order": acl.Chain("hash of b", "hash of a"), "one left out": acl.Chain("hash of a", "hash of c"), "none": "",
	} {
		if _, err := q.Decide(t.Context(), a.ID, hash, acl.Approve, "cli", start); !errors.Is(err, acl.ErrHashMismatch) {
			t.Errorf("%s: %v, want a mismatch", name, err)
		}
	}
	if _, err := q.Decide(t.Context(), b.ID, b.Hash, acl.Approve, "cli", start); !errors.Is(err, acl.ErrHashMismatch) {
		t.Errorf("by the id of one behind: %v, want a mismatch", err)
	}
	shown, _ := q.first(start)
	if got, err := q.Decide(t.Context(), b.ID, shown.Hash, acl.Approve, "cli", start); err != nil || got.ID != a.ID {
		t.Errorf("the whole by the id of one behind: %s, %v", got.ID, err)
	}
}

// TestWithdrawFromTail checks that an ask that its sender withdraws leaves the queue, and that the others stay in order
// (AM-36).
func TestWithdrawFromTail(t *testing.T) {
	q := newQueue(t)
	for _, text := range []string{"a", "b", "c", "d"} {
		q.mustJoin("am_a", text)
	}
	shown, _ := q.first(start)
	q.apply(q.Withdraw(t.Context(), store.ConvKey{Peer: "am_a", ID: "c"}, anyAsk, start))
	if _, err := q.Decide(t.Context(), shown.ID, shown.Hash, acl.Approve, "cli", start); !errors.Is(err, acl.ErrHashMismatch) {
		t.Errorf("approval of what was taken back since: %v, want a mismatch", err)
	}
	current, behind := q.first(start)
	if current.ID != shown.ID || !slices.Equal(behind, []string{"b", "d"}) {
		t.Errorf("%s and %v wait, want a, b, d", current.Conv.ID, behind)
	}
	q.apply(q.Withdraw(t.Context(), store.ConvKey{Peer: "am_a", ID: "a"}, anyAsk, start))
	next, behind := q.first(start)
	if next.Conv.ID != "b" || !slices.Equal(behind, []string{"d"}) || next.Hash != acl.Chain("hash of b", "hash of d") {
		t.Errorf("%s and %v wait, want b, d", next.Conv.ID, behind)
	}
	if _, err := q.Decide(t.Context(), next.ID, next.Hash, acl.Approve, "cli", start); err != nil {
		t.Error(err)
	}
	withdrawn, _, err := q.List(t.Context(), acl.AskFilter{State: acl.AskWithdrawn}, "", 10, start)
	if err != nil || len(withdrawn) != 2 {
		t.Errorf("%d asks are withdrawn, %v, want 2", len(withdrawn), err)
	}
}

func TestForgetFromTail(t *testing.T) {
	q := newQueue(t)
	for _, text := range []string{"a", "b", "c"} {
		q.mustJoin("am_a", text)
	}
	q.apply(q.Forget(t.Context(), store.ConvKey{Peer: "am_a", ID: "b"}, start))
	q.apply(q.Forget(t.Context(), store.ConvKey{Peer: "am_a", ID: "a"}, start))
	if ask, behind := q.first(start); ask.Conv.ID != "c" || len(behind) != 0 || ask.Hash != "hash of c" {
		t.Errorf("%s and %v wait, want c alone", ask.Conv.ID, behind)
	}
}

// TestTailExpires checks that asks behind the first expire with it.
func TestTailExpires(t *testing.T) {
	q := newQueue(t)
	a := q.mustJoin("am_a", "a")
	b, err := q.join("am_a", "b", 1, start.Add(24*time.Hour))
	if err != nil || !b.Expires.Equal(a.Expires) {
		t.Errorf("b expires %v, %v, want %v", b.Expires, err, a.Expires)
	}
	if c, err := q.join("am_a", "c", 1, a.Expires); err != nil || c.Behind != "" {
		t.Errorf("after the end: behind %q, %v, want a new question", c.Behind, err)
	}
}

// TestTailModel checks that, whatever asks join, are withdrawn, removed or decided, a sender has at most one question,
// its asks are in order of arrival, and its hash covers all of them.
func TestTailModel(t *testing.T) {
	q, runs := newQueue(t), 0
	rapid.Check(t, func(r *rapid.T) {
		runs++
		var want []string
		for i := range rapid.IntRange(1, 10).Draw(r, "steps") {
			pick := func() string { return rapid.SampledFrom(want).Draw(r, "which") }
			switch op := rapid.IntRange(0, 4).Draw(r, "op"); {
			case op <= 1 || len(want) == 0:
				text := fmt.Sprintf("m%d-%d", runs, i)
				q.mustJoin("am_a", text)
				want = append(want, text)
			case op == 2:
				text := pick()
				q.apply(q.Withdraw(t.Context(), store.ConvKey{Peer: "am_a", ID: text}, anyAsk, start))
				want = slices.DeleteFunc(want, func(s string) bool { return s == text })
			case op == 3:
				text := pick()
				q.apply(q.Forget(t.Context(), store.ConvKey{Peer: "am_a", ID: text}, start))
				want = slices.DeleteFunc(want, func(s string) bool { return s == text })
			default:
				n := rapid.IntRange(1, len(want)).Draw(r, "shown")
				var hashes []string
				for _, text := range want[:n] {
					hashes = append(hashes, "hash of "+text)
				}
				ask, _ := q.first(start)
				if _, err := q.Decide(t.Context(), ask.ID, acl.Chain(hashes...), acl.Approve, "cli", start); err != nil {
					r.Fatalf("decide %d of %v: %v", n, want, err)
				}
				want = want[n:]
			}
			if len(want) == 0 {
				continue
			}
			var hashes []string
			for _, text := range want {
				hashes = append(hashes, "hash of "+text)
			}
			ask, behind := q.first(start)
			if got := append([]string{ask.Conv.ID}, behind...); !slices.Equal(got, want) || ask.Hash != acl.Chain(hashes...) {
				r.Fatalf("%v wait, hash %s, want %v", got, ask.Hash, want)
			}
		}
		if len(want) > 0 {
			ask, _ := q.first(start)
			if _, err := q.Decide(t.Context(), ask.ID, ask.Hash, acl.Reject, "cli", start); err != nil {
				r.Fatal(err)
			}
		}
	})
}
