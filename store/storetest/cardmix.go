package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// CardMix generates the cards of a directory: 12 words from a vocabulary with a long tail, one to three of 200
// capabilities, one to four intents, and a body of 900 bytes that can hardly be packed. Start with [NewCardMix].
type CardMix struct {
	Now  time.Time
	mu   sync.Mutex // guards zipf
	zipf *rand.Zipf
}

// NewCardMix returns a mix of cards that are registered at now.
func NewCardMix(now time.Time) *CardMix {
	return &CardMix{Now: now, zipf: rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 8, 200_000)}
}

func (m *CardMix) word() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return WordOf(m.zipf.Uint64())
}

// WordOf turns a number into a word. The words share prefixes as real words do. In a [CardMix], the words of small
// numbers are the most frequent.
func WordOf(n uint64) string { return strconv.FormatUint(n*2654435761%(1<<32)+36, 36) }

// CardID returns the id of card number i.
func CardID(i int) string { return fmt.Sprintf("am_%026x", i) }

// Card returns card number i. Its capabilities and intents depend only on i, but each call draws new words.
func (m *CardMix) Card(i int) store.Card {
	rng := rand.New(rand.NewPCG(uint64(i), 7))
	c := store.Card{
		ID: CardID(i), Body: Text(i, 900), Meta: Text(-i, 60), Counts: []string{fmt.Sprintf("token:%x", i), fmt.Sprintf("host:%d", i/5)},
		Registered: m.Now, Updated: m.Now, Expires: m.Now.Add(30 * 24 * time.Hour), ReservedUntil: m.Now.Add(60 * 24 * time.Hour),
	}
	for range 2 {
		w := m.word()
		c.Terms = append(c.Terms, "name:"+w, "word:"+w)
	}
	for range 10 {
		c.Terms = append(c.Terms, "word:"+m.word())
	}
	for range 1 + rng.IntN(3) {
		c.Terms = append(c.Terms, fmt.Sprintf("cap:%d", min(rng.IntN(200), rng.IntN(200))))
	}
	for k := range 1 + rng.IntN(4) {
		c.Terms = append(c.Terms, fmt.Sprintf("intent:%d", k))
	}
	return c
}

// Search is a query that benchmarks measure.
type Search struct {
	Name string
	store.CardQuery
}

// Searches returns queries for cards 1 to n of a mix.
func Searches(n int) []Search {
	frequent, middle := WordOf(0), WordOf(40)
	return []Search{
		{"capability", store.CardQuery{All: []string{"cap:3"}}},
		{"capability+intent", store.CardQuery{All: []string{"cap:150", "intent:3"}}},
		{"word", Words(middle)},
		{"prefix", Words("a")},
		{"two words+capability", withAll(Words(frequent, middle), "cap:199")},
		{"deep", store.CardQuery{All: []string{"cap:3"}, After: store.Position{Seq: uint64(n * 9 / 10)}}},
		{"all deep", store.CardQuery{After: store.Position{Seq: uint64(n * 9 / 10)}}},
	}
}

// Words returns the query of a search for words. Its tiers look in names, and then in names and descriptions: each
// first for all words as they are, and then with the last word as a prefix.
func Words(all ...string) store.CardQuery {
	tier := func(kind string, prefixed bool) store.Tier {
		var t store.Tier
		for i, w := range all {
			if prefixed && i == len(all)-1 {
				t.Prefix = kind + w
			} else {
				t.All = append(t.All, kind+w)
			}
		}
		return t
	}
	return store.CardQuery{Tiers: []store.Tier{tier("name:", false), tier("name:", true), tier("word:", false), tier("word:", true)}}
}

func withAll(q store.CardQuery, all ...string) store.CardQuery {
	q.All = slices.Concat(q.All, all)
	return q
}
