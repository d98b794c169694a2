package conversations_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/store"
)

func TestCheck(t *testing.T) {
	b, s := openBook(t)
	k := key("am_a")
	for i := range 250 { // more than a page
		at := start.Add(time.Duration(i)*time.Second + 123456*time.Nanosecond)
		commit(t, b, k, received(at), fmt.Sprintf("msg_%d", i))
	}
	now := start.Add(time.Hour)
	if err := b.Check(t.Context(), k, now); err != nil {
		t.Errorf("Check of a good transcript: %v", err)
	}
	entries, err := b.Transcript(t.Context(), k, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conversations.Verify([32]byte{}, 0, entries); err != nil {
		t.Errorf("Verify of a good transcript: %v", err)
	}
	// An entry that was stored without the book does not continue the chain.
	row, err := s.Steps().Conversation(t.Context(), k, now)
	if err != nil {
		t.Fatal(err)
	}
	step := store.Step{Conv: &row, Append: []store.Entry{entry("msg_forged", now, true)}, Now: now}
	if _, err := s.Steps().Apply(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context(), k, now); err == nil {
		t.Error("Check of a transcript with a foreign entry = nil, want an error")
	}
	if err := b.Check(t.Context(), key("am_nobody"), now); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Check of no conversation = %v, want not found", err)
	}
}

// TestCheckFindsADroppedEnd checks that Check finds missing entries at the end, because the row contains the last chain
// hash.
func TestCheckFindsADroppedEnd(t *testing.T) {
	b, s := openBook(t)
	k := key("am_a")
	commit(t, b, k, received(start), "msg_1")
	row, err := s.Steps().Conversation(t.Context(), k, start)
	if err != nil {
		t.Fatal(err)
	}
	row.Chain[0] ^= 1
	if _, err := s.Steps().Apply(t.Context(), store.Step{Conv: &row, Now: start}); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context(), k, start); err == nil {
		t.Error("Check against another head = nil, want an error")
	}
}

// TestVerify checks that changing, dropping, adding or moving an entry breaks the chain.
func TestVerify(t *testing.T) {
	var good []store.Entry
	var prev [32]byte
	for i := range 5 {
		e := entry(fmt.Sprintf("msg_%d", i), start.Add(time.Duration(i)*time.Second), i%2 == 1)
		e.N = uint64(i + 1)
		e.Chain = conversations.Link(prev, e)
		prev = e.Chain
		good = append(good, e)
	}
	if _, err := conversations.Verify([32]byte{}, 0, good); err != nil {
		t.Fatalf("Verify of a good transcript: %v", err)
	}
	renumber := func(list []store.Entry) []store.Entry {
		for i := range list {
			list[i].N = uint64(i + 1)
		}
		return list
	}
	edit := func(f func(*store.Entry)) []store.Entry {
		list := slices.Clone(good)
		f(&list[2])
		return list
	}
	swapped := slices.Clone(good)
	swapped[1], swapped[2] = swapped[2], swapped[1]
	for name, list := range map[string][]store.Entry{
		"direction":           edit(func(e *store.Entry) { e.Out = !e.Out }),
		"message id":          edit(func(e *store.Entry) { e.MessageID += "x" }),
		"time":                edit(func(e *store.Entry) { e.At = e.At.Add(time.Millisecond) }),
		"bytes":               edit(func(e *store.Entry) { e.Raw = []byte(`{"id":"msg_X"}`) }),
		"border of two parts": edit(func(e *store.Entry) { e.MessageID += "{"; e.Raw = e.Raw[1:] }),
		"digest":              edit(func(e *store.Entry) { e.Digest[31] ^= 1 }),
		"chain":               edit(func(e *store.Entry) { e.Chain[0] ^= 1 }),
		"number":              edit(func(e *store.Entry) { e.N++ }),
		"first dropped":       renumber(slices.Clone(good[1:])),
		"one dropped":         renumber(slices.Delete(slices.Clone(good), 2, 3)),
		"one dropped, gap":    slices.Delete(slices.Clone(good), 2, 3),
		"one twice":           renumber(slices.Insert(slices.Clone(good), 2, good[2])),
		"two swapped":         renumber(swapped),
	} {
		if _, err := conversations.Verify([32]byte{}, 0, list); err == nil {
			t.Errorf("%s: Verify = nil, want an error", name)
		}
	}
}

// TestLinkVector checks that Link computes the same hash in every version, because the chain is a stored format.
// Another program computed the value from the description of Link.
func TestLinkVector(t *testing.T) {
	prev := [32]byte{0: 0xaa, 31: 0xbb}
	e := store.Entry{Out: true, MessageID: "msg_1", At: time.UnixMilli(1772366400123), Raw: []byte("{}"), Digest: [32]byte{0: 1}}
	const want = "52839dd014212f6dd61204ad0f3fb1bffd0a373ad38b20ccd1987603bece0104"
	if got := fmt.Sprintf("%x", conversations.Link(prev, e)); got != want {
		t.Errorf("Link = %s, want %s", got, want)
	}
}

func TestChainProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.Custom(func(t *rapid.T) store.Entry {
			return store.Entry{
				Out: rapid.Bool().Draw(t, "out"), MessageID: rapid.StringN(0, 4, -1).Draw(t, "id"),
				At:  time.UnixMilli(rapid.Int64Range(0, 3).Draw(t, "at")),
				Raw: []byte(rapid.StringN(0, 4, -1).Draw(t, "raw")), Digest: [32]byte{rapid.Byte().Draw(t, "digest")},
			}
		})
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		same := cmp.Equal(a, b)
		if linked := conversations.Link([32]byte{}, a) == conversations.Link([32]byte{}, b); linked != same {
			t.Fatalf("entries equal: %v, links equal: %v", same, linked)
		}
	})
}

// TestLinkFormat: the hash is that of the documented bytes, computed by another program, so that stored chains stay
// valid.
func TestLinkFormat(t *testing.T) {
	var prev [32]byte
	for i := range prev {
		prev[i] = byte(i)
	}
	e := store.Entry{Out: true, MessageID: "msg_1", At: time.UnixMilli(1767225600123), Digest: [32]byte(bytes.Repeat([]byte{7}, 32)), Raw: []byte(`{"a":1}`)}
	const want = "785bb1973b46f637267bfa0d8ec41b5106aaa6a427b5403f45edb6fa24d2db58"
	if got := fmt.Sprintf("%x", conversations.Link(prev, e)); got != want {
		t.Errorf("Link() = %s, want %s", got, want)
	}
}

// BenchmarkLink measures the hash of one entry of a transcript, of the size of a usual message.
func BenchmarkLink(b *testing.B) {
	e := store.Entry{MessageID: "msg_0123456789abcdef0123456789abcdef", At: time.Now(), Raw: make([]byte, 700)}
	var prev [32]byte
	b.ReportAllocs()
	for b.Loop() {
		prev = conversations.Link(prev, e)
	}
}
