package postgres

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// liveIndex is the card index of this process. It gets all changes from the feed (the table changes), even those that
// this process made.
type liveIndex struct {
	s *Store

	begun atomic.Uint64 // number of the last read of the feed that began

	mu      sync.Mutex
	index   *cardindex.Index
	through int64  // the last change that is in the index
	done    uint64 // number of the last read of the feed that ended
	err     error  // the error of that read
}

// feedPage is the number of changes that follow reads at a time.
const feedPage = 1000

// headSize is the number of bytes of each card's row that build reads first. For nearly every card, they contain all
// terms.
const headSize = 1 << 9

const maxBuilders = 4 // queries of build that run at a time

// build fills the index from the cards, which several queries read in parts. These queries have no time limit.
func (x *liveIndex) build(ctx context.Context) error {
	var through, last int64
	if err := x.s.query(ctx, "select (select coalesce(max(num), 0) from changes), (select coalesce(max(num), 0) from cards)", nil,
		[]any{&through, &last}, func() error { return nil }); err != nil {
		return err
	}
	parts := make([]cardindex.Part, min(runtime.GOMAXPROCS(0), maxBuilders))
	long := make([][]int64, len(parts)) // numbers of the cards that gather left out
	span := last/int64(len(parts)) + 1
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range parts {
		group.Go(func() (err error) {
			long[i], err = x.gather(groupCtx, &parts[i], int64(i)*span, int64(i+1)*span)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	x.index, x.through = cardindex.Join(parts), through
	var num int64
	var value []byte
	err := forEachRow(ctx, x.s.pool, "select num, value from cards where num = any($1)", []any{slices.Concat(long...)}, []any{&num, &value}, func() error {
		var card engine.CardHead
		if err := card.Decode(uint64(num), value); err != nil {
			x.s.damage.Note("left out of the card index", err)
		} else if !card.Withdrawn {
			x.index.Put(cardindex.Slot(num), nil, engine.CopyTerms(card.Terms), card.Expires)
		}
		return nil
	})
	return readError(ctx, err)
}

// gather adds the cards with a sequence number in [first, end) to part, except those that cannot be decoded from headSize
// bytes. It returns the numbers of these.
func (x *liveIndex) gather(ctx context.Context, part *cardindex.Part, first, end int64) (long []int64, err error) {
	var num int64
	var head pgtype.DriverBytes // not copied, so valid only until the next row
	var card engine.CardHead
	err = forEachRow(ctx, x.s.pool, "select num, substr(value, 1, $1) from cards where num >= $2 and num < $3 order by num",
		[]any{headSize, first, end}, []any{&num, &head}, func() error {
			switch err := card.Decode(uint64(num), head); {
			case err != nil:
				long = append(long, num)
			case !card.Withdrawn:
				part.Add(cardindex.Slot(num), card.Expires, card.Terms)
			}
			return nil
		})
	return long, readError(ctx, err)
}

// refresh reads the feed and returns the index with every change that was committed before the call. Calls that wait
// for the same read share the read and its error, so the read does not end with ctx.
func (x *liveIndex) refresh(ctx context.Context) (*cardindex.Index, error) {
	want := x.begun.Load() + 1 // the next read, which begins after this call
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.done >= want:
		return x.index, x.err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	n := x.begun.Add(1)
	for more := true; more; {
		more, x.err = x.follow(context.WithoutCancel(ctx))
	}
	x.done = n
	return x.index, x.err
}

// follow reads a page of the feed and changes the index. more reports whether there may be another page.
func (x *liveIndex) follow(ctx context.Context) (more bool, err error) {
	var id, value, card []byte
	var change int64
	n := 0
	err = x.s.query(ctx, `select h.key, h.num, h.value, c.value from changes h left join cards c on c.key = h.key
		where h.num > $1 order by h.num limit $2`, []any{x.through, feedPage}, []any{&id, &change, &value, &card}, func() error {
		line, err := decodeLine(id, value)
		if err == nil {
			err = x.apply(line, card)
		}
		if err != nil {
			x.s.damage.Note("left out of the card index", err)
		}
		x.through = change
		n++
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read changes of cards: %w", err)
	}
	return n == feedPage, nil
}

// apply applies a change to the index. card is the row of the card, or nil if the row is gone.
func (x *liveIndex) apply(line feedLine, card []byte) error {
	old := engine.CopyTerms(line.Terms)
	for _, seq := range line.Older { // earlier cards with the same id
		x.index.Drop(cardindex.Slot(seq), old)
	}
	if card == nil || line.Gone {
		x.index.Drop(cardindex.Slot(line.Seq), old)
		return nil
	}
	var head engine.CardHead
	if err := head.Decode(line.Seq, card); err != nil {
		return err
	}
	x.index.Put(cardindex.Slot(line.Seq), old, engine.CopyTerms(head.Terms), head.Expires)
	return nil
}
