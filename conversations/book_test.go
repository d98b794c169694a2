package conversations_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func openBook(t *testing.T) (*conversations.Book, store.Store) {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return &conversations.Book{Steps: s.Steps()}, s
}

func key(peer string) store.ConvKey { return store.ConvKey{Peer: peer, ID: "conv_1"} }

func load(t *testing.T, b *conversations.Book, k store.ConvKey, now time.Time) *conversations.Unit {
	t.Helper()
	u, err := b.Load(t.Context(), k, now)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// commit records an event with a message in the transcript and commits the unit.
func commit(t *testing.T, b *conversations.Book, k store.ConvKey, e conversations.Event, id string) {
	t.Helper()
	err := b.Try(t.Context(), k, e.At, func(u *conversations.Unit) error {
		u.Append(entry(id, e.At, e.Kind != conversations.Received))
		return u.Record(e)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func entry(id string, at time.Time, out bool) store.Entry {
	return store.Entry{Out: out, MessageID: id, At: at, Raw: []byte(`{"id":"` + id + `"}`), Digest: [32]byte{1, 2, 3}}
}

func TestLoadAndApply(t *testing.T) {
	b, _ := openBook(t)
	k := key("am_a")
	if !load(t, b, k, start).IsNew() {
		t.Error("a conversation that is nowhere is not new")
	}
	commit(t, b, k, received(start), "msg_1")
	until := start.Add(time.Hour)
	err := b.Try(t.Context(), k, start, func(u *conversations.Unit) error {
		if u.IsNew() {
			t.Error("a stored conversation is new")
		}
		u.Append(entry("msg_2", start, true))
		return errors.Join(
			u.Record(conversations.Event{Kind: conversations.HoldOpened, At: start, Until: until}),
			u.Record(conversations.Event{Kind: conversations.Replied, At: start}))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := conversations.Conversation{
		Key: k, Entries: 2, Principal: "am_p", State: conversations.Open, Intent: wire.Deliver, HeardIntent: wire.Deliver, Opened: start, Last: start,
		Held: []time.Time{until}, Bytes: 28,
	}
	if diff := cmp.Diff(want, load(t, b, k, start).Conversation()); diff != "" {
		t.Errorf("conversation as stored (-want +got):\n%s", diff)
	}
	entries, err := b.Transcript(t.Context(), k, 0, 10)
	if err != nil || len(entries) != 2 || entries[1].MessageID != "msg_2" || !entries[1].Out {
		t.Errorf("transcript = %+v, %v", entries, err)
	}
}

// TestStrangersID checks that a conversation id identifies a conversation only together with its peer (AM-37).
func TestStrangersID(t *testing.T) {
	b, _ := openBook(t)
	commit(t, b, key("am_a"), received(start), "msg_1")
	if !load(t, b, key("am_mallory"), start).IsNew() {
		t.Error("a stranger who names somebody else's conversation id finds it")
	}
}

func TestRefusedEventLeavesNoTrace(t *testing.T) {
	b, _ := openBook(t)
	k := key("am_a")
	commit(t, b, k, received(start), "msg_1")
	unit := load(t, b, k, start)
	before := unit.Conversation()
	err := unit.Record(conversations.Event{Kind: conversations.ClosedByPeer, At: start.Add(time.Hour), Payload: closing("no")})
	if !errors.Is(err, wire.ErrCloseStatus) {
		t.Fatalf("Record = %v, want a bad status", err)
	}
	if diff := cmp.Diff(before, unit.Conversation()); diff != "" {
		t.Errorf("after a refusal (-before +after):\n%s", diff)
	}
}

// TestConflict checks that if two units change the same conversation, the second fails with a conflict.
func TestConflict(t *testing.T) {
	b, _ := openBook(t)
	ctx := t.Context()
	for _, k := range []store.ConvKey{key("am_new"), key("am_old")} {
		if k.Peer == "am_old" {
			commit(t, b, k, received(start), "msg_0")
		}
		err := b.Try(ctx, k, start, func(u *conversations.Unit) error {
			commit(t, b, k, received(start), "msg_1")
			u.Append(entry("msg_2", start, false))
			return u.Record(received(start))
		})
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: second unit = %v, want a conflict", k.Peer, err)
		}
		if err := b.Check(ctx, k, start); err != nil {
			t.Errorf("%s: Check: %v", k.Peer, err)
		}
	}
}

// TestPurge checks that a message with a purge time takes its conversation with it, open or not, however long other
// conversations are kept.
func TestPurge(t *testing.T) {
	b, _ := openBook(t)
	talking, closed := key("am_talking"), key("am_closed")
	purge := start.Add(3 * time.Hour)
	secret := received(start.Add(time.Hour))
	secret.Purge = purge
	for _, k := range []store.ConvKey{talking, closed} {
		commit(t, b, k, received(start), "msg_1")
		commit(t, b, k, secret, "msg_2")
	}
	commit(t, b, talking, received(start.Add(2*time.Hour)), "msg_3")
	commit(t, b, closed, conversations.Event{Kind: conversations.ClosedByPeer, At: start.Add(2 * time.Hour), Payload: closing("completed")}, "msg_3")
	for _, k := range []store.ConvKey{talking, closed} {
		if load(t, b, k, purge.Add(-time.Second)).IsNew() {
			t.Errorf("%s is gone a second early", k.Peer)
		}
		if !load(t, b, k, purge).IsNew() {
			t.Errorf("%s is kept beyond its time", k.Peer)
		}
	}
}

// TestRetention checks that ended conversations are kept for 30 days, including those that expired silently (AM-40).
func TestRetention(t *testing.T) {
	b, s := openBook(t)
	silent, closed := key("am_silent"), key("am_closed")
	commit(t, b, silent, received(start), "msg_1")
	commit(t, b, closed, received(start), "msg_1")
	end := conversations.Event{Kind: conversations.ClosedByPeer, At: start.Add(time.Hour), Payload: closing("completed")}
	commit(t, b, closed, end, "msg_2")
	const month = 30 * 24 * time.Hour
	for k, gone := range map[store.ConvKey]time.Time{
		silent: start.Add(idle + month),
		closed: start.Add(time.Hour + month),
	} {
		if load(t, b, k, gone.Add(-time.Second)).IsNew() {
			t.Errorf("%s is gone a second early", k.Peer)
		}
		if !load(t, b, k, gone).IsNew() {
			t.Errorf("%s is kept beyond its time", k.Peer)
		}
	}
	late := start.Add(100 * 24 * time.Hour)
	for {
		n, err := s.Sweep(t.Context(), late, 100)
		if err != nil {
			t.Fatal(err)
		}
		if n < 100 {
			break
		}
	}
	if entries, err := b.Transcript(t.Context(), silent, 0, 10); err != nil || len(entries) != 0 {
		t.Errorf("transcript after the sweep = %d entries, %v", len(entries), err)
	}
}

func TestList(t *testing.T) {
	b, _ := openBook(t)
	commit(t, b, key("am_old"), received(start.Add(-idle)), "msg_1")
	commit(t, b, key("am_done"), received(start), "msg_1")
	commit(t, b, key("am_done"), conversations.Event{Kind: conversations.ClosedByUs, At: start, Payload: closing("completed")}, "msg_2")
	commit(t, b, key("am_open"), received(start), "msg_1")
	for _, tt := range []struct {
		filter conversations.Filter
		want   []string
	}{
		{conversations.Filter{}, []string{"am_open completed=false", "am_done completed=true", "am_old completed=false"}},
		{conversations.Filter{State: conversations.Open}, []string{"am_open completed=false"}},
		{conversations.Filter{State: conversations.Expired}, []string{"am_old completed=false"}},
		{conversations.Filter{State: conversations.Completed}, []string{"am_done completed=true"}},
		{conversations.Filter{State: conversations.Failed}, nil},
		{conversations.Filter{Peer: "am_done"}, []string{"am_done completed=true"}},
		{conversations.Filter{Peer: "am_done", State: conversations.Open}, nil},
	} {
		var got []string
		for before := uint64(0); ; {
			page, err := b.List(t.Context(), tt.filter, before, 1, start)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range page.Conversations {
				got = append(got, fmt.Sprintf("%s completed=%v", c.Key.Peer, c.State == conversations.Completed))
			}
			if before = page.Next; before == 0 {
				break
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("List(%+v) (-want +got):\n%s", tt.filter, diff)
		}
	}
}

func TestDelete(t *testing.T) {
	b, s := openBook(t)
	k := key("am_a")
	commit(t, b, k, received(start), "msg_1")
	note := store.Change{Record: store.Record{NS: "notes", Key: "deleted"}}
	remove := func(changes ...store.Change) error {
		return b.Try(t.Context(), k, start, func(u *conversations.Unit) error {
			u.Delete()
			u.Add(changes...)
			return nil
		})
	}
	if err := remove(note); err != nil {
		t.Fatal(err)
	}
	if !load(t, b, k, start).IsNew() {
		t.Error("the conversation is still there")
	}
	if _, err := s.Records().Get(t.Context(), "notes", "deleted", start); err != nil {
		t.Errorf("the record of the same unit: %v", err)
	}
	if err := remove(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("second Delete = %v, want not found", err)
	}
}

// TestBytes checks that a conversation counts the bytes of its transcript, and is full at Book.MaxBytes.
func TestBytes(t *testing.T) {
	b, _ := openBook(t)
	size := int64(len(entry("msg_0", start, false).Raw))
	b.MaxBytes = 3 * size
	for i := range 3 {
		if unit := load(t, b, key("am_p"), start); unit.IsFull() || unit.Conversation().Bytes != int64(i)*size {
			t.Errorf("with %d messages: %d bytes, full %t", i, unit.Conversation().Bytes, unit.IsFull())
		}
		commit(t, b, key("am_p"), received(start), fmt.Sprint("msg_", i))
	}
	if unit := load(t, b, key("am_p"), start); !unit.IsFull() {
		t.Errorf("not full with %d of %d bytes", unit.Conversation().Bytes, b.MaxBytes)
	}
}
