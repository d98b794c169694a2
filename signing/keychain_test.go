package signing

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// seededKey returns the Ed25519 key whose seed comes from name.
func seededKey(name string) *PrivateKey {
	seed := sha256.Sum256([]byte("key chain test " + name))
	return NewEd25519FromSeed(seed[:])
}

// chainOf returns a chain that links keys in their order, under the id of the first key.
func chainOf(t testing.TB, at time.Time, keys ...*PrivateKey) string {
	t.Helper()
	chain := ""
	for i := range keys[1:] {
		var err error
		if chain, err = keys[i].ExtendKeyChain(keys[0].Public().AgentID(), chain, keys[i+1], at); err != nil {
			t.Fatal(err)
		}
	}
	return chain
}

func manyKeys(n int) []*PrivateKey {
	keys := make([]*PrivateKey, n)
	for i := range keys {
		keys[i] = seededKey(fmt.Sprint(i))
	}
	return keys
}

func cardWith(id wire.AgentID, chain string) wire.Card {
	return wire.Card{ID: id, Metadata: wire.Obj(wire.Member{Key: wire.MetaKeyChain, Value: wire.Text(chain)})}
}

// TestKeyChain checks that a chain proves an id only if it leads from the key that the id is derived from to the key on
// the card (AM-2).
func TestKeyChain(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	a, b, c, foreign := seededKey("a"), seededKey("b"), seededKey("c"), seededKey("foreign")
	id := a.Public().AgentID()
	good := chainOf(t, now, a, b, c)
	links := strings.Split(good, " ")
	field := func(link, i int, value string) string {
		all := strings.Split(good, " ")
		fields := strings.Split(all[link], ",")
		fields[i] = value
		all[link] = strings.Join(fields, ",")
		return strings.Join(all, " ")
	}
	encoded := func(k *PrivateKey) string { return base64.StdEncoding.EncodeToString([]byte(k.PublicText())) }
	long := manyKeys(18)
	longest, err := long[16].ExtendKeyChain(long[0].Public().AgentID(), chainOf(t, now, long[:17]...), long[17], now)
	if !errors.Is(err, ErrKeyChainFull) || longest != "" {
		t.Errorf("the 17th link: %v", err)
	}
	link := func(id wire.AgentID, from, to *PrivateKey) string {
		one, err := from.ExtendKeyChain(id, "", to, now)
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	seventeen := chainOf(t, now, long[:17]...) + " " + link(long[0].Public().AgentID(), long[16], long[17])
	for name, tt := range map[string]struct {
		id    wire.AgentID
		chain string
		key   *PrivateKey
		ok    bool
	}{
		"the key itself":              {id, "", a, true},
		"the key itself, odd chain":   {id, "nonsense", a, true},
		"one link":                    {id, chainOf(t, now, a, b), b, true},
		"two links":                   {id, good, c, true},
		"16 links":                    {long[0].Public().AgentID(), chainOf(t, now, long[:17]...), long[16], true},
		"17 links":                    {long[0].Public().AgentID(), seventeen, long[17], false},
		"no chain":                    {id, "", b, false},
		"ends before the card's key":  {id, links[0], c, false},
		"goes beyond the card's key":  {id, good, b, false},
		"begins with another key":     {foreign.Public().AgentID(), good, c, false},
		"first link missing":          {id, links[1], c, false},
		"links in the wrong order":    {id, links[1] + " " + links[0], c, false},
		"a link twice":                {id, links[0] + " " + good, c, false},
		"links of two chains":         {id, links[0] + " " + link(id, foreign, c), c, false},
		"back to the first key":       {id, chainOf(t, now, a, b, a), a, true}, // the id comes from the key itself
		"a cycle on the way":          {id, chainOf(t, now, a, b, a, c), c, false},
		"a key after itself":          {id, chainOf(t, now, a, a), b, false},
		"signature of another key":    {id, field(1, 3, strings.Split(chainOf(t, now, foreign, c), ",")[3]), c, false},
		"broken signature":            {id, field(0, 3, strings.Repeat("A", 86)+"=="), c, false},
		"no signature":                {id, field(0, 3, ""), c, false},
		"another time than signed":    {id, field(0, 2, "2026-11-22T11:59:59.000Z"), c, false},
		"no time":                     {id, field(0, 2, "yesterday"), c, false},
		"from the future":             {id, chainOf(t, now.Add(6*time.Minute), a, b), b, false},
		"a little in the future":      {id, chainOf(t, now.Add(4*time.Minute), a, b), b, true},
		"years ago":                   {id, chainOf(t, now.AddDate(-9, 0, 0), a, b), b, true},
		"another new key than signed": {id, field(1, 1, encoded(foreign)), foreign, false},
		"key not base64":              {id, field(0, 0, "-----"), c, false},
		"key no key":                  {id, field(0, 0, "AAAA"), c, false},
		"three fields":                {id, strings.TrimSuffix(good, ","+strings.Split(links[1], ",")[3]), c, false},
		"five fields":                 {id, good + ",x", c, false},
		"two spaces":                  {id, links[0] + "  " + links[1], c, false},
		"a space behind":              {id, good + " ", c, false},
		"oversized":                   {id, strings.Repeat("A", wire.MaxCard+1), c, false},
		"an id that is not derived":   {"am_named-by-hand", good, c, false},
		"a chain for another id":      {foreign.Public().AgentID(), chainOf(t, now, a, b), b, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := ProvesID(cardWith(tt.id, tt.chain), tt.key.Public(), now); (err == nil) != tt.ok {
				t.Errorf("ProvesID = %v, want ok %v", err, tt.ok)
			}
		})
	}
}

// TestKeyChainOfEachKind checks links from every kind of key to every kind of key.
func TestKeyChainOfEachKind(t *testing.T) {
	now := time.Now()
	for _, old := range keyOfEachKind(t) {
		for _, next := range keyOfEachKind(t) {
			if old.Public().Fingerprint() == next.Public().Fingerprint() {
				continue
			}
			card := cardWith(old.Public().AgentID(), chainOf(t, now, old, next))
			if err := ProvesID(card, next.Public(), now.AddDate(1, 0, 0)); err != nil {
				t.Errorf("%s to %s: %v", old.Public().Kind(), next.Public().Kind(), err)
			}
		}
	}
}

// TestKeyChainVouches checks that each key of a chain vouches for the last key, and for no other key.
func TestKeyChainVouches(t *testing.T) {
	a, b, c, foreign := seededKey("a"), seededKey("b"), seededKey("c"), seededKey("foreign")
	chain, err := ParseKeyChain(a.Public().AgentID(), chainOf(t, time.Now(), a, b, c), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, to *PrivateKey
		want     bool
	}{{a, c, true}, {b, c, true}, {c, c, false}, {a, b, false}, {foreign, c, false}, {a, foreign, false}} {
		if got := chain.Vouches(tt.from.Public().Fingerprint(), tt.to.Public()); got != tt.want {
			t.Errorf("Vouches = %v, want %v", got, tt.want)
		}
	}
}

// TestRetiredKeys checks which replaced keys of a chain count at a time.
func TestRetiredKeys(t *testing.T) {
	first := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	second := first.Add(24 * time.Hour)
	a, b, c := seededKey("a"), seededKey("b"), seededKey("c")
	id := a.Public().AgentID()
	text, err := b.ExtendKeyChain(id, chainOf(t, first, a, b), c, second)
	if err != nil {
		t.Fatal(err)
	}
	now := second.Add(time.Hour)
	for _, tt := range []struct {
		text string
		key  *PrivateKey // on the card
		at   time.Time
		want []*PrivateKey
	}{
		{text, c, first.Add(-time.Hour), []*PrivateKey{a}},
		{text, c, first.Add(-chainSkew), []*PrivateKey{a, b}},
		{text, c, first.Add(chainSkew - time.Second), []*PrivateKey{a, b}},
		{text, c, first.Add(chainSkew), []*PrivateKey{b}},
		{text, c, second.Add(chainSkew - time.Second), []*PrivateKey{b}},
		{text, c, second.Add(chainSkew), nil},
		{text, b, first.Add(-time.Hour), nil},                            // the chain leads to another key
		{text[:len(text)-8] + "AAAAAA==", c, first.Add(-time.Hour), nil}, // a forged link
		{"", c, first.Add(-time.Hour), nil},
	} {
		got := RetiredKeys(cardWith(id, tt.text), tt.key.Public(), tt.at, now)
		same := func(x *PublicKey, y *PrivateKey) bool { return x.sameAs(y.Public()) }
		if !slices.EqualFunc(got, tt.want, same) {
			t.Errorf("RetiredKeys(…%.9s, %v) = %d keys, want %d", tt.text, tt.at, len(got), len(tt.want))
		}
	}
}

// FuzzKeyChain checks that no text of a card makes the parser panic or proves an id without the signatures, and that a
// changed chain proves nothing.
func FuzzKeyChain(f *testing.F) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	a, b, c := seededKey("a"), seededKey("b"), seededKey("c")
	id := a.Public().AgentID()
	good := chainOf(f, now, a, b, c)
	for _, seed := range []string{good, "", " ", ",,,", strings.Repeat(" ", 20), good + " " + good, strings.Replace(good, "2026", "2025", 1)} {
		f.Add(seed)
	}
	stranger := seededKey("stranger").Public()
	f.Fuzz(func(t *testing.T, text string) {
		if ProvesID(cardWith(id, text), stranger, now) == nil {
			t.Fatalf("proves a key that nobody signed for: %q", text)
		}
		if ProvesID(cardWith(id, text), c.Public(), now) == nil && !sameLinks(text, good) {
			t.Fatalf("a changed chain proves the id: %q", text)
		}
	})
}

// sameLinks reports whether two chains differ at most in the spelling of their keys and signatures (AM-8, AM-17).
func sameLinks(x, y string) bool {
	read := func(text string) (out string) {
		for link := range strings.SplitSeq(text, " ") {
			fields := strings.Split(link, ",")
			before, next, err := parseLink(seededKey("a").Public().AgentID(), link, time.Now())
			if err != nil || len(fields) != 4 {
				return "unreadable: " + text
			}
			signature, _ := decodeBase64(fields[3])
			out += before.Fingerprint() + next.Fingerprint() + fields[2] + string(signature)
		}
		return out
	}
	return read(x) == read(y)
}
