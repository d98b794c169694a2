package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var replayTests = []scenario{
	{"duplicate and mismatch", testReplay},
	{"answer is replaced", testAnswer},
	{"answer in the transcript", testAnswerInTranscript},
	{"expiry, and open conversations", testReplayExpiry},
	{"answer after the conversation has expired", testReplayAfterExpiry},
	{"two copies at once", testReplayRace},
}

// replay returns the record of an accepted message of am_p, with its answer.
func replay(id string, key store.ConvKey) *store.Replay {
	return &store.Replay{
		Sender: "am_p", MessageID: id, Digest: hash(id), Conv: key, Status: 202, Answer: []byte("answer to " + id), Expires: t0.Add(8 * day),
	}
}

func testReplay(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	first := replay("m1", c.Key)
	step := store.Step{Conv: &c, Append: []store.Entry{entry("m1")}, Replay: first, Now: t0}
	if got := apply(t, s, step); got.Dup || got.Rev == 0 {
		t.Errorf("first copy: %+v", got)
	}
	step.Records = []store.Change{{Record: store.Record{NS: "inbox", Key: "again"}}}
	got := apply(t, s, step) // the revision of c would be refused, but the replay record is checked first
	if !got.Dup {
		t.Error("second copy is not a duplicate")
	}
	wantSame(t, "stored record", got.Replay, first)
	_, err := s.Records().Get(t.Context(), "inbox", "again", t0)
	wantErr(t, "record of a duplicate", err, store.ErrNotFound)
	if n := len(transcript(t, s, c.Key, 0, 9)); n != 1 {
		t.Errorf("transcript has %d entries after a duplicate", n)
	}
	other := *first
	other.Digest = hash("other")
	_, err = s.Steps().Apply(t.Context(), store.Step{Replay: &other, Now: t0})
	wantErr(t, "other content under the id", err, store.ErrMismatch)
	another := *first
	another.Sender, another.Digest = "am_q", hash("other")
	if apply(t, s, store.Step{Replay: &another}).Dup {
		t.Error("the id of another sender is a duplicate")
	}
	rec, err := s.Steps().FindReplay(t.Context(), "am_p", "m1", t0)
	wantOK(t, "FindReplay", err)
	wantSame(t, "FindReplay", rec, *first)
	_, err = s.Steps().FindReplay(t.Context(), "am_p", "m2", t0)
	wantErr(t, "FindReplay of an unknown message", err, store.ErrNotFound)
}

func testAnswer(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	apply(t, s, store.Step{Conv: &c, Replay: replay("m1", c.Key)})
	final := replay("m1", store.ConvKey{})
	final.Status, final.Answer, final.Expires = 200, []byte("final"), time.Time{}
	c.Rev = store.Any
	apply(t, s, store.Step{Conv: &c, Answer: final, Append: []store.Entry{entry("r1")}})
	want := replay("m1", c.Key)
	want.Status, want.Answer = 200, []byte("final")
	got, err := s.Steps().FindReplay(t.Context(), "am_p", "m1", t0)
	wantOK(t, "FindReplay", err)
	wantSame(t, "record with its new answer", got, *want)
	if dup := apply(t, s, store.Step{Replay: replay("m1", c.Key)}); !dup.Dup || string(dup.Replay.Answer) != "final" {
		t.Errorf("repeat gets %+v", dup)
	}
	wrong := replay("m1", c.Key)
	wrong.Digest = hash("other")
	_, err = s.Steps().Apply(t.Context(), store.Step{Conv: &c, Answer: wrong, Append: []store.Entry{entry("r2")}, Now: t0})
	wantErr(t, "answer to other content", err, store.ErrMismatch)
	if n := len(transcript(t, s, c.Key, 0, 9)); n != 1 {
		t.Errorf("transcript has %d entries, want 1", n)
	}
	apply(t, s, store.Step{Conv: &c, Answer: replay("gone", c.Key)})
	_, err = s.Steps().FindReplay(t.Context(), "am_p", "gone", t0)
	wantErr(t, "FindReplay of a record that was gone", err, store.ErrNotFound)
}

// testAnswerInTranscript checks records whose answer is also an entry of the transcript. An engine may store such bytes
// only once.
func testAnswerInTranscript(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	c.Expires = t0.Add(2 * day)
	answer := entry("r1")
	answer.Out, answer.Raw = true, []byte("answer to m1")
	apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("m1"), answer}, Replay: replay("m1", c.Key)})
	c.Rev = store.Any
	apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("m2")}, Replay: replay("m2", c.Key)})
	final := replay("m2", c.Key)
	final.Status, final.Answer = 200, []byte("final")
	late := entry("r2")
	late.Out, late.Raw = true, final.Answer
	apply(t, s, store.Step{Conv: &c, Append: []store.Entry{late}, Answer: final})

	check := func(what, id string, now time.Time, want store.Replay) {
		t.Helper()
		got, err := s.Steps().FindReplay(t.Context(), "am_p", id, now)
		wantOK(t, what, err)
		wantSame(t, what, got, want)
		applied, err := s.Steps().Apply(t.Context(), store.Step{Replay: replay(id, c.Key), Now: now})
		wantOK(t, what, err)
		if !applied.Dup {
			t.Fatalf("%s: a repeat is not a duplicate", what)
		}
		wantSame(t, what+", repeated", *applied.Replay, want)
	}
	first, second := *replay("m1", c.Key), *final
	check("answer of the same step", "m1", t0, first)
	check("answer of a later step", "m2", t0, second)

	first.Status, first.Answer, second.Status, second.Answer = 0, nil, 0, nil
	end := c.Expires
	check("expired conversation", "m1", end, first)
	c.Rev, c.Expires = store.Absent, t0.Add(30*day)
	apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("other"), entry("other2")}, Now: end})
	check("another conversation with the key", "m1", end, first)
	sweepAll(t, s, end)
	check("expired conversation, swept", "m2", end, second)
}

func testReplayExpiry(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	apply(t, s, store.Step{Conv: &c, Replay: replay("m1", c.Key)})
	loose := replay("m2", store.ConvKey{}) // belongs to no conversation
	apply(t, s, store.Step{Replay: loose})
	forever := replay("m3", store.ConvKey{})
	forever.Expires = time.Time{}
	apply(t, s, store.Step{Replay: forever})

	wantReplay := func(what, id string, now time.Time, want bool) {
		t.Helper()
		_, err := s.Steps().FindReplay(t.Context(), "am_p", id, now)
		if (err == nil) != want {
			t.Errorf("%s: FindReplay(%s) = %v, want found %v", what, id, err, want)
		}
	}
	end := loose.Expires
	wantReplay("before it expires", "m2", end.Add(-1), true)
	wantReplay("when it expires", "m2", end, false)
	wantReplay("conversation is open", "m1", end.Add(90*day), true)
	for _, late := range []time.Duration{0, 10 * day, 50 * day, 90 * day} {
		sweepAll(t, s, end.Add(late))
	}
	wantReplay("swept, conversation is open", "m1", end.Add(90*day), true)
	wantReplay("never ends", "m3", end.Add(9000*day), true)
	if dup := apply(t, s, store.Step{Replay: replay("m1", c.Key), Now: end.Add(90 * day)}); !dup.Dup {
		t.Error("a repeat within an open conversation is not a duplicate")
	}
	late := end.Add(91 * day)
	again := *loose
	again.Digest, again.Expires = hash("other"), late.Add(day)
	if apply(t, s, store.Step{Replay: &again, Now: late}).Dup {
		t.Error("an id that is free again is a duplicate")
	}
	c.Rev, c.Open, c.Expires = store.Any, false, late.Add(30*day)
	apply(t, s, store.Step{Conv: &c, Now: late})
	wantReplay("conversation is closed", "m1", late, false)
	wantReplay("stored again", "m2", late, true)
	sweepAll(t, s, late.Add(20*day))
	wantReplay("swept", "m1", t0, false)
}

func testReplayAfterExpiry(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	c.Open, c.Expires = false, t0.Add(day)
	apply(t, s, store.Step{Conv: &c, Now: t0})
	late, refusal := t0.Add(2*day), replay("m1", c.Key)
	refusal.Status = 403
	apply(t, s, store.Step{Replay: refusal, Now: late}) // before a sweep
	for range 2 {
		rec, err := s.Steps().FindReplay(t.Context(), "am_p", "m1", late)
		wantOK(t, "FindReplay", err)
		wantSame(t, "record", rec, *refusal)
		sweepAll(t, s, late)
	}
}

func testReplayRace(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	apply(t, s, store.Step{Conv: &c})
	var mu sync.Mutex
	var applied, dups int
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			c := conv("am_p", "conv_1")
			c.Rev = store.Any
			got, err := s.Steps().Apply(t.Context(), store.Step{Conv: &c, Append: []store.Entry{entry("m1")}, Replay: replay("m1", c.Key), Now: t0})
			if err != nil {
				t.Errorf("Apply = %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if got.Dup {
				dups++
			} else {
				applied++
			}
		})
	}
	all.Wait()
	if n := len(transcript(t, s, c.Key, 0, 99)); applied != 1 || dups != 11 || n != 1 {
		t.Errorf("%d applied, %d duplicates, %d entries; want 1, 11, 1", applied, dups, n)
	}
}
