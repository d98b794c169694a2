package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// forEver is when the rows of fixtures expire, so that the fixtures stay usable.
var forEver = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

var fixtureConv = store.ConvKey{Peer: "am_peer", ID: "conv_1"}

// newFixture creates a database with rows of every kind.
func newFixture(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(t.Context(), filepath.Join(dir, "full.db"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	var faults []error
	for _, id := range []string{"am_listed", "am_withdrawn"} {
		_, err := s.Cards().Put(t.Context(), store.PutCard{Now: now, Card: store.Card{
			ID: id, Terms: []string{"cap:scheduling"}, Counts: []string{"host:a.example"}, Body: []byte(`{"agent_id":"` + id + `"}`), Expires: forEver,
		}})
		faults = append(faults, err)
	}
	faults = append(faults, s.Cards().Withdraw(t.Context(), "am_withdrawn", store.Any, forEver, nil, now))
	conv := store.Conversation{Key: fixtureConv, Terms: []string{"open"}, Open: true, Body: []byte(`{"state":"open"}`)}
	_, err = s.Steps().Apply(t.Context(), store.Step{
		Conv: &conv, Now: now, Append: []store.Entry{{MessageID: "msg_1", Raw: []byte("first")}, {MessageID: "msg_2", Raw: []byte("second")}},
		Replay:  &store.Replay{Sender: "am_peer", MessageID: "msg_1", Conv: conv.Key, Expires: forEver},
		Records: []store.Change{{Record: store.Record{NS: "inbox", Key: "item_1", Terms: []string{"new"}, Body: []byte("item"), Expires: forEver}}},
	})
	faults = append(faults, err, s.Close(), compact(t, filepath.Join(dir, "full.db"), filepath.Join(dir, "small.db")))
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "small.db")
}

// storedRow is a row as it is in the file: its key, followed by its value with the checksum.
type storedRow struct {
	bucket      string
	key, stored []byte
}

func (r storedRow) bytes() []byte { return append(bytes.Clone(r.key), r.stored...) }

// storedRows returns every row of a closed database.
func storedRows(t *testing.T, path string) (all []storedRow) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for _, b := range buckets {
			if err := b.in(tx).raw.ForEach(func(k, v []byte) error {
				all = append(all, storedRow{string(b.name), bytes.Clone(k), bytes.Clone(v)})
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// write writes a database into a new directory and returns its path.
func write(t *testing.T, whole []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.db")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// flip changes one bit of a row in the file, as a faulty disk would. It moves no row.
func flip(t *testing.T, path string, r storedRow, bit int) {
	t.Helper()
	at := bytes.Index(readFile(t, path), r.bytes())
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if at < 0 || err != nil {
		t.Fatalf("row %q of %s is at %d of the file, %v", r.key, r.bucket, at, err)
	}
	_, err = f.WriteAt([]byte{r.bytes()[bit/8] ^ 1<<(bit%8)}, int64(at+bit/8))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// newVariedDB creates a closed database with several rows of every kind, next to one another in their buckets.
func newVariedDB(t *testing.T) string {
	t.Helper()
	path := newFixture(t)
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	var faults []error
	for i := range 5 {
		key := store.ConvKey{Peer: "am_peer", ID: fmt.Sprint("conv_more_", i)}
		message := fmt.Sprint("msg_more_", i)
		step := store.Step{
			Conv:   &store.Conversation{Key: key, Terms: []string{"open", "peer:am_peer"}, Open: true, Body: []byte("{}"), Expires: forEver},
			Append: []store.Entry{{MessageID: message, Raw: []byte("text")}}, Now: now,
			Replay: &store.Replay{Sender: "am_peer", MessageID: message, Conv: key, Status: 200, Answer: []byte("yes"), Expires: forEver.AddDate(0, 0, -10*i)},
			Records: []store.Change{
				{Record: store.Record{NS: "pins", Key: fmt.Sprint("am_", i), Body: []byte("key"), Expires: forEver}},
				{Record: store.Record{NS: "asks", Key: fmt.Sprint("ask_", i), Terms: []string{"state:pending", "subject:am_peer"}, Body: []byte("question"), Expires: forEver}},
				{Record: store.Record{NS: "work", Key: fmt.Sprint("work_", i), Due: now.Add(time.Duration(i)), Party: "am_peer", Lane: []string{"a", "a", "", "b", ""}[i]}},
			},
		}
		_, err := s.Steps().Apply(t.Context(), step)
		// A replay record that came without an entry has a row of its own in the conversation.
		_, bareErr := s.Steps().Apply(t.Context(), store.Step{Now: now, Replay: &store.Replay{Sender: "am_peer", MessageID: "bare_" + message, Conv: key, Expires: forEver}})
		_, cardErr := s.Cards().Put(t.Context(), store.PutCard{Now: now, Card: store.Card{
			ID: fmt.Sprint("am_more_", i), Terms: []string{"cap:scheduling"}, Counts: []string{"host:a.example"}, Body: []byte("card"), Expires: forEver,
		}})
		faults = append(faults, err, bareErr, cardErr)
	}
	small := filepath.Join(t.TempDir(), "small.db")
	if err := errors.Join(append(faults, s.Close(), compact(t, path, small))...); err != nil {
		t.Fatal(err)
	}
	return small
}

// answers holds the answer of a database to every question about the rows of newVariedDB. If a call fails, its answer
// is the error.
type answers map[string]any

func (a answers) add(question string, answer any, err error) {
	if err != nil {
		answer = err
	}
	a[question] = answer
}

// askAll asks every question. It also asks for each entry that lists may leave out.
func askAll(ctx context.Context, s *Store) answers {
	a := answers{}
	for _, id := range []string{"am_listed", "am_withdrawn", "am_more_0", "am_more_1", "am_more_2", "am_more_3", "am_more_4"} {
		held, err := s.Cards().Held(ctx, id, now)
		a.add("held "+id, held, err)
	}
	changes, err := s.Cards().Changes(ctx, 0, 100)
	a.add("changes", changes, err)
	counted, err := s.Cards().HasCount(ctx, "host:a.example", now)
	a.add("count", counted, err)
	keys := []store.ConvKey{fixtureConv}
	messages := []string{"msg_1"}
	for i := range 5 {
		keys = append(keys, store.ConvKey{Peer: "am_peer", ID: fmt.Sprint("conv_more_", i)})
		messages = append(messages, fmt.Sprint("msg_more_", i), fmt.Sprint("bare_msg_more_", i))
	}
	for _, key := range keys {
		conv, err := s.Steps().Conversation(ctx, key, now)
		a.add("conversation "+key.ID, conv, err)
		entries, err := s.Steps().Transcript(ctx, key, 0, 10)
		a.add("transcript "+key.ID, entries, err)
		rest, err := s.Steps().Transcript(ctx, key, 1, 10)
		a.add("rest of "+key.ID, rest, err)
	}
	for _, id := range messages {
		replay, err := s.Steps().FindReplay(ctx, "am_peer", id, now)
		a.add("replay "+id, replay, err)
		again, err := s.Steps().Apply(ctx, store.Step{Now: now, Replay: &store.Replay{Sender: "am_peer", MessageID: id, Status: 500, Expires: forEver}})
		a.add("again "+id, again, err)
	}
	for i := range 5 {
		for _, at := range [][2]string{{"pins", "am_"}, {"asks", "ask_"}, {"work", "work_"}} {
			rec, err := s.Records().Get(ctx, at[0], fmt.Sprint(at[1], i), now)
			a.add(fmt.Sprint(at[0], i), rec, err)
			page, err := s.Records().List(ctx, at[0], "", fmt.Sprint(at[1], i), 10, now)
			a.add(fmt.Sprint(at[0], " after ", i), page, err)
			page, err = s.Records().ListBackward(ctx, at[0], "", fmt.Sprint(at[1], i), 10, now)
			a.add(fmt.Sprint(at[0], " before ", i), page, err)
		}
	}
	for _, by := range [][2]string{{"inbox", ""}, {"inbox", "new"}, {"pins", ""}, {"asks", ""}, {"asks", "state:pending"}, {"asks", "subject:am_peer"}} {
		page, err := s.Records().List(ctx, by[0], by[1], "", 100, now)
		a.add("list "+by[0]+" "+by[1], page, err)
		page, err = s.Records().ListBackward(ctx, by[0], by[1], "", 100, now)
		a.add("list backward "+by[0]+" "+by[1], page, err)
	}
	return a
}

// lists returns what the lists that may leave out damaged rows return, by the name of the list.
func lists(t *testing.T, s *Store) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	cards, err := s.Cards().List(t.Context(), store.CardQuery{All: []string{"cap:scheduling"}, Limit: 100, Now: now})
	if err != nil {
		t.Errorf("list of cards: %v", err)
	}
	for _, c := range cards.Cards {
		found["cards"] = append(found["cards"], c.ID+" "+string(c.Body))
	}
	for _, term := range []string{"", "open", "peer:am_peer"} {
		page, err := s.Steps().Conversations(t.Context(), term, 0, 100, now)
		if err != nil {
			t.Errorf("list of conversations: %v", err)
		}
		for _, c := range page.Conversations {
			found["conversations "+term] = append(found["conversations "+term], c.Key.ID+" "+string(c.Body))
		}
	}
	work, _, err := s.Records().Due(t.Context(), "work", forEver, nil, 100)
	if err != nil {
		t.Errorf("what is due: %v", err)
	}
	for _, rec := range work {
		found["due"] = append(found["due"], rec.Key+" "+rec.Due.String()+" "+rec.Lane)
	}
	return found
}

// truth holds what a sound database answers.
type truth struct {
	whole   []byte
	answers answers
	lists   map[string][]string
}

func truthOf(t *testing.T, path string) truth {
	t.Helper()
	whole := readFile(t, path)
	s := open(t, write(t, whole), Config{})
	want := truth{whole, askAll(t.Context(), s), lists(t, s)}
	for question, answer := range want.answers {
		if err, isErr := answer.(error); isErr && !errors.Is(err, store.ErrMismatch) {
			t.Fatalf("%s: %v", question, err)
		}
	}
	return want
}

// expectAfter changes a bit of a row, once before the database is opened and once while it is open, and checks all
// answers.
func (want truth) expectAfter(t *testing.T, r storedRow, bit int) {
	t.Helper()
	what := fmt.Sprintf("%s %q, bit %d of %d", r.bucket, r.key, bit, 8*len(r.bytes()))
	path := write(t, want.whole)
	flip(t, path, r, bit)
	if found := Check(t.Context(), path); !errors.Is(found, ErrDamaged) || !strings.Contains(found.Error(), "of "+r.bucket) && r.bucket != "meta" {
		t.Errorf("%s: Check = %v", what, found)
	}
	s, err := Open(t.Context(), path, Config{})
	if err == nil {
		want.expect(t, s, what, 1)
		if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) && r.bucket != "meta" {
			t.Errorf("%s: after sweeping, Check = %v", what, err)
		}
	} else if !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: Open = %v", what, err)
	}
	path = write(t, want.whole)
	if s, err = Open(t.Context(), path, Config{}); err != nil {
		t.Fatal(err)
	}
	flip(t, path, r, bit)
	want.expect(t, s, what+", while open", 100) // a key out of order may hide other rows, which Open would have noticed
}

// expect asks every question and closes s. Each answer must be what was stored, or ErrDamaged. Lists may leave out at
// most hidden entries.
func (want truth) expect(t *testing.T, s *Store, what string, hidden int) {
	t.Helper()
	for range 2 { // before and after sweeping
		for question, answer := range askAll(t.Context(), s) {
			if err, refused := answer.(error); refused && errors.Is(err, store.ErrDamaged) {
				continue
			}
			if !reflect.DeepEqual(answer, want.answers[question]) {
				t.Errorf("%s: %s is %+v, want %+v", what, question, answer, want.answers[question])
			}
		}
		for list, entries := range lists(t, s) {
			if left := len(want.lists[list]) - len(entries); left < 0 || left > hidden || !isWithin(entries, want.lists[list]) {
				t.Errorf("%s: list of %s is %q, want %q", what, list, entries, want.lists[list])
			}
		}
		if _, err := s.Sweep(t.Context(), now.AddDate(0, 1, 0), 1000); err != nil {
			t.Errorf("%s: Sweep = %v", what, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("%s: Close = %v", what, err)
	}
}

// isWithin reports whether some contains only entries of all, in the same order.
func isWithin(some, all []string) bool {
	for _, entry := range all {
		if len(some) > 0 && some[0] == entry {
			some = some[1:]
		}
	}
	return len(some) == 0
}

// TestFlippedBit changes one random bit in each row of each bucket, in the key or in the value. No answer may change: a
// call that needs the row fails, and Check finds the row.
func TestFlippedBit(t *testing.T) {
	path := newVariedDB(t)
	want, kinds := truthOf(t, path), map[string]int{}
	for _, r := range storedRows(t, path) {
		kinds[r.bucket]++
		want.expectAfter(t, r, rand.IntN(8*len(r.bytes())))
	}
	for _, b := range buckets {
		if kinds[string(b.name)] == 0 {
			t.Errorf("there is no row of %s", b.name)
		}
	}
}

// TestFlippedBits changes a bit of every byte of some rows, one at a time, and every bit in turn.
func TestFlippedBits(t *testing.T) {
	path := newVariedDB(t)
	want, tried := truthOf(t, path), 0
	for _, r := range storedRows(t, path) {
		switch r.bucket + " " + string(r.key) {
		case "recordterms " + string(engine.TermKey("asks", "state:pending", "ask_2")), "records \x04pinsam_0", "ids am_more_2", "meta schema":
			tried++
			for i := range r.bytes() {
				want.expectAfter(t, r, 8*i+i%8)
			}
		}
	}
	if tried != 4 {
		t.Errorf("tried %d rows", tried)
	}
}

// TestMovedRow checks that a row under a wrong key, or in a wrong bucket, is not accepted.
func TestMovedRow(t *testing.T) {
	path := newVariedDB(t)
	editFile(t, path, func(tx *txn) error {
		records := bucketRecords.in(tx)
		wrongKey := engine.RecordKey("pins", "am_1")
		stored := bytes.Clone(records.raw.Get(engine.RecordKey("pins", "am_2")))
		// The checksums of the rows must be enough.
		records.count.remove(bucketRecords, wrongKey, records.raw.Get(wrongKey))
		records.count.add(bucketRecords, wrongKey, bucketRecords.weight(wrongKey, stored))
		tx.tally.of(bucketMeta).add(bucketMeta, wrongKey, bucketMeta.weight(wrongKey, stored))
		return errors.Join(records.raw.Put(wrongKey, stored), bucketMeta.in(tx).raw.Put(wrongKey, stored))
	})
	found := fmt.Sprint(Check(t.Context(), path))
	if !strings.Contains(found, `pinsam_1" of records`) || !strings.Contains(found, `pinsam_1" of meta`) {
		t.Errorf("Check = %v", found)
	}
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rec, err := s.Records().Get(t.Context(), "pins", "am_1", now); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Get = %+v, %v", rec, err)
	}
}

// TestDamageIsLoggedOnce checks that a damaged row that a list leaves out is logged once, however often the list is
// read.
func TestDamageIsLoggedOnce(t *testing.T) {
	path := newVariedDB(t)
	editFile(t, path, func(tx *txn) error {
		cards := bucketCards.in(tx)
		stored := bytes.Clone(cards.raw.Get(u64(1)))
		stored[20] ^= 1
		return cards.raw.Put(u64(1), stored)
	})
	var log bytes.Buffer
	s, err := Open(t.Context(), path, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 10 {
		lists(t, s)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "of cards") {
		t.Errorf("logged %d times: %s", n, log.String())
	}
	// The quota counts the damaged card as live, so that damage does not raise a quota.
	if _, err := s.Cards().Put(t.Context(), store.PutCard{
		Now: now, Card: store.Card{ID: "am_new", Counts: []string{"host:a.example"}, Expires: forEver},
		Quotas: []store.Quota{{Key: "host:a.example", Max: 6}},
	}); !errors.Is(err, store.ErrQuota) {
		t.Errorf("Put = %v, want ErrQuota", err)
	}
}

// TestDamagedRecordCounts checks that a record with a damaged row still counts towards a maximum, and that the rest of
// the namespace stays usable.
func TestDamagedRecordCounts(t *testing.T) {
	path := newVariedDB(t)
	editFile(t, path, func(tx *txn) error {
		records, key := bucketRecords.in(tx), engine.RecordKey("pins", "am_1")
		stored := bytes.Clone(records.raw.Get(key))
		stored[3] ^= 1
		return records.raw.Put(key, stored)
	})
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	add := func(key string, most int) error {
		return s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "pins", Key: key, Expires: forEver}, Max: most}}, now)
	}
	if err := errors.Join(add("am_8", 6)); err != nil {
		t.Errorf("the sixth of six: %v", err)
	}
	if err := add("am_9", 6); !errors.Is(err, store.ErrQuota) {
		t.Errorf("the seventh of six: %v", err)
	}
}
