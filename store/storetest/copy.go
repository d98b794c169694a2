package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/store"
)

// RunMoves makes random changes, and checks every answer, on a store that moves to another engine now and then. move
// returns a store of any engine with the content of s, which is no longer used.
func RunMoves(t *testing.T, open func(t *testing.T) store.Store, move func(t *testing.T, s store.Store) store.Store) {
	t.Helper()
	s := open(t)
	round, moves := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		m := newModel(rt, t, s, round)
		mayMove := round%moveEvery == 0 // a move costs more than all the rest
		rt.Repeat(map[string]func(*rapid.T){
			"put card":   m.putCard,
			"withdraw":   m.withdraw,
			"change":     m.changeRecord,
			"step":       m.step,
			"forget":     m.forget,
			"time":       m.advance,
			"list cards": m.listCards,
			"move": func(*rapid.T) {
				if mayMove {
					mayMove = false
					moves++
					s = move(t, m.s)
					m.s = s
				}
			},
			"": m.compare, // rapid calls it after each action
		})
	})
	if moves == 0 && !t.Failed() {
		t.Error("the store was never moved")
	}
}

// moveEvery is the number of rounds from one move to the next.
const moveEvery = 10

// Fill writes entries of every kind, live and expired ones, and returns a lease under which it deleted a record.
func Fill(t *testing.T, s store.Store) store.Lease {
	t.Helper()
	lease, err := s.Leases().Acquire(t.Context(), "node")
	wantOK(t, "Acquire", err)
	fillCards(t, s)
	fillConversations(t, s)
	for i := range 20 {
		rec := store.Record{NS: "copied", Key: fmt.Sprintf("k%d\x00\xff", i), Body: []byte{0, byte(i)}}
		if i%3 == 0 {
			rec.Expires = t0.Add(time.Duration(i) * day)
		}
		if i%4 == 0 {
			rec.Terms = []string{"z", "a", "z"}
		}
		if i%2 == 0 {
			rec.Due, rec.Party = t0.Add(time.Duration(30-i)*time.Hour), fmt.Sprint("p", i%3)
		}
		wantOK(t, "Apply", s.Records().Apply(t.Context(), []store.Change{{Record: rec}}, t0))
	}
	for i := range 6 {
		rec := store.Record{NS: "copied", Key: fmt.Sprint("w", i), Due: t0.Add(time.Duration(-i) * time.Hour), Party: "p", Lane: fmt.Sprintf("l%d\xff", i%2)}
		wantOK(t, "Apply", s.Records().Apply(t.Context(), []store.Change{{Record: rec}}, t0))
	}
	wantOK(t, "Apply", s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "copied", Key: "k1\x00\xff"}, IfRev: store.Any, Delete: true, Held: &lease}}, t0))
	return lease
}

// fillCards makes 30 cards, withdraws or renews some of them, and sweeps.
func fillCards(t *testing.T, s store.Store) {
	t.Helper()
	put := func(id string, owner string, now time.Time) {
		c := store.Card{
			ID: id, Owner: hash(owner), Terms: []string{"cap:x", "word:" + id}, Counts: []string{"host:h", "token:" + owner},
			Body: []byte(id), Meta: []byte{0, 1}, Registered: now, Updated: now, Expires: now.Add(day), ReservedUntil: now.Add(3 * day),
		}
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Absent, Now: now})
		wantOK(t, "Put", err)
	}
	for i := range 30 {
		id := fmt.Sprintf("am_%02d", i)
		put(id, "one", t0.Add(-2*day+time.Duration(i)*2*time.Hour))
		switch i % 10 {
		case 1: // stays reserved
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), id, store.Any, t0.Add(5*day), nil, t0.Add(-2*day)))
		case 3: // is free at once
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), id, store.Any, time.Time{}, nil, t0.Add(-2*day)))
		case 5: // is free, and taken by another owner
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), id, store.Any, time.Time{}, nil, t0.Add(-2*day)))
			put(id, "two", t0)
		case 7: // is renewed
			put := store.PutCard{Card: store.Card{ID: id, Owner: hash("one"), Terms: []string{"cap:y"}}, IfRev: store.Any, Now: t0}
			_, err := s.Cards().Put(t.Context(), put)
			wantOK(t, "Put", err)
		}
	}
	sweepAll(t, s, t0)
}

// fillConversations makes open and closed conversations, some of which expire, and forgets some of them. Most answers
// are entries of a transcript.
func fillConversations(t *testing.T, s store.Store) {
	t.Helper()
	for i := range 20 {
		c := &store.Conversation{Key: store.ConvKey{Peer: "am_p", ID: fmt.Sprintf("c%d", i)}, Body: []byte("body"), Terms: []string{"peer:am_p"}, Open: i%2 == 0, Updated: t0}
		if i%4 == 1 {
			c.Expires = t0.Add(time.Duration(i) * day)
		}
		for n := range 3 {
			in := store.Entry{MessageID: fmt.Sprintf("m%d-%d", i, n), At: t0, Raw: []byte{byte(n)}, Digest: hash("in"), Chain: hash(fmt.Sprint(i, n))}
			if n == 1 {
				in.Key = []byte("key")
			}
			out := store.Entry{MessageID: in.MessageID + "-answer", Out: true, At: t0, Raw: []byte("answer " + in.MessageID)}
			replay := &store.Replay{Sender: "am_p", MessageID: in.MessageID, Digest: hash("in"), Conv: c.Key, Status: 200, Answer: out.Raw, Expires: t0.Add(8 * day)}
			if n == 2 {
				replay.Answer = []byte("not in the transcript")
			}
			applied, err := s.Steps().Apply(t.Context(), store.Step{Conv: c, Append: []store.Entry{in, out}, Replay: replay, Now: t0})
			wantOK(t, "Apply", err)
			c.Rev = applied.Rev
		}
		refused := &store.Replay{Sender: "am_p", MessageID: fmt.Sprintf("refused%d", i), Digest: hash("in"), Conv: c.Key, Status: 403, Answer: []byte("no"), Expires: t0.Add(8 * day)}
		_, err := s.Steps().Apply(t.Context(), store.Step{Replay: refused, Now: t0})
		wantOK(t, "Apply", err)
		if i%5 == 4 {
			wantOK(t, "Forget", s.Steps().Forget(t.Context(), c.Key, store.Any, nil, t0))
		}
	}
}

// Content returns everything that [Fill] wrote, as the calls of s return it at several times.
func Content(t *testing.T, s store.Store) (lines []string) {
	t.Helper()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	changes, err := s.Cards().Changes(t.Context(), 0, 1000)
	wantOK(t, "Changes", err)
	for _, c := range changes {
		add("change %+v", c)
	}
	for _, after := range []time.Duration{0, day / 2, 4 * day, 30 * day} {
		now := t0.Add(after)
		add("after %v", after)
		for _, c := range changes {
			card, err := s.Cards().Get(t.Context(), c.ID, now)
			add("live %+v %v", card, err)
			card, err = s.Cards().Held(t.Context(), c.ID, now)
			add("held %+v %v", card, err)
		}
		for q := (store.CardQuery{All: []string{"cap:x"}, Limit: 2, Now: now}); ; {
			page, err := s.Cards().List(t.Context(), q)
			wantOK(t, "List", err)
			add("list %+v", page.Cards)
			if page.Next == nil {
				break
			}
			q.After = *page.Next
		}
		terms, err := s.Cards().Terms(t.Context(), "", "", 1000, now)
		add("terms %v %v", terms, err)
		for _, key := range []string{"host:h", "token:one", "token:two", "none"} {
			has, err := s.Cards().HasCount(t.Context(), key, now)
			add("count %s %v %v", key, has, err)
		}
		lines = append(lines, conversationLines(t, s, now)...)
		for _, term := range []string{"", "a", "z"} {
			page, err := s.Records().List(t.Context(), "copied", term, "", 1000, now)
			add("records %q %+v %v", term, page, err)
		}
		due, next, err := s.Records().Due(t.Context(), "copied", now, []string{"p2"}, 1000)
		add("due %+v %v %v", due, next, err)
	}
	return lines
}

func conversationLines(t *testing.T, s store.Store, now time.Time) (lines []string) {
	t.Helper()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, term := range []string{"", "peer:am_p", "none"} {
		page, err := s.Steps().Conversations(t.Context(), term, 0, 1000, now)
		add("conversations %q %+v %v", term, page, err)
		for _, c := range page.Conversations {
			entries, err := s.Steps().Transcript(t.Context(), c.Key, 0, 1000)
			add("transcript %+v %v", entries, err)
		}
	}
	for i := range 20 {
		for _, id := range []string{fmt.Sprintf("m%d-0", i), fmt.Sprintf("m%d-1", i), fmt.Sprintf("m%d-2", i), fmt.Sprintf("refused%d", i)} {
			rec, err := s.Steps().FindReplay(t.Context(), "am_p", id, now)
			add("replay %s %+v %v", id, rec, err)
		}
	}
	return lines
}

// WantContinued checks that s, with a copy of what [Fill] wrote, behaves as the original would: no number is used
// twice, a cursor stays valid, and what was removed or used up stays so. before is the lease that Fill returned.
func WantContinued(t *testing.T, s store.Store, before store.Lease) {
	t.Helper()
	lease, err := s.Leases().Acquire(t.Context(), before.Name)
	wantOK(t, "Acquire", err)
	if lease.Fence <= before.Fence {
		t.Errorf("fence %d after %d", lease.Fence, before.Fence)
	}
	changes, err := s.Cards().Changes(t.Context(), 0, 1000)
	wantOK(t, "Changes", err)
	last := changes[len(changes)-1]
	convs, err := s.Steps().Conversations(t.Context(), "", 0, 1, t0)
	wantOK(t, "Conversations", err)
	newest := convs.Conversations[0]
	first, err := s.Cards().List(t.Context(), store.CardQuery{Limit: 1, Now: t0})
	wantOK(t, "List", err)

	card, err := s.Cards().Put(t.Context(), store.PutCard{Card: store.Card{ID: "am_new", Terms: []string{"cap:x"}}, Now: t0})
	wantOK(t, "Put", err)
	following, err := s.Cards().Changes(t.Context(), last.Change, 10)
	if err != nil || len(following) != 1 || following[0].ID != card.ID {
		t.Errorf("the feed continues with %+v, %v", following, err)
	}
	if ids := idsOf(t, s, store.CardQuery{After: *first.Next, Limit: 1000, Now: t0}); !slices.Contains(ids, card.ID) || slices.Contains(ids, first.Cards[0].ID) {
		t.Errorf("the second page is %q", ids)
	}
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: store.Card{ID: "am_01", Owner: hash("two")}, Now: t0})
	wantErr(t, "Put of a reserved id", err, store.ErrReserved)
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: store.Card{ID: "am_q", Counts: []string{"token:two"}}, Quotas: []store.Quota{{Key: "token:two", Max: 3}}, Now: t0})
	wantErr(t, "Put above a quota", err, store.ErrQuota)

	key := store.ConvKey{Peer: "am_p", ID: "new"}
	applied, err := s.Steps().Apply(t.Context(), store.Step{Conv: &store.Conversation{Key: key}, Now: t0})
	wantOK(t, "Apply", err)
	conv, err := s.Steps().Conversation(t.Context(), key, t0)
	wantOK(t, "Conversation", err)
	if conv.Seq <= newest.Seq || applied.Rev <= card.Rev || card.Rev <= newest.Rev {
		t.Errorf("a new conversation has seq %d after %d, and revisions are %d, %d, %d", conv.Seq, newest.Seq, newest.Rev, card.Rev, applied.Rev)
	}
	again := store.Step{Conv: &store.Conversation{Key: newest.Key, Rev: store.Any}, Replay: &store.Replay{Sender: "am_p", MessageID: "m0-0", Digest: hash("in"), Conv: newest.Key}, Now: t0}
	applied, err = s.Steps().Apply(t.Context(), again)
	if err != nil || !applied.Dup || string(applied.Replay.Answer) != "answer m0-0" {
		t.Errorf("a message that was accepted before: %+v, %v", applied, err)
	}
	// Forget finds the replay records of a copied conversation.
	wantOK(t, "Forget", s.Steps().Forget(t.Context(), store.ConvKey{Peer: "am_p", ID: "c0"}, store.Any, nil, t0))
	for _, id := range []string{"m0-0", "m0-1", "m0-2", "refused0"} {
		if rec, err := s.Steps().FindReplay(t.Context(), "am_p", id, t0); err != nil || rec.Status != 0 || rec.Answer != nil {
			t.Errorf("replay record of a forgotten conversation: %+v, %v", rec, err)
		}
	}
	// Everything ends.
	sweepAll(t, s, t0.Add(500*day))
	sweepAll(t, s, t0.Add(1000*day))
	changes, err = s.Cards().Changes(t.Context(), 0, 1000)
	wantOK(t, "Changes", err)
	for _, c := range changes {
		if card, err := s.Cards().Held(t.Context(), c.ID, t0.Add(1000*day)); err != nil || !card.Expires.IsZero() {
			t.Errorf("the feed still has %+v after the last sweep; its card is %+v, %v", c, card, err)
		}
	}
}
