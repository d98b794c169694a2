package conversations_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// opening returns the event that opens a conversation now.
func opening() conversations.Event { return received(time.Now()) }

// TestDoDecidesAgain checks that a unit that loses against another unit is decided again on the new state. Only the
// committed attempt stores changes and runs Then. Each lost attempt runs Otherwise.
func TestDoDecidesAgain(t *testing.T) {
	b, s := openBook(t)
	ctx, k := t.Context(), key("am_a")
	var ran []string
	tries := 0
	err := b.Do(ctx, k, func(u *conversations.Unit) error {
		if tries++; tries <= 3 {
			commit(t, b, k, opening(), "msg_other")
		}
		if want := uint64(tries - 1); tries <= 3 && u.Conversation().Entries != want {
			t.Errorf("try %d sees %d entries, want %d", tries, u.Conversation().Entries, want)
		}
		u.Add(store.Change{Record: store.Record{NS: "test", Key: "once", Body: []byte("{}")}})
		u.Then(func() { ran = append(ran, "then") })
		u.Otherwise(func() { ran = append(ran, "otherwise") })
		u.Append(entry("msg_ours", u.Now, false))
		return u.Record(opening())
	})
	if err != nil || tries != 4 {
		t.Fatalf("Do = %v after %d tries, want 4", err, tries)
	}
	if want := []string{"otherwise", "otherwise", "otherwise", "then"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	entries, err := b.Transcript(ctx, k, 0, 10)
	if err != nil || len(entries) != 4 || entries[3].MessageID != "msg_ours" {
		t.Errorf("transcript = %+v, %v", entries, err)
	}
	if _, err := s.Records().Get(ctx, "test", "once", time.Now()); err != nil {
		t.Errorf("record of the unit: %v", err)
	}
	if err := b.Check(ctx, k, time.Now()); err != nil {
		t.Error(err)
	}
}

// TestDoGivesUp checks that Do and Insist differ only in their number of attempts, and that an error that is not a
// conflict ends both at once, even if a conflict caused it.
func TestDoGivesUp(t *testing.T) {
	b, _ := openBook(t)
	for _, c := range []struct {
		name  string
		do    func(context.Context, store.ConvKey, func(*conversations.Unit) error) error
		err   error
		tries int
	}{
		{"Do", b.Do, store.ErrConflict, 8},
		{"Insist", b.Insist, store.ErrConflict, 1000},
		{"refusal", b.Insist, wire.ErrUnavailable.Because(store.ErrConflict), 1},
		{"quota", b.Insist, store.ErrQuota, 1},
	} {
		tries, otherwise := 0, 0
		err := c.do(t.Context(), key("am_a"), func(u *conversations.Unit) error {
			tries++
			u.Otherwise(func() { otherwise++ })
			u.Then(func() { t.Errorf("%s: Then ran", c.name) })
			return c.err
		})
		if !errors.Is(err, c.err) || tries != c.tries || otherwise != tries {
			t.Errorf("%s = %v after %d tries, %d undone; want %d", c.name, err, tries, otherwise, c.tries)
		}
	}
}

// TestCheckOpen checks that an expired conversation goes on with a message that came in time, and ends for any other.
func TestCheckOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := openBook(t)
		b.Idle = time.Minute
		start := time.Now()
		record := func(kind conversations.Kind, arrived time.Time) error {
			return b.Do(t.Context(), key("am_a"), func(u *conversations.Unit) error {
				if err := u.CheckOpen(arrived); err != nil {
					return err
				}
				return u.Record(conversations.Event{Kind: kind, At: u.Now, Intent: "mesh.message"})
			})
		}
		for _, step := range []struct {
			at, arrived time.Duration // after the start
			want        error
		}{
			{0, 0, nil},
			{50 * time.Second, 50 * time.Second, nil},
			{2 * time.Hour, 2 * time.Hour, wire.ErrConversationClosed},
			{2 * time.Hour, 110 * time.Second, wire.ErrConversationClosed},
			{2 * time.Hour, 109 * time.Second, nil},
			{2*time.Hour + 59*time.Second, 2*time.Hour + 59*time.Second, nil}, // it goes on
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			if err := record(conversations.Received, start.Add(step.arrived)); !errors.Is(err, step.want) {
				t.Errorf("after %v, a message of %v: %v, want %v", step.at, step.arrived, err, step.want)
			}
		}
	})
}

// TestUnitWithoutConversation checks that a unit with the zero key changes only records, and that a unit without
// changes commits nothing.
func TestUnitWithoutConversation(t *testing.T) {
	b, s := openBook(t)
	commits := 0
	o := store.Observe(s)
	o.OnCommit(func([]store.Change) { commits++ })
	b.Steps = o.Steps()
	for _, changes := range [][]store.Change{nil, {{Record: store.Record{NS: "test", Key: "k", Body: []byte("{}")}}}} {
		err := b.Do(t.Context(), store.ConvKey{}, func(u *conversations.Unit) error {
			u.Add(changes...)
			return nil
		})
		if err != nil || commits != len(changes) {
			t.Errorf("with %d changes: %v, %d commits", len(changes), err, commits)
		}
	}
	page, err := b.List(t.Context(), conversations.Filter{}, 0, 10, time.Now())
	if err != nil || len(page.Conversations) != 0 {
		t.Errorf("conversations = %+v, %v", page, err)
	}
}

// TestAcceptedMeanwhile checks that a message that another unit accepted first makes the unit decide again, whether the
// copy is exact or the id was used for other content.
func TestAcceptedMeanwhile(t *testing.T) {
	b, s := openBook(t)
	ctx, k := t.Context(), key("am_a")
	replay := func(digest byte) *store.Replay {
		return &store.Replay{Sender: "am_a", MessageID: "msg_1", Digest: [32]byte{digest}, Conv: k, Status: 200, Expires: time.Now().Add(time.Hour)}
	}
	for _, digest := range []byte{1, 2} {
		found, tries := false, 0
		err := b.Do(ctx, k, func(u *conversations.Unit) error {
			tries++
			switch _, err := s.Steps().FindReplay(ctx, "am_a", "msg_1", u.Now); {
			case err == nil && found:
				return nil // the second try finds the record
			case errors.Is(err, store.ErrNotFound), err == nil:
				found = true
			default:
				return err
			}
			if digest == 1 {
				if _, err := s.Steps().Apply(ctx, store.Step{Replay: replay(1), Now: u.Now}); err != nil {
					return err
				}
			}
			u.Replay = replay(digest)
			return u.Record(opening())
		})
		if err != nil || tries != 2 || !load(t, b, k, time.Now()).IsNew() {
			t.Errorf("digest %d: %v after %d tries, want 2", digest, err, tries)
		}
	}
}
