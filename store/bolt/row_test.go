package bolt

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/store"
)

var sampleCard = cardRow{Card: store.Card{
	ID: "am_a", Seq: 7, Rev: 9, Body: []byte("body"), Meta: []byte("meta"), Owner: [32]byte{1}, Terms: []string{"cap:a", "word:b"},
	Counts: []string{"token:1"}, Registered: now, Updated: now.Add(1), Expires: now.Add(time.Hour), ReservedUntil: now.Add(2 * time.Hour),
}, change: 3}

var (
	sampleChange = changeRow{CardChange: store.CardChange{Change: 4, ID: "am_a", Gone: true, At: now}, seq: 7}
	sampleConv   = store.Conversation{
		Key: store.ConvKey{Peer: "p", ID: "c"}, Seq: 5, Rev: 6, Body: []byte("state"), Terms: []string{"open"}, Chain: [32]byte{2},
		Entries: 3, Open: true, Updated: now, Expires: now.Add(time.Hour),
	}
	sampleEntry = entryRow{Entry: store.Entry{
		N: 2, Out: true, MessageID: "m", At: now, Raw: []byte("raw"), Digest: [32]byte{3}, Chain: [32]byte{4},
	}, replay: []byte("0123456789abcdef")}
	sampleSealed = func() entryRow { e := sampleEntry; e.Key = []byte("opens it"); return e }()
	sampleReplay = replayRow{Replay: store.Replay{
		Sender: "s", MessageID: "m", Digest: [32]byte{5}, Conv: store.ConvKey{Peer: "p", ID: "c"}, Status: 202, Answer: []byte("answer"), Expires: now,
	}, convSeq: 5}
	sampleRecord = store.Record{NS: "n", Key: "k", Rev: 8, Body: []byte("b"), Terms: []string{"t"}, Expires: now}
)

// rowDecoders maps each kind of row to a sample, and to a function that decodes a row and encodes the result.
var rowDecoders = map[string]struct {
	sample []byte
	again  func(row []byte) ([]byte, error)
}{
	"card":   {encodeCard(sampleCard), func(b []byte) ([]byte, error) { v, err := decodeCard(7, b); return encodeCard(v), err }},
	"change": {encodeChange(sampleChange), func(b []byte) ([]byte, error) { v, err := decodeChange(4, b); return encodeChange(v), err }},
	"conv":   {encodeConv(sampleConv), func(b []byte) ([]byte, error) { v, err := decodeConv(5, b); return encodeConv(v), err }},
	"entry":  {encodeEntry(sampleEntry), func(b []byte) ([]byte, error) { v, err := decodeEntry(2, b); return encodeEntry(v), err }},
	"sealed": {encodeEntry(sampleSealed), func(b []byte) ([]byte, error) { v, err := decodeEntry(2, b); return encodeEntry(v), err }},
	"replay": {encodeReplay(sampleReplay), func(b []byte) ([]byte, error) { v, err := decodeReplay(b); return encodeReplay(v), err }},
	"record": {encodeRecord(sampleRecord), func(b []byte) ([]byte, error) { v, err := decodeRecord("n", "k", b); return encodeRecord(v), err }},
}

func TestRows(t *testing.T) {
	for name, row := range rowDecoders {
		again, err := row.again(row.sample)
		if err != nil || string(again) != string(row.sample) {
			t.Errorf("%s does not survive: %x, %v", name, again, err)
		}
		for n := range row.sample {
			if _, err := row.again(row.sample[:n]); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s cut to %d of %d bytes = %v", name, n, len(row.sample), err)
			}
		}
		if _, err := row.again(append(row.sample[:len(row.sample):len(row.sample)], 0)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s with a byte more = %v", name, err)
		}
		newer := append([]byte{keyedVersion + 1}, row.sample[1:]...)
		if _, err := row.again(newer); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "version 3") {
			t.Errorf("%s of a newer version = %v", name, err)
		}
	}
	card, err := decodeCard(7, encodeCard(sampleCard))
	if diff := cmp.Diff(sampleCard.Card, card.Card); diff != "" || err != nil || card.change != 3 {
		t.Errorf("card differs, %v:\n%s", err, diff)
	}
}

func TestCardHead(t *testing.T) {
	for _, c := range []cardRow{sampleCard, {}, {Card: store.Card{Withdrawn: true, Expires: now.Add(time.Hour)}}} {
		row := encodeCard(c)
		head, err := decodeCardHead(7, row)
		want := cardHead{terms: c.Terms, expires: deadline(c.Expires), withdrawn: c.Withdrawn}
		if diff := cmp.Diff(want, head, cmp.AllowUnexported(cardHead{})); diff != "" || err != nil {
			t.Errorf("head of %v differs, %v:\n%s", c.ID, err, diff)
		}
		for _, at := range []time.Time{now, now.Add(time.Hour - 1), now.Add(time.Hour)} {
			if got, want := cardLive(row, at), c.Live(at); got != want {
				t.Errorf("cardLive(%q, %v) = %v, want %v", c.ID, at, got, want)
			}
		}
	}
}

// TestListed checks that the decoders for lists see what the decoder of a whole card sees.
func TestListed(t *testing.T) {
	long := sampleCard
	long.Terms = []string{strings.Repeat("x", 200), "y", strings.Repeat("z", 1000)}
	for _, c := range []cardRow{sampleCard, {}, long, {Card: store.Card{ID: "am_b", Terms: []string{""}, Meta: []byte("m")}}} {
		row := encodeCard(c)
		terms, err := cardTerms(nil, 7, row)
		if err != nil || len(terms) != len(c.Terms) {
			t.Fatalf("terms of %q = %q, %v", c.ID, terms, err)
		}
		for i, term := range terms {
			if string(term) != c.Terms[i] {
				t.Errorf("term %d of %q = %q, want %q", i, c.ID, term, c.Terms[i])
			}
		}
		want, err := decodeCard(7, row)
		if err != nil {
			t.Fatal(err)
		}
		want.Terms, want.Counts = nil, nil
		listed, err := decodeCardForList(7, row)
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
		got := instant(nanos(test.in))
		if !got.Equal(test.want) || got.Location() != time.UTC {
			t.Errorf("instant(nanos(%v)) = %v, want %v", test.in, got, test.want)
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
				if !errors.Is(err, ErrDamaged) {
					t.Errorf("%s = %v, want ErrDamaged", name, err)
				}
				continue
			}
			twice, err := row.again(once)
			if err != nil || string(twice) != string(once) {
				t.Errorf("%s reads %x and then %x, %v", name, once, twice, err)
			}
		}
		cardLive(b, now)
		if terms, err := cardTerms(nil, 1, b); err == nil {
			listed, err := decodeCardForList(1, b)
			whole, wholeErr := decodeCard(1, b)
			if wholeErr == nil && (err != nil || listed.ID != whole.ID || string(listed.Meta) != string(whole.Meta) || len(terms) != len(whole.Terms)) {
				t.Errorf("%x is listed as %v with %d terms, %v, and read as %v", b, listed, len(terms), err, whole)
			}
		} else if !errors.Is(err, ErrDamaged) {
			t.Errorf("terms = %v", err)
		}
		if _, err := decodeCardHead(1, b); err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("head = %v", err)
		}
		if ns, key, ok := splitRecordKey(b); ok && string(recordKey(ns, key)) != string(b) {
			t.Errorf("splitRecordKey(%x) = %q, %q", b, ns, key)
		}
	})
}
