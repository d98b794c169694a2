package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var stepTests = []scenario{
	{"create and advance", testStep},
	{"a refused step changes nothing", testRefusedStep},
	{"transcript pages", testTranscript},
	{"conversation expiry", testConvExpiry},
	{"list of conversations", testConvList},
	{"forget", testForget},
	{"concurrent decisions about one record", testDeciders},
	{"concurrent steps on one conversation", testStepRace},
}

func conv(peer, id string) store.Conversation {
	return store.Conversation{
		Key: store.ConvKey{Peer: peer, ID: id}, Body: []byte("state of " + id), Terms: []string{"open"}, Chain: hash(id),
		Open: true, Updated: t0,
	}
}

func entry(id string) store.Entry {
	return store.Entry{Author: "hook", MessageID: id, At: t0, Raw: []byte("raw " + id), Digest: hash(id), Chain: hash("chain " + id)}
}

func apply(t *testing.T, s store.Store, step store.Step) store.Applied {
	t.Helper()
	if step.Now.IsZero() {
		step.Now = t0
	}
	applied, err := s.Steps().Apply(t.Context(), step)
	wantOK(t, "Apply", err)
	return applied
}

func transcript(t *testing.T, s store.Store, key store.ConvKey, after uint64, limit int) []store.Entry {
	t.Helper()
	entries, err := s.Steps().Transcript(t.Context(), key, after, limit)
	wantOK(t, "Transcript", err)
	return entries
}

func testStep(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	_, err := s.Steps().Conversation(t.Context(), c.Key, t0)
	wantErr(t, "Conversation before the first step", err, store.ErrNotFound)
	first := apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("m1")}})
	got, err := s.Steps().Conversation(t.Context(), c.Key, t0)
	wantOK(t, "Conversation", err)
	want := c
	want.Seq, want.Rev, want.Entries = got.Seq, first.Rev, 1
	wantSame(t, "Conversation", got, want)

	c.Rev, c.Body, c.Open, c.Expires, c.Terms, c.Chain = first.Rev, []byte("done"), false, t0.Add(day), []string{"b", "a"}, hash("x")
	out := entry("m3")
	out.Out, out.Key = true, []byte("key of m3")
	second := apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("m2"), out}})
	if second.Rev <= first.Rev {
		t.Errorf("revision %d after %d", second.Rev, first.Rev)
	}
	got, err = s.Steps().Conversation(t.Context(), c.Key, t0)
	wantOK(t, "Conversation", err)
	want = c
	want.Seq, want.Rev, want.Entries, want.Terms = got.Seq, second.Rev, 3, []string{"a", "b"}
	wantSame(t, "Conversation after a step", got, want)
	entries := []store.Entry{entry("m1"), entry("m2"), out}
	for i := range entries {
		entries[i].N = uint64(i + 1)
	}
	wantSame(t, "Transcript", transcript(t, s, c.Key, 0, 9), entries)

	same := conv("am_q", "conv_1") // the same id with another peer
	apply(t, s, store.Step{Conv: &same})
	wantSame(t, "Transcript of the other", transcript(t, s, same.Key, 0, 9), nil)

	_, err = s.Steps().Apply(t.Context(), store.Step{Append: entries, Now: t0})
	wantMistake(t, "entries without a conversation", err)
}

func testRefusedStep(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	rev := apply(t, s, store.Step{Conv: &c}).Rev
	wantOK(t, "record", s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "inbox", Key: "taken"}}}, t0))
	replay := store.Replay{Sender: "am_p", MessageID: "m1", Digest: hash("m1"), Conv: c.Key, Expires: t0.Add(day)}
	for name, step := range map[string]store.Step{
		"conversation that exists": {Conv: &store.Conversation{Key: c.Key}},
		"wrong revision":           {Conv: &store.Conversation{Key: c.Key, Rev: rev + 1}},
		"revision of an unknown conversation": {
			Conv: &store.Conversation{Key: store.ConvKey{Peer: "am_p", ID: "conv_2"}, Rev: rev},
		},
		"record that exists": {
			Conv:    &store.Conversation{Key: c.Key, Rev: rev, Body: []byte("new")},
			Records: []store.Change{{Record: store.Record{NS: "inbox", Key: "a"}}, {Record: store.Record{NS: "inbox", Key: "taken"}}},
		},
	} {
		step.Replay, step.Now = &replay, t0
		step.Append = []store.Entry{entry("m1")}
		_, err := s.Steps().Apply(t.Context(), step)
		wantErr(t, name, err, store.ErrConflict)
	}
	got, err := s.Steps().Conversation(t.Context(), c.Key, t0)
	wantOK(t, "Conversation", err)
	if got.Rev != rev || got.Entries != 0 || len(transcript(t, s, c.Key, 0, 9)) != 0 {
		t.Errorf("refused steps left rev %d (was %d) and %d entries", got.Rev, rev, got.Entries)
	}
	_, err = s.Records().Get(t.Context(), "inbox", "a", t0)
	wantErr(t, "record of a refused step", err, store.ErrNotFound)
	_, err = s.Steps().FindReplay(t.Context(), "am_p", "m1", t0)
	wantErr(t, "replay of a refused step", err, store.ErrNotFound)
	got.Body = []byte("any")
	got.Rev = store.Any
	if apply(t, s, store.Step{Conv: &got}).Rev <= rev {
		t.Error("a step with Any did not move the revision")
	}
}

func testTranscript(t *testing.T, s store.Store) {
	a, b := conv("am_p", "conv_a"), conv("am_p", "conv_b")
	apply(t, s, store.Step{Conv: &a})
	apply(t, s, store.Step{Conv: &b})
	for i := range 10 {
		a.Rev, b.Rev = store.Any, store.Any
		apply(t, s, store.Step{Conv: &a, Append: []store.Entry{entry(fmt.Sprintf("a%d", i))}})
		apply(t, s, store.Step{Conv: &b, Append: []store.Entry{entry(fmt.Sprintf("b%d", i)), entry("bb")}})
	}
	var got []string
	for after := uint64(0); ; {
		page := transcript(t, s, a.Key, after, 3)
		for _, e := range page {
			if e.N != after+1 {
				t.Fatalf("entry %d comes after %d", e.N, after)
			}
			after = e.N
			got = append(got, e.MessageID)
		}
		if len(page) < 3 {
			break
		}
	}
	wantSame(t, "transcript", got, []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"})
	if n := len(transcript(t, s, b.Key, 0, 100)); n != 20 {
		t.Errorf("the other transcript has %d entries, want 20", n)
	}
	wantSame(t, "transcript of an unknown conversation", transcript(t, s, store.ConvKey{Peer: "am_p", ID: "none"}, 0, 9), nil)
	_, err := s.Steps().Transcript(t.Context(), a.Key, 0, 0)
	wantMistake(t, "limit 0", err)
}

func testConvExpiry(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	c.Open, c.Expires = false, t0.Add(day)
	first := apply(t, s, store.Step{Conv: &c, Append: []store.Entry{entry("m1"), entry("m2")}})
	_, err := s.Steps().Conversation(t.Context(), c.Key, c.Expires.Add(-1))
	wantOK(t, "Conversation before it expires", err)
	_, err = s.Steps().Conversation(t.Context(), c.Key, c.Expires)
	wantErr(t, "Conversation when it expires", err, store.ErrNotFound)
	page, err := s.Steps().Conversations(t.Context(), "", 0, 9, c.Expires)
	if err != nil || len(page.Conversations) != 0 {
		t.Errorf("Conversations when the conversation has expired = %d, %v", len(page.Conversations), err)
	}
	c.Rev = first.Rev
	_, err = s.Steps().Apply(t.Context(), store.Step{Conv: &c, Now: c.Expires})
	wantErr(t, "step on an expired conversation", err, store.ErrConflict)

	now := c.Expires
	again := conv("am_p", "conv_1")
	apply(t, s, store.Step{Conv: &again, Append: []store.Entry{entry("n1")}, Now: now})
	got := transcript(t, s, c.Key, 0, 9)
	if len(got) != 1 || got[0].MessageID != "n1" || got[0].N != 1 {
		t.Errorf("transcript of the new conversation is %v", got)
	}
	sweepAll(t, s, now.Add(day))
	if n := len(transcript(t, s, c.Key, 0, 9)); n != 1 {
		t.Errorf("Sweep left %d entries of the new conversation, want 1", n)
	}
}

func testConvList(t *testing.T, s store.Store) {
	for i := range 7 {
		c := conv("am_p", fmt.Sprintf("conv_%d", i))
		c.Terms = []string{fmt.Sprintf("odd:%d", i%2)}
		if i == 3 {
			c.Expires = t0
		}
		apply(t, s, store.Step{Conv: &c, Now: t0.Add(-1)})
	}
	moved := conv("am_p", "conv_1")
	moved.Rev, moved.Terms = store.Any, []string{"odd:0"}
	apply(t, s, store.Step{Conv: &moved})
	for _, test := range []struct {
		term string
		want []string
	}{
		{"", []string{"conv_6", "conv_5", "conv_4", "conv_2", "conv_1", "conv_0"}},
		{"odd:0", []string{"conv_6", "conv_4", "conv_2", "conv_1", "conv_0"}},
		{"odd:1", []string{"conv_5"}},
		{"odd:", nil},
		{"odd:2", nil},
	} {
		for limit := 1; limit < 8; limit++ {
			var got []string
			for before, more := uint64(0), true; more; {
				page, err := s.Steps().Conversations(t.Context(), test.term, before, limit, t0)
				wantOK(t, "Conversations", err)
				for _, c := range page.Conversations {
					got = append(got, c.Key.ID)
				}
				if before = page.Next; before == 0 {
					more = false
				} else if len(page.Conversations) != limit {
					t.Fatalf("a page that is not the last has %d conversations, want %d", len(page.Conversations), limit)
				}
			}
			wantSame(t, fmt.Sprintf("Conversations(%q) in pages of %d", test.term, limit), got, test.want)
		}
	}
	_, err := s.Steps().Conversations(t.Context(), "", 0, 0, t0)
	wantMistake(t, "limit 0", err)
}

func testForget(t *testing.T, s store.Store) {
	a, b := conv("am_p", "conv_a"), conv("am_p", "conv_b")
	step := func(c *store.Conversation, id string, expires time.Time) {
		c.Rev = store.Any
		apply(t, s, store.Step{
			Conv: c, Append: []store.Entry{entry(id)},
			Replay: &store.Replay{Sender: "am_p", MessageID: id, Digest: hash(id), Conv: c.Key, Status: 200, Answer: []byte(id), Expires: expires},
		})
	}
	step(&a, "a1", t0.Add(day))
	step(&a, "a2", t0.Add(30*day))
	step(&a, "a3", time.Time{})
	step(&b, "b1", t0.Add(day))
	wantErr(t, "Forget of nothing", s.Steps().Forget(t.Context(), store.ConvKey{Peer: "am_q", ID: "conv_a"}, store.Any, nil, t0), store.ErrNotFound)
	wantErr(t, "Forget with another revision", s.Steps().Forget(t.Context(), a.Key, 1<<40, nil, t0), store.ErrConflict)
	row, err := s.Steps().Conversation(t.Context(), a.Key, t0)
	wantOK(t, "Conversation", err)
	note := []store.Change{{Record: store.Record{NS: "audit", Key: "1"}}}
	wantOK(t, "Forget", s.Steps().Forget(t.Context(), a.Key, row.Rev, note, t0))
	_, err = s.Records().Get(t.Context(), "audit", "1", t0)
	wantOK(t, "record of Forget", err)
	_, err = s.Steps().Conversation(t.Context(), a.Key, t0)
	wantErr(t, "Conversation after Forget", err, store.ErrNotFound)
	wantSame(t, "transcript after Forget", transcript(t, s, a.Key, 0, 9), nil)
	for _, id := range []string{"a1", "a2", "a3"} {
		rec, err := s.Steps().FindReplay(t.Context(), "am_p", id, t0)
		wantOK(t, "FindReplay after Forget", err)
		if rec.Digest != hash(id) || rec.Status != 0 || len(rec.Answer) != 0 {
			t.Errorf("replay of a forgotten conversation = %d %q, want it without its answer", rec.Status, rec.Answer)
		}
	}
	again := conv("am_p", "conv_a")
	again.Rev = store.Any
	applied := apply(t, s, store.Step{Conv: &again, Replay: &store.Replay{Sender: "am_p", MessageID: "a1", Digest: hash("a1"), Conv: again.Key}})
	if !applied.Dup {
		t.Error("a message of a forgotten conversation was accepted again")
	}
	_, err = s.Steps().FindReplay(t.Context(), "am_p", "a1", t0.Add(day))
	wantErr(t, "FindReplay after Forget and expiry", err, store.ErrNotFound)
	rec, err := s.Steps().FindReplay(t.Context(), "am_p", "b1", t0)
	wantOK(t, "replay of the other conversation", err)
	if rec.Status != 200 || string(rec.Answer) != "b1" {
		t.Errorf("replay of the other conversation = %d %q", rec.Status, rec.Answer)
	}
	if n := len(transcript(t, s, b.Key, 0, 9)); n != 1 {
		t.Errorf("the other transcript has %d entries", n)
	}
	page, err := s.Steps().Conversations(t.Context(), "open", 0, 9, t0)
	if err != nil || len(page.Conversations) != 1 {
		t.Errorf("Conversations after Forget = %d, %v", len(page.Conversations), err)
	}
}

// testDeciders decides one held message in eight concurrent calls, each with its own entry. Only one call may win.
func testDeciders(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	hold := store.Record{NS: "holds", Key: "h1", Body: []byte("held")}
	apply(t, s, store.Step{Conv: &c, Records: []store.Change{{Record: hold}}})
	rec, err := s.Records().Get(t.Context(), "holds", "h1", t0)
	wantOK(t, "hold", err)
	won := race(t, 8, func(i int) error {
		c := conv("am_p", "conv_1")
		c.Rev = store.Any
		_, err := s.Steps().Apply(t.Context(), store.Step{
			Conv: &c, Append: []store.Entry{entry(fmt.Sprint(i))},
			Records: []store.Change{{Record: hold, IfRev: rec.Rev, Delete: true}}, Now: t0,
		})
		return err
	}, store.ErrConflict)
	if n := len(transcript(t, s, c.Key, 0, 9)); won != 1 || n != 1 {
		t.Errorf("%d of 8 decisions won and left %d entries", won, n)
	}
}

func testStepRace(t *testing.T, s store.Store) {
	c := conv("am_p", "conv_1")
	rev := apply(t, s, store.Step{Conv: &c}).Rev
	won := race(t, 8, func(i int) error {
		c := conv("am_p", "conv_1")
		c.Rev = rev
		_, err := s.Steps().Apply(t.Context(), store.Step{Conv: &c, Append: []store.Entry{entry(fmt.Sprint(i))}, Now: t0})
		return err
	}, store.ErrConflict)
	if n := len(transcript(t, s, c.Key, 0, 9)); won != 1 || n != 1 {
		t.Errorf("%d of 8 steps won and left %d entries", won, n)
	}
}
