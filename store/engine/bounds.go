// Package engine has the code that all engines of the store share: what each call checks and writes, the queue of
// group commits, the bounds of calls, the keys of rows, and the encoding of rows. Each engine stores the rows in its own
// way; see [Driver] and [Tx].
package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// The bounds of the calls of package store.
const (
	maxID         = 512    // bytes of a card's id, a sender, or an id of a conversation or message
	maxTerm       = 1024   // bytes of a card's term
	maxCounts     = 4      // Counts of a card: the keys of its quotas
	maxNS         = 64     // bytes of a namespace
	maxKey        = 512    // bytes of a record's key
	maxRecordTerm = 512    // bytes of a term of a record or conversation, and of the party and lane of a record
	maxListTerms  = 4      // terms of a record or conversation
	maxQuota      = 10_000 // the largest Max of a change
	maxPage       = 1000   // the largest Limit of a store.CardQuery
	maxPrefixes   = 4      // Prefixes of a store.CardQuery
	maxSkip       = 32     // parties that Due leaves out
)

// ErrLimit means that the limit of a call is less than 1.
var ErrLimit = errors.New("limit is less than 1")

// NormalizeCard checks the bounds of a card, sorts its terms and counts, removes repetitions, and clears Withdrawn.
func NormalizeCard(card store.Card) (store.Card, error) {
	if card.ID == "" || len(card.ID) > maxID {
		return card, fmt.Errorf("put card: id has %d bytes, not 1 to %d", len(card.ID), maxID)
	}
	card.Terms = SortedSet(card.Terms)
	card.Counts = SortedSet(card.Counts)
	if len(card.Terms) > store.MaxTerms || len(card.Counts) > maxCounts {
		return card, fmt.Errorf("put card: it has %d terms and %d counts, and may have %d and %d", len(card.Terms), len(card.Counts), store.MaxTerms, maxCounts)
	}
	for _, term := range card.Terms {
		if term == "" || len(term) > maxTerm {
			return card, fmt.Errorf("put card: a term has %d bytes, not 1 to %d", len(term), maxTerm)
		}
	}
	card.Withdrawn = false
	return card, nil
}

// SortedSet returns a sorted copy without repetitions, or nil if texts is empty.
func SortedSet(texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	sorted := slices.Clone(texts)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// HashKey returns the hash of a term, a lane or the key of a quota, with which the keys of what it lists begin. A hash is
// shorter than most texts, and rows in its order leave fewer pages half empty.
func HashKey(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:16:16]
}

// pairKey returns the hash of two texts.
func pairKey(a, b string) []byte {
	var usual [128]byte // enough for most texts, so that append rarely allocates
	pair := append(binary.BigEndian.AppendUint16(usual[:0], uint16(len(a))), a...)
	sum := sha256.Sum256(append(pair, b...))
	return sum[:16:16]
}

// CardDue returns the time at which Sweep must look at a card.
func CardDue(c store.Card) int64 {
	if !c.Withdrawn {
		return Deadline(c.Expires)
	}
	return Nanos(c.ReservedUntil)
}

// RecordKey returns the key of the row of a record.
func RecordKey(ns, key string) []byte {
	return append(appendShort(make([]byte, 0, 1+len(ns)+len(key)), ns), key...)
}

// TermKey returns the key of the row that lists a record under a term, or the prefix of such rows if key is empty.
func TermKey(ns, term, key string) []byte {
	return append(append(appendShort(make([]byte, 0, 17+len(ns)+len(key)), ns), HashKey(term)...), key...)
}

// ListKey returns the key of the row that lists the record with a key of RecordKey under a term.
func ListKey(recordKey []byte, term string) []byte {
	n := 1 + int(recordKey[0]) // see RecordKey
	b := append(make([]byte, 0, 16+len(recordKey)), recordKey[:n]...)
	return append(append(b, HashKey(term)...), recordKey[n:]...)
}

// IsLive reports whether a row with this expiry has not expired at now. With the zero time, a row never expires.
func IsLive(expires, now time.Time) bool { return expires.IsZero() || now.Before(expires) }

func checkChange(c store.Change) error {
	switch rec := c.Record; {
	case rec.NS == "" || len(rec.NS) > maxNS:
		return fmt.Errorf("record namespace has %d bytes, must have 1 to %d", len(rec.NS), maxNS)
	case rec.Key == "" || len(rec.Key) > maxKey:
		return fmt.Errorf("record key has %d bytes, must have 1 to %d", len(rec.Key), maxKey)
	case len(rec.Terms) > maxListTerms:
		return fmt.Errorf("record has %d terms, more than %d", len(rec.Terms), maxListTerms)
	case c.Max < 0 || c.Max > maxQuota:
		return fmt.Errorf("record quota is %d, must be 0 to %d", c.Max, maxQuota)
	case len(rec.Party) > maxRecordTerm || len(rec.Lane) > maxRecordTerm:
		return fmt.Errorf("record has a party of %d and a lane of %d bytes, may have %d", len(rec.Party), len(rec.Lane), maxRecordTerm)
	case InLane(rec) && !c.Delete && !rec.Expires.IsZero():
		return errors.New("a record in a lane must not expire")
	}
	for _, term := range c.Record.Terms {
		if term == "" || len(term) > maxRecordTerm {
			return fmt.Errorf("record term has %d bytes, must have 1 to %d", len(term), maxRecordTerm)
		}
	}
	return nil
}

// revFits reports whether a row satisfies the precondition want of a change. live is true if the row exists and has not
// expired; current is its revision.
func revFits(want store.Rev, live bool, current store.Rev) bool {
	switch want {
	case store.Any:
		return true
	case store.Absent:
		return !live
	}
	return live && want == current
}

// checkStep checks the bounds of a step.
func checkStep(step store.Step) error {
	if c := step.Conv; c != nil {
		if c.Key.Peer == "" || c.Key.ID == "" || len(c.Key.Peer) > maxID || len(c.Key.ID) > maxID {
			return errors.New("apply step: conversation key is out of bounds")
		}
		if len(c.Terms) > maxListTerms {
			return fmt.Errorf("apply step: conversation has %d terms, more than %d", len(c.Terms), maxListTerms)
		}
		for _, term := range c.Terms {
			if term == "" || len(term) > maxRecordTerm {
				return fmt.Errorf("apply step: conversation term has %d bytes, not 1 to %d", len(term), maxRecordTerm)
			}
		}
	} else if len(step.Append) > 0 {
		return errors.New("apply step: entries without a conversation")
	}
	for _, r := range []*store.Replay{step.Replay, step.Answer} {
		if r != nil && (r.Sender == "" || r.MessageID == "" || len(r.Sender) > maxID || len(r.MessageID) > maxID) {
			return errors.New("apply step: sender or message id is out of bounds")
		}
	}
	return nil
}

// tierOf returns the index of the first tier that terms match, or -1 if they match no tier or do not match q. terms
// must be sorted.
func tierOf(terms [][]byte, q store.CardQuery, tiers []store.Tier) int {
	if !carries(terms, q.All) || slices.ContainsFunc(q.Prefixes, func(p string) bool { return !carriesPrefix(terms, p) }) {
		return -1
	}
	return slices.IndexFunc(tiers, func(t store.Tier) bool {
		return carries(terms, t.All) && (t.Prefix == "" || carriesPrefix(terms, t.Prefix))
	})
}

// carries reports whether terms contain all, and carriesPrefix whether a term begins with prefix. terms must be sorted.
func carries(terms [][]byte, all []string) bool {
	for _, term := range all {
		if _, found := slices.BinarySearchFunc(terms, term, compareTerm); !found {
			return false
		}
	}
	return true
}

func carriesPrefix(terms [][]byte, prefix string) bool {
	i, _ := slices.BinarySearchFunc(terms, prefix, compareTerm)
	return i < len(terms) && len(terms[i]) >= len(prefix) && string(terms[i][:len(prefix)]) == prefix
}

// compareTerm works like strings.Compare. It copies nothing, because the compiler avoids the conversions to strings.
func compareTerm(a []byte, b string) int {
	switch {
	case string(a) < b:
		return -1
	case string(a) > b:
		return 1
	}
	return 0
}

// RecordExpiry reads the expiry of a record from the beginning of its row.
func RecordExpiry(row []byte) (int64, error) {
	// The row begins with the version (1 byte), rev (8) and expires (8).
	if len(row) < 17 || row[0] != rowVersion {
		return Never, fmt.Errorf("%w: record row is cut short", store.ErrDamaged)
	}
	at := int64(binary.BigEndian.Uint64(row[9:17]))
	if at == NoTime {
		return Never, nil
	}
	return at, nil
}

// ConvKey returns the key of the row of a conversation.
func ConvKey(key store.ConvKey) []byte { return pairKey(key.Peer, key.ID) }

// EntryKey returns the key of entry n of the transcript of the conversation with number seq.
func EntryKey(seq, n uint64) []byte { return AppendU64(AppendU64(make([]byte, 0, 16), seq), n) }

// ReplayHash returns the hash that identifies a message of a sender.
func ReplayHash(sender, messageID string) []byte { return pairKey(sender, messageID) }

// appendShort appends the length of text, at most 255, in one byte, and then text.
func appendShort(b []byte, text string) []byte { return append(append(b, byte(len(text))), text...) }

func checkQuery(q store.CardQuery) error {
	if q.Limit < 1 || q.Limit > maxPage {
		return errors.New("list cards: limit must be 1 to 1000")
	}
	if len(q.Prefixes) > maxPrefixes || slices.Contains(q.Prefixes, "") {
		return errors.New("list cards: more than 4 prefixes, or an empty one")
	}
	return nil
}

// CheckList checks the bounds of a list of records.
func CheckList(ns string, limit int) error {
	if limit < 1 {
		return ErrLimit
	}
	if ns == "" || len(ns) > maxNS {
		return errors.New("list records: namespace is empty or too long")
	}
	return nil
}

// SplitRecordKey splits a key that RecordKey made.
func SplitRecordKey(key []byte) (ns, name string, ok bool) {
	if len(key) == 0 || len(key) < 1+int(key[0]) {
		return "", "", false
	}
	n := 1 + int(key[0])
	return string(key[1:n]), string(key[n:]), true
}
