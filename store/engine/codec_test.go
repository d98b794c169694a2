package engine

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/store"
)

// now is the current time of the samples.
var now = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

var sampleCard = CardRow{Card: store.Card{
	ID: "am_a", Seq: 7, Rev: 9, Body: []byte("body"), Meta: []byte("meta"), Owner: [32]byte{1}, Terms: []string{"cap:a", "word:b"},
	Counts: []string{"token:1"}, Registered: now, Updated: now.Add(1), Expires: now.Add(time.Hour), ReservedUntil: now.Add(2 * time.Hour),
}, Change: 3}

var (
	sampleChange = ChangeRow{CardChange: store.CardChange{Change: 4, ID: "am_a", Gone: true, At: now}, Seq: 7}
	sampleConv   = store.Conversation{
		Key: store.ConvKey{Peer: "p", ID: "c"}, Seq: 5, Rev: 6, Body: []byte("state"), Terms: []string{"open"}, Chain: [32]byte{2},
		Entries: 3, Open: true, Updated: now, Expires: now.Add(time.Hour),
	}
	sampleEntry = EntryRow{Entry: store.Entry{
		N: 2, Out: true, Author: "hook", MessageID: "m", At: now, Raw: []byte("raw"), Digest: [32]byte{3}, Chain: [32]byte{4},
	}, Replay: []byte("0123456789abcdef")}
	sampleSealed = func() EntryRow { e := sampleEntry; e.Key = []byte("opens it"); return e }()
	sampleReplay = ReplayRow{Replay: store.Replay{
		Sender: "s", MessageID: "m", Digest: [32]byte{5}, Conv: store.ConvKey{Peer: "p", ID: "c"}, Status: 202, Answer: []byte("answer"), Expires: now,
	}, ConvSeq: 5}
	sampleReferring = func() ReplayRow { r := sampleReplay; r.Answer, r.Entry = nil, 2; return r }()
	sampleOfPeer    = func() ReplayRow { r := sampleReferring; r.Sender = r.Conv.Peer; return r }()
	sampleRecord    = store.Record{NS: "n", Key: "k", Rev: 8, Body: []byte("b"), Terms: []string{"t"}, Expires: now}
)

// rowDecoders maps each kind of row to a sample, and to a function that decodes a row and encodes the result.
var rowDecoders = map[string]struct {
	sample []byte
	again  func(row []byte) ([]byte, error)
}{
	"card":   {EncodeCard(sampleCard), func(b []byte) ([]byte, error) { v, err := DecodeCard(7, b); return EncodeCard(v), err }},
	"change": {EncodeChange(sampleChange), func(b []byte) ([]byte, error) { v, err := DecodeChange(4, b); return EncodeChange(v), err }},
	"conv":   {EncodeConv(sampleConv), func(b []byte) ([]byte, error) { v, err := DecodeConv(5, b); return EncodeConv(v), err }},
	"entry":  {EncodeEntry(sampleEntry), func(b []byte) ([]byte, error) { v, err := DecodeEntry(2, b); return EncodeEntry(v), err }},
	"sealed": {EncodeEntry(sampleSealed), func(b []byte) ([]byte, error) { v, err := DecodeEntry(2, b); return EncodeEntry(v), err }},
	"replay": {EncodeReplay(sampleReplay), func(b []byte) ([]byte, error) { v, err := DecodeReplay(b); return EncodeReplay(v), err }},
	"replay with its answer in the transcript": {
		EncodeReplay(sampleReferring), func(b []byte) ([]byte, error) { v, err := DecodeReplay(b); return EncodeReplay(v), err },
	},
	"replay of the peer with its answer in the transcript": {
		EncodeReplay(sampleOfPeer), func(b []byte) ([]byte, error) { v, err := DecodeReplay(b); return EncodeReplay(v), err },
	},
	"record": {EncodeRecord(sampleRecord), func(b []byte) ([]byte, error) { v, err := DecodeRecord("n", "k", b); return EncodeRecord(v), err }},
}

func TestRows(t *testing.T) {
	for name, row := range rowDecoders {
		again, err := row.again(row.sample)
		if err != nil || string(again) != string(row.sample) {
			t.Errorf("%s does not survive: %x, %v", name, again, err)
		}
		for n := range row.sample {
			if _, err := row.again(row.sample[:n]); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("%s cut to %d of %d bytes = %v", name, n, len(row.sample), err)
			}
		}
		if _, err := row.again(append(row.sample[:len(row.sample):len(row.sample)], 0)); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s with a byte more = %v", name, err)
		}
		newer := append([]byte{rowVersion + 1}, row.sample[1:]...)
		if _, err := row.again(newer); !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("%s of a newer version = %v", name, err)
		}
	}
	card, err := DecodeCard(7, EncodeCard(sampleCard))
	if diff := cmp.Diff(sampleCard.Card, card.Card); diff != "" || err != nil || card.Change != 3 {
		t.Errorf("card differs, %v:\n%s", err, diff)
	}
}

func TestCardHead(t *testing.T) {
	for _, c := range []CardRow{sampleCard, {}, {Card: store.Card{Withdrawn: true, Expires: now.Add(time.Hour)}}} {
		row := EncodeCard(c)
		var head CardHead
		err := head.Decode(7, row)
		if err != nil || !slices.Equal(CopyTerms(head.Terms), c.Terms) || head.Expires != Deadline(c.Expires) || head.Withdrawn != c.Withdrawn {
			t.Errorf("head of %v is %+v, %v", c.ID, head, err)
		}
		for _, at := range []time.Time{now, now.Add(time.Hour - 1), now.Add(time.Hour)} {
			if got, want := IsCardLive(row, at), c.Live(at); got != want {
				t.Errorf("cardLive(%q, %v) = %v, want %v", c.ID, at, got, want)
			}
		}
	}
}

// TestListed checks that the decoders for lists see what the decoder of a whole card sees.
func TestListed(t *testing.T) {
	long := sampleCard
	long.Terms = []string{strings.Repeat("x", 200), "y", strings.Repeat("z", 1000)}
	for _, c := range []CardRow{sampleCard, {}, long, {Card: store.Card{ID: "am_b", Terms: []string{""}, Meta: []byte("m")}}} {
		row := EncodeCard(c)
		var head CardHead
		err := head.Decode(7, row)
		if err != nil || len(head.Terms) != len(c.Terms) {
			t.Fatalf("terms of %q = %q, %v", c.ID, head.Terms, err)
		}
		for i, term := range head.Terms {
			if string(term) != c.Terms[i] {
				t.Errorf("term %d of %q = %q, want %q", i, c.ID, term, c.Terms[i])
			}
		}
		want, err := DecodeCard(7, row)
		if err != nil {
			t.Fatal(err)
		}
		want.Terms, want.Counts = nil, nil
		listed, err := decodeCardForList(new([]byte), 1, maxShared, 7, row)
		if diff := cmp.Diff(want.Card, listed); diff != "" || err != nil {
			t.Errorf("listed card %q differs, %v:\n%s", c.ID, err, diff)
		}
		clear(row) // bbolt may reuse the page of the row
		if string(listed.Body) != string(c.Body) || string(listed.Meta) != string(c.Meta) {
			t.Errorf("listed card %q shares its bytes with the row", c.ID)
		}
	}
}

func TestTimes(t *testing.T) {
	for _, test := range []struct{ in, want time.Time }{
		{time.Time{}, time.Time{}},
		{now, now},
		{time.Unix(0, 0), time.Unix(0, 0)},
		{now.In(time.FixedZone("x", 3600)), now},
		{time.Date(1969, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(1969, 1, 1, 0, 0, 0, 1, time.UTC)},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, math.MaxInt64)},
		{time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Unix(0, math.MinInt64+1)},
	} {
		got := toTime(Nanos(test.in))
		if !got.Equal(test.want) || got.Location() != time.UTC {
			t.Errorf("toTime(Nanos(%v)) = %v, want %v", test.in, got, test.want)
		}
	}
}

// FuzzRow checks that no row makes a decoder panic, and that decoding and encoding an accepted row is stable.
func FuzzRow(f *testing.F) {
	for _, row := range rowDecoders {
		f.Add(row.sample)
	}
	f.Add([]byte{rowVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, row := range rowDecoders {
			once, err := row.again(b)
			if err != nil {
				if !errors.Is(err, store.ErrDamaged) {
					t.Errorf("%s = %v, want store.ErrDamaged", name, err)
				}
				continue
			}
			twice, err := row.again(once)
			if err != nil || string(twice) != string(once) {
				t.Errorf("%s reads %x and then %x, %v", name, once, twice, err)
			}
		}
		IsCardLive(b, now)
		var head CardHead
		if err := head.Decode(1, b); err == nil {
			listed, err := decodeCardForList(new([]byte), 0, maxShared, 1, b)
			whole, wholeErr := DecodeCard(1, b)
			if wholeErr == nil && (err != nil || listed.ID != whole.ID || string(listed.Meta) != string(whole.Meta) || len(head.Terms) != len(whole.Terms)) {
				t.Errorf("%x is listed as %v with %d terms, %v, and read as %v", b, listed, len(head.Terms), err, whole)
			}
		} else if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("head = %v", err)
		}
		if ns, key, ok := SplitRecordKey(b); ok && string(RecordKey(ns, key)) != string(b) {
			t.Errorf("SplitRecordKey(%x) = %q, %q", b, ns, key)
		}
	})
}
