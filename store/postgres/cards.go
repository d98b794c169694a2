package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// cardStore implements [store.Cards].
type cardStore struct{ s *Store }

// Cards implements [store.Store].
func (s *Store) Cards() store.Cards { return cardStore{s} }

// feedLine is a line of the feed, the table named changes. It has the newest change of an id, and what other processes
// must remove from their indexes because of this change and earlier ones.
type feedLine struct {
	At        time.Time `json:"at"`
	Gone      bool      `json:"gone,omitempty"`
	Withdrawn bool      `json:"withdrawn,omitempty"`
	Seq       uint64    `json:"seq"`
	Older     []uint64  `json:"older,omitempty"` // earlier sequence numbers of the id
	Terms     [][]byte  `json:"terms,omitempty"` // terms that the card had and does not have now
}

// The limits for Older and Terms of a feedLine. Beyond them, an index may list a card by a term that the card no longer
// has. A search is still right, because it checks the row of the card.
const (
	maxOlder    = 8
	maxOldTerms = 2 * store.MaxTerms
)

// card returns the card of id, even if it has expired or was withdrawn. It returns nil if id has no row.
func (t *txn) card(id string) (*engine.CardRow, error) {
	stored, err := t.get(cards, []byte(id))
	if stored == nil || err != nil {
		return nil, err
	}
	card, err := engine.DecodeCard(uint64(stored.num), stored.value)
	return &card, err
}

func (c cardStore) Put(ctx context.Context, put store.PutCard) (store.Card, error) {
	card, err := engine.NormalizeCard(put.Card)
	if err != nil {
		return store.Card{}, err
	}
	var n needs // the rows to lock and read first
	n.addCard(card.ID)
	for _, q := range put.Quotas {
		n.counts = append(n.counts, engine.CountKey(q.Key))
	}
	n.addRecords(put.Records)
	var stored store.Card
	err = c.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		old, err := t.card(card.ID)
		if err != nil {
			return nil, err
		}
		held := old != nil && old.Held(put.Now) // old is live, or its id is still reserved
		if err := t.checkQuotas(put.Quotas, old, put.Now); err != nil {
			return nil, err
		}
		before := store.Card{}
		if old != nil {
			before = old.Card
		}
		if err := engine.CheckPut(before, held, put); err != nil {
			return nil, err
		}
		records, err := engine.PlanRecords(t, put.Records, put.Now)
		if err != nil {
			return nil, err
		}
		return func() error { // called if all checks passed
			next := engine.CardRow{Card: card}
			if held {
				next.Seq, next.Registered = old.Seq, old.Registered
			} else {
				seq, err := t.next(counterCards)
				if err != nil {
					return err
				}
				if seq > math.MaxUint32 {
					return fmt.Errorf("%w: all %d places for cards are used up", store.ErrUnavailable, uint32(math.MaxUint32))
				}
				next.Seq = uint64(seq)
			}
			next.Rev = t.nextRev()
			if err := t.putCard(&next, old, put.Now); err != nil {
				return err
			}
			stored = next.Card
			t.writeRecords(records, next.Rev)
			return nil
		}, nil
	})
	if err != nil {
		return store.Card{}, err
	}
	stored.Body, stored.Meta = slices.Clone(stored.Body), slices.Clone(stored.Meta)
	return stored, nil
}

// checkQuotas returns ErrQuota if one of the quotas is used up by live cards other than old.
func (t *txn) checkQuotas(quotas []store.Quota, old *engine.CardRow, now time.Time) error {
	for _, q := range quotas {
		if q.Max <= 0 {
			continue
		}
		n, err := t.count(cardCounts, engine.CountKey(q.Key), engine.Nanos(now))
		if err != nil {
			return err
		}
		if old != nil && old.Live(now) && slices.Contains(old.Counts, q.Key) {
			n--
		}
		if n >= q.Max {
			return fmt.Errorf("%w: %d cards", store.ErrQuota, q.Max)
		}
	}
	return nil
}

// putCard stores a card in place of old (nil for a new card), and adds the change to the feed.
func (t *txn) putCard(card, old *engine.CardRow, now time.Time) error {
	if old != nil {
		t.dropCounts(old.Card)
	}
	if !card.Withdrawn {
		for _, count := range card.Counts {
			t.put(cardCounts, cardCountKey(count, card.ID), row{due: engine.Deadline(card.Expires)})
		}
	}
	if err := t.logChange(card, old, false, now); err != nil {
		return err
	}
	t.put(cards, []byte(card.ID), row{num: int64(card.Seq), due: engine.CardDue(card.Card), value: engine.EncodeCard(*card)})
	return nil
}

func cardCountKey(count, id string) []byte { return append(engine.CountKey(count), id...) }

func (t *txn) dropCounts(card store.Card) {
	for _, count := range card.Counts {
		t.drop(cardCounts, cardCountKey(count, card.ID))
	}
}

// logChange moves the line of an id to the end of the feed, and sets card.Change. card is the current card of the id,
// and old is the previous one, or nil. ended reports whether the reservation of the id has ended.
func (t *txn) logChange(card, old *engine.CardRow, ended bool, now time.Time) error {
	key := []byte(card.ID)
	line, err := t.feedLine(key)
	if err != nil {
		return err
	}
	change, err := t.next(counterChanges)
	if err != nil {
		return err
	}
	if line.Seq != 0 && line.Seq != card.Seq && !slices.Contains(line.Older, line.Seq) { // the id was registered again
		line.Older = append(line.Older, line.Seq)
		line.Older = line.Older[max(len(line.Older)-maxOlder, 0):]
	}
	line.At, line.Gone, line.Withdrawn, line.Seq = now.UTC(), card.Withdrawn || ended, card.Withdrawn, card.Seq
	if old != nil {
		for _, term := range old.Terms {
			line.Terms = append(line.Terms, []byte(term))
		}
	}
	slices.SortFunc(line.Terms, slices.Compare)
	line.Terms = slices.CompactFunc(line.Terms, slices.Equal)
	if !line.Gone {
		line.Terms = slices.DeleteFunc(line.Terms, func(term []byte) bool { return slices.Contains(card.Terms, string(term)) })
	}
	line.Terms = line.Terms[:min(len(line.Terms), maxOldTerms)]
	card.Change = uint64(change)
	t.note(store.WatchCards, card.ID)
	t.putLine(key, change, engine.Never, line)
	return nil
}

// feedLine returns the line of an id, or an empty one.
func (t *txn) feedLine(id []byte) (line feedLine, err error) {
	stored, err := t.get(changes, id)
	if stored == nil || err != nil {
		return line, err
	}
	return decodeLine(id, stored.value)
}

func decodeLine(id, value []byte) (line feedLine, err error) {
	if err := json.Unmarshal(value, &line); err != nil {
		return line, fmt.Errorf("%w: change of %q: %w", store.ErrDamaged, id, err)
	}
	return line, nil
}

func (t *txn) putLine(id []byte, change, due int64, line feedLine) {
	t.put(changes, id, row{num: change, due: due, value: wire.MustMarshal(line)})
}

// purgeCard removes a card whose id is free again. Its line in the feed stays for a year.
func (t *txn) purgeCard(card *engine.CardRow, now time.Time) error {
	if !card.Withdrawn {
		if err := t.logChange(card, card, true, now); err != nil {
			return err
		}
	}
	line, err := t.feedLine([]byte(card.ID))
	if err != nil {
		return err
	}
	t.dropCounts(card.Card)
	t.drop(cards, []byte(card.ID))
	stored, err := t.get(changes, []byte(card.ID))
	if stored == nil || err != nil {
		return err
	}
	t.putLine([]byte(card.ID), stored.num, engine.Nanos(now.Add(engine.TombstoneLife)), line)
	return nil
}

func (c cardStore) Withdraw(ctx context.Context, id string, ifRev store.Rev, reservedUntil time.Time, changes []store.Change, now time.Time) error {
	var n needs
	n.addCard(id)
	n.addRecords(changes)
	return c.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		old, err := t.card(id)
		switch {
		case err != nil:
			return nil, err
		case old == nil || !old.Live(now):
			return nil, store.ErrNotFound
		case ifRev != store.Any && ifRev != old.Rev:
			return nil, store.ErrConflict
		}
		records, err := engine.PlanRecords(t, changes, now)
		if err != nil {
			return nil, err
		}
		return func() error {
			next := *old
			next.Withdrawn, next.ReservedUntil, next.Rev = true, reservedUntil, t.nextRev()
			if err := t.putCard(&next, old, now); err != nil {
				return err
			}
			t.writeRecords(records, next.Rev)
			return nil
		}, nil
	})
}

func decodeCard(r row) (engine.CardRow, error) { return engine.DecodeCard(uint64(r.num), r.value) }

func (c cardStore) Get(ctx context.Context, id string, now time.Time) (store.Card, error) {
	card, err := readRow(ctx, c.s, cards, []byte(id), decodeCard, func(card engine.CardRow) bool { return card.Live(now) })
	return card.Card, err
}

func (c cardStore) Held(ctx context.Context, id string, now time.Time) (store.Card, error) {
	card, err := readRow(ctx, c.s, cards, []byte(id), decodeCard, func(card engine.CardRow) bool { return card.Held(now) })
	return card.Card, err
}

func (c cardStore) HasCount(ctx context.Context, key string, now time.Time) (found bool, err error) {
	prefix := engine.CountKey(key)
	err = c.s.query(ctx, "select exists (select from card_counts where key >= $1 and key < $2 and due > $3)",
		[]any{prefix, prefixEnd(prefix), engine.Nanos(now)}, []any{&found}, func() error { return nil })
	return found, err
}

func (c cardStore) Changes(ctx context.Context, after uint64, limit int) ([]store.CardChange, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var list []store.CardChange
	var key, value []byte
	var num int64
	err := c.s.query(ctx, "select key, num, value from changes where num > $1 order by num limit $2",
		[]any{int64(min(after, math.MaxInt64)), limit}, []any{&key, &num, &value}, func() error {
			line, err := decodeLine(key, value)
			list = append(list, store.CardChange{Change: uint64(num), ID: string(key), Gone: line.Gone, Withdrawn: line.Withdrawn, At: line.At})
			return err
		})
	return list, err
}

func (c cardStore) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return store.CardPage{}, err
	}
	return engine.ListCards(index, q, c.s.damage, func(slots []cardindex.Slot, match func(cardindex.Slot, []byte, error)) error {
		if len(slots) == 0 {
			return nil
		}
		seqs := make([]int64, len(slots))
		for i, s := range slots {
			seqs[i] = int64(s)
		}
		var num int64
		var value []byte
		return c.s.query(ctx, "select num, value from cards where num = any($1) order by num", []any{seqs}, []any{&num, &value}, func() error {
			match(cardindex.Slot(num), value, nil)
			return nil
		})
	})
}

func (c cardStore) Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return nil, err
	}
	return engine.ListTerms(index, prefix, after, limit, now)
}

func (c cardStore) Count(ctx context.Context, now time.Time) (int, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return 0, err
	}
	return engine.CountCards(index, now), nil
}
