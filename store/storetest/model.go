package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/store"
)

// testModel applies random changes to the store and to maps, and compares every answer.
func testModel(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		// One store serves all rounds, because opening a store costs more than a round. Each round has names of its
		// own.
		round++
		m := newModel(rt, t, s, round)
		rt.Repeat(map[string]func(*rapid.T){
			"put card":   m.putCard,
			"withdraw":   m.withdraw,
			"change":     m.changeRecord,
			"step":       m.step,
			"forget":     m.forget,
			"time":       m.advance,
			"list cards": m.listCards,
			"":           m.compare, // rapid calls it after each action
		})
	})
}

func newModel(rt *rapid.T, t *testing.T, s store.Store, round int) *model {
	return &model{
		t: rt, test: t, s: s, round: fmt.Sprintf("r%d-", round), ns: fmt.Sprint("model", round), now: t0,
		cards: make(map[string]store.Card), records: make(map[string]store.Record), convs: make(map[string]*modelConv),
		replays: make(map[string]modelReplay),
	}
}

// modelConv is a conversation with the ids of the messages in its transcript.
type modelConv struct {
	store.Conversation
	entries []string
}

// model has what the store must contain from one round.
type model struct {
	t     *rapid.T
	test  *testing.T
	s     store.Store
	round string // the prefix of all names in this round
	ns    string // the namespace of the records of this round
	now   time.Time

	cards   map[string]store.Card
	records map[string]store.Record
	convs   map[string]*modelConv
	replays map[string]modelReplay
}

// modelReplay is a replay record with the conversation for which it was stored. A later conversation with the same key
// is another modelConv.
type modelReplay struct {
	store.Replay
	conv *modelConv
}

var (
	someID    = rapid.SampledFrom([]string{"a", "b", "c", "d"})
	someTerms = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "xa", "xab", "y"}), 0, 3, rapid.ID[string])
	someLife  = rapid.SampledFrom([]time.Duration{1, time.Hour, 24 * time.Hour, 100 * 24 * time.Hour})
	someOwner = rapid.SampledFrom([]string{"one", "two"})
	someRev   = rapid.SampledFrom([]string{"absent", "any", "right", "wrong"})
)

// agree fails the test unless got matches the sentinel want, or both are nil.
func (m *model) agree(what string, got, want error) {
	m.t.Helper()
	if (got == nil) != (want == nil) || want != nil && !errors.Is(got, want) {
		m.t.Fatalf("%s = %v, want %v", what, got, want)
	}
}

// drawRev returns a random precondition. current is the revision of the entry.
func (m *model) drawRev(t *rapid.T, current store.Rev) store.Rev {
	switch someRev.Draw(t, "revision") {
	case "any":
		return store.Any
	case "right":
		return current
	case "wrong":
		return 1<<50 + 1
	}
	return store.Absent
}

// fits reports whether an entry satisfies the precondition want. live and current describe the entry.
func fits(want store.Rev, live bool, current store.Rev) bool {
	return want == store.Any || want == store.Absent && !live || live && want == current
}

func (m *model) drawTerms(t *rapid.T) []string {
	terms := someTerms.Draw(t, "terms")
	for i, term := range terms {
		terms[i] = m.round + term
	}
	slices.Sort(terms)
	return terms
}

func (m *model) putCard(t *rapid.T) {
	id := m.round + someID.Draw(t, "id")
	old, exists := m.cards[id]
	held := exists && old.Held(m.now)
	c := store.Card{
		ID: id, Owner: hash(someOwner.Draw(t, "owner")), Terms: m.drawTerms(t), Body: []byte(id),
		Registered: m.now, Updated: m.now, Expires: m.now.Add(someLife.Draw(t, "life")),
	}
	c.ReservedUntil = c.Expires.Add(someLife.Draw(t, "reserved"))
	ifRev := m.drawRev(t, old.Rev)
	var want error
	switch {
	case ifRev == store.Any || ifRev == store.Absent && !held:
	case ifRev != store.Absent && (!held || ifRev != old.Rev):
		want = store.ErrConflict
	case ifRev == store.Absent && old.Live(m.now):
		want = store.ErrConflict
	case ifRev == store.Absent && old.Owner != c.Owner:
		want = store.ErrReserved
	}
	stored, err := m.s.Cards().Put(m.test.Context(), store.PutCard{Card: c, IfRev: ifRev, Now: m.now})
	m.agree("Put", err, want)
	if err != nil {
		return
	}
	if held && (stored.Seq != old.Seq || !stored.Registered.Equal(old.Registered)) || stored.Rev <= old.Rev {
		m.t.Fatalf("Put gave seq %d, rev %d, registered %v over %d, %d, %v (held %v)",
			stored.Seq, stored.Rev, stored.Registered, old.Seq, old.Rev, old.Registered, held)
	}
	m.cards[id] = stored
}

func (m *model) withdraw(t *rapid.T) {
	id := m.round + someID.Draw(t, "id")
	old, exists := m.cards[id]
	ifRev, until := m.drawRev(t, old.Rev), m.now.Add(someLife.Draw(t, "reserved"))
	var want error
	if !exists || !old.Live(m.now) {
		want = store.ErrNotFound
	} else if !fits(ifRev, true, old.Rev) {
		want = store.ErrConflict
	}
	err := m.s.Cards().Withdraw(m.test.Context(), id, ifRev, until, nil, m.now)
	m.agree("Withdraw", err, want)
	if err == nil {
		held, err := m.s.Cards().Held(m.test.Context(), id, m.now)
		m.agree("Held", err, nil)
		m.cards[id] = held
	}
}

func (m *model) listCards(t *rapid.T) {
	q := store.CardQuery{Limit: rapid.IntRange(1, 3).Draw(t, "limit"), Now: m.now, All: m.drawTerms(t)}
	for range rapid.IntRange(1, 3).Draw(t, "tiers") {
		tier := store.Tier{All: m.drawTerms(t)}
		if rapid.Bool().Draw(t, "prefixed") {
			tier.Prefix = m.round + "x"
		}
		q.Tiers = append(q.Tiers, tier)
	}
	if !strings.HasPrefix(strings.Join(q.All, ""), m.round) {
		q.All = []string{m.round + "x"} // otherwise the query also matches the cards of other rounds
	}
	var want []string
	cards := slices.SortedFunc(maps.Values(m.cards), func(a, b store.Card) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := range q.Tiers {
		for _, c := range cards {
			if c.Live(m.now) && tierOf(c.Terms, q) == i {
				want = append(want, c.ID)
			}
		}
	}
	if got := idsOf(m.test, m.s, q); !slices.Equal(got, want) {
		m.t.Fatalf("List(%+v) = %q, want %q", q, got, want)
	}
}

func tierOf(terms []string, q store.CardQuery) int {
	has := func(all []string) bool {
		return !slices.ContainsFunc(all, func(term string) bool { return !slices.Contains(terms, term) })
	}
	if !has(q.All) {
		return -1
	}
	return slices.IndexFunc(q.Tiers, func(tier store.Tier) bool {
		begins := func(term string) bool { return strings.HasPrefix(term, tier.Prefix) }
		return has(tier.All) && (tier.Prefix == "" || slices.ContainsFunc(terms, begins))
	})
}

// drawChange returns a random change of a record, and the error that it must get.
func (m *model) drawChange(t *rapid.T) (store.Change, error) {
	key := m.round + someID.Draw(t, "key")
	old, exists := m.records[key]
	live := exists && isLive(old.Expires, m.now)
	c := store.Change{Record: store.Record{NS: m.ns, Key: key, Body: []byte(key), Terms: m.drawTerms(t)}, IfRev: m.drawRev(t, old.Rev)}
	if rapid.Bool().Draw(t, "expires") {
		c.Record.Expires = m.now.Add(someLife.Draw(t, "life"))
	}
	if rapid.Bool().Draw(t, "work") {
		c.Record.Due = rapid.SampledFrom([]time.Time{store.DueNow, m.now, m.now.Add(time.Hour)}).Draw(t, "due")
		c.Record.Party = someOwner.Draw(t, "party")
		if c.Record.Expires.IsZero() && rapid.Bool().Draw(t, "in a lane") {
			c.Record.Lane = m.round + someOwner.Draw(t, "lane")
		}
	}
	c.Delete = rapid.Bool().Draw(t, "delete")
	if !c.Delete && m.lane(c.Record) != "" && m.lane(old) != m.lane(c.Record) {
		for _, rec := range m.records {
			if m.lane(rec) == m.lane(c.Record) && rec.Key >= key { // it must not join the lane
				c.Record.Lane = ""
			}
		}
	}
	if !fits(c.IfRev, live, old.Rev) {
		return c, store.ErrConflict
	}
	return c, nil
}

// lane returns the lane of a record that is work, or "".
func (m *model) lane(rec store.Record) string {
	if rec.Due.IsZero() {
		return ""
	}
	return rec.Lane
}

// due returns the keys of the heads of this round that are due at until, and the Due of the first one that is not.
func (m *model) due(until time.Time, skip string) (due []string, next time.Time) {
	var heads []store.Record
	for _, rec := range m.records {
		isHead := !rec.Due.IsZero() && isLive(rec.Expires, until) && rec.Party != skip
		for _, other := range m.records {
			isHead = isHead && (m.lane(rec) == "" || m.lane(other) != m.lane(rec) || other.Key >= rec.Key)
		}
		if isHead {
			heads = append(heads, rec)
		}
	}
	slices.SortFunc(heads, func(a, b store.Record) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.Rev, b.Rev)) })
	for _, rec := range heads {
		if rec.Due.After(until) {
			return due, rec.Due
		}
		due = append(due, rec.Key)
	}
	return due, next
}

func isLive(expires, now time.Time) bool { return expires.IsZero() || now.Before(expires) }

// recordChange applies to the model a change that the store has applied.
func (m *model) recordChange(c store.Change) {
	if c.Delete {
		delete(m.records, c.Record.Key)
		return
	}
	rec, err := m.s.Records().Get(m.test.Context(), m.ns, c.Record.Key, m.now)
	m.agree("Get of a new record", err, nil)
	if old := m.records[c.Record.Key]; rec.Rev <= old.Rev {
		m.t.Fatalf("revision of a record went from %d to %d", old.Rev, rec.Rev)
	}
	c.Record.Rev = rec.Rev
	m.records[c.Record.Key] = c.Record
}

func (m *model) changeRecord(t *rapid.T) {
	c, want := m.drawChange(t)
	err := m.s.Records().Apply(m.test.Context(), []store.Change{c}, m.now)
	m.agree("Records.Apply", err, want)
	if err == nil {
		m.recordChange(c)
	}
}

func (m *model) step(t *rapid.T) {
	key := store.ConvKey{Peer: "am_p", ID: m.round + someID.Draw(t, "conversation")}
	old := m.convs[key.ID]
	live := old != nil && isLive(old.Expires, m.now)
	var rev store.Rev
	if old != nil {
		rev = old.Rev
	}
	id := m.round + someID.Draw(t, "message")
	c := &store.Conversation{Key: key, Rev: m.drawRev(t, rev), Open: rapid.Bool().Draw(t, "open"), Terms: m.drawTerms(t)}
	if live && !old.Open {
		c.Open = false
	}
	if !c.Open {
		c.Expires = m.now.Add(someLife.Draw(t, "life"))
	}
	step := store.Step{Conv: c, Append: []store.Entry{{MessageID: id}}, Now: m.now}
	step.Replay = &store.Replay{Sender: "am_p", MessageID: id, Digest: hash(someOwner.Draw(t, "content")), Conv: key, Expires: m.now.Add(someLife.Draw(t, "remembered"))}
	record, want := m.drawChange(t)
	step.Records = []store.Change{record}
	if !fits(c.Rev, live, rev) {
		want = store.ErrConflict
	}
	before, known := m.findReplay(id)
	if known && before.Digest != step.Replay.Digest {
		want = store.ErrMismatch
	}
	dup := known && want != store.ErrMismatch
	if dup {
		want = nil
	}
	applied, err := m.s.Steps().Apply(m.test.Context(), step)
	m.agree("Steps.Apply", err, want)
	if err != nil {
		return
	}
	if applied.Dup != dup {
		m.t.Fatalf("Apply has Dup %v, want %v", applied.Dup, dup)
	}
	if dup {
		return
	}
	if !live {
		old = &modelConv{}
		m.convs[key.ID] = old
	}
	c.Rev = applied.Rev
	old.Conversation, old.entries = *c, append(old.entries, id)
	m.replays[id] = modelReplay{*step.Replay, old}
	m.recordChange(record)
}

func (m *model) findReplay(id string) (store.Replay, bool) {
	rec, ok := m.replays[id]
	if !ok {
		return rec.Replay, false
	}
	return rec.Replay, isLive(rec.Expires, m.now) || rec.conv.Open && isLive(rec.conv.Expires, m.now)
}

func (m *model) forget(t *rapid.T) {
	id := m.round + someID.Draw(t, "conversation")
	c := m.convs[id]
	want := error(nil)
	if c == nil || !isLive(c.Expires, m.now) {
		want = store.ErrNotFound
	}
	err := m.s.Steps().Forget(m.test.Context(), store.ConvKey{Peer: "am_p", ID: id}, store.Any, nil, m.now)
	m.agree("Forget", err, want)
	if err != nil {
		return
	}
	delete(m.convs, id)
	c.Open = false // its replay records live on until they expire
}

// advance lets time pass, and sometimes sweeps.
func (m *model) advance(t *rapid.T) {
	m.now = m.now.Add(someLife.Draw(t, "pass"))
	if rapid.Bool().Draw(t, "sweep") {
		sweepAll(m.test, m.s, m.now)
	}
}

// compare asks the store for everything that the model contains.
func (m *model) compare(t *rapid.T) {
	for id, c := range m.cards {
		_, err := m.s.Cards().Get(m.test.Context(), id, m.now)
		m.agree("Get", err, notFoundUnless(c.Live(m.now)))
		_, err = m.s.Cards().Held(m.test.Context(), id, m.now)
		m.agree("Held", err, notFoundUnless(c.Held(m.now)))
	}
	for key, rec := range m.records {
		got, err := m.s.Records().Get(m.test.Context(), m.ns, key, m.now)
		m.agree("record", err, notFoundUnless(isLive(rec.Expires, m.now)))
		if err == nil && (got.Rev != rec.Rev || !slices.Equal(got.Terms, rec.Terms)) {
			m.t.Fatalf("record %s is %+v, want %+v", key, got, rec)
		}
	}
	for _, skip := range []string{"", "one"} {
		want, next := m.due(m.now, skip)
		recs, gotNext, err := m.s.Records().Due(m.test.Context(), m.ns, m.now, []string{skip}, 100)
		m.agree("Due", err, nil)
		var got []string
		for _, rec := range recs {
			got = append(got, rec.Key)
		}
		if !slices.Equal(got, want) || !gotNext.Equal(next) {
			m.t.Fatalf("without %q, due are %q, then %v, want %q, then %v", skip, got, gotNext, want, next)
		}
	}
	for _, term := range []string{"", m.round + "x"} {
		want := 0
		for _, rec := range m.records {
			if isLive(rec.Expires, m.now) && (term == "" || slices.Contains(rec.Terms, term)) {
				want++
			}
		}
		n, err := m.s.Records().Count(m.test.Context(), m.ns, term, 3, m.now)
		m.agree("Count", err, nil)
		if n != min(want, 3) {
			m.t.Fatalf("Count of %q is %d, want %d", term, n, min(want, 3))
		}
	}
	for id, c := range m.convs {
		got, err := m.s.Steps().Conversation(m.test.Context(), c.Key, m.now)
		m.agree("conversation", err, notFoundUnless(isLive(c.Expires, m.now)))
		if err == nil && (got.Rev != c.Rev || got.Entries != uint64(len(c.entries)) || got.Open != c.Open) {
			m.t.Fatalf("conversation %s is %+v, want %+v", id, got, c)
		}
		if err != nil {
			continue
		}
		var messages []string
		for _, e := range transcript(m.test, m.s, c.Key, 0, 1000) {
			messages = append(messages, e.MessageID)
		}
		if !slices.Equal(messages, c.entries) {
			m.t.Fatalf("transcript of %s is %q, want %q", id, messages, c.entries)
		}
	}
	for id := range m.replays {
		_, known := m.findReplay(id)
		_, err := m.s.Steps().FindReplay(m.test.Context(), "am_p", id, m.now)
		m.agree("FindReplay", err, notFoundUnless(known))
	}
}

func notFoundUnless(live bool) error {
	if live {
		return nil
	}
	return store.ErrNotFound
}
