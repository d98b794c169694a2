package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// The unit of work in the group commit figures appends an entry and updates one of many rows.
const (
	entrySize = 700 // bytes
	rowSize   = 200 // bytes
	rowCount  = 10_000
)

// measureCommits compares the store's group commit with one transaction for each unit, and with a raw log.
func (s *study) measureCommits(ctx context.Context) (err error) {
	var closers []func() error
	defer func() {
		for _, stop := range closers {
			err = errors.Join(err, stop())
		}
	}()
	st, err := bolt.Open(ctx, filepath.Join(s.dir, "steps.db"), bolt.Config{})
	if err != nil {
		return err
	}
	closers = append(closers, st.Close)
	appendRow, err := newAppend(ctx, st)
	if err != nil {
		return err
	}
	accept, err := newAcceptance(ctx, st)
	if err != nil {
		return err
	}
	db, err := openBare(filepath.Join(s.dir, "updates.db"))
	if err != nil {
		return err
	}
	closers = append(closers, db.Close)
	log, err := newLogWriter(filepath.Join(s.dir, "raw.log"))
	if err != nil {
		return err
	}
	closers = append(closers, log.stop)
	update := newUpdate(db)
	raw := func(context.Context, int) error { return log.write(units.next()...) }

	n := s.Concurrency
	many := interleave(ctx, s.p, s.Rounds, s.Duration,
		contender{"step", n, appendRow, nil}, contender{"Update each", n, update, nil}, contender{"raw log", n, raw, nil}, contender{"acceptance", n, accept, nil})
	single := interleave(ctx, s.p, s.Rounds, s.Duration, contender{"step, one sender", 1, appendRow, nil}, contender{"Update, one sender", 1, update, nil})
	step, updates, logs, acceptances := many[0], many[1], many[2], many[3]
	rate := func(list []sample) float64 { return medianOf(list, sample.rate) }
	s.add(
		newFigure(fmt.Sprintf("group commit, %d senders, beside one Update each", n), ratio(step, updates, sample.rate), "×", "%.0f/s beside %.0f/s", rate(step), rate(updates)).withMin(4),
		newFigure(fmt.Sprintf("group commit, %d senders, beside a raw log", n), ratio(step, logs, sample.rate), "×", "%.0f/s beside %.0f/s", rate(step), rate(logs)).withMin(0.25),
		newFigure(fmt.Sprintf("acceptance, %d senders, beside a raw log", n), ratio(acceptances, logs, sample.rate), "×", "%.0f/s", rate(acceptances)).withMin(0.13),
		newFigure("group commit, one sender, beside one Update", ratio(single[0], single[1], sample.rate), "×", "%.0f/s beside %.0f/s", rate(single[0]), rate(single[1])).withMin(0.85),
	)
	return ctx.Err()
}

// unitMaker makes the units for the contenders that do not use the store, and numbers the entries.
type unitMaker struct {
	n     atomic.Uint64
	entry [entrySize]byte
	row   [rowSize]byte
}

var units unitMaker

func (u *unitMaker) next() []put {
	return []put{
		{bucketEntries, binary.BigEndian.AppendUint64(nil, u.n.Add(1)), u.entry[:]},
		{bucketRows, binary.BigEndian.AppendUint64(nil, rand.Uint64N(rowCount)), u.row[:]},
	}
}

// newUpdate returns an operation that writes each unit in its own bbolt transaction.
func newUpdate(db *bbolt.DB) operation {
	return func(context.Context, int) error {
		puts := units.next()
		return db.Update(func(tx *bbolt.Tx) error { return putAll(tx, puts) })
	}
}

// callEach calls op for 0 to n-1 from many goroutines, so that the calls share commits.
func callEach(n int, op func(i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	const goroutines = 256
	faults := make([]error, goroutines)
	for w := range faults {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && faults[w] == nil; i = int(next.Add(1)) - 1 {
				faults[w] = op(i)
			}
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

// newAppend returns an operation that appends to the transcript of one of rowCount conversations and updates its row.
// It uses the store's own steps, with preconditions, revisions and expiry, which plain bbolt does not have.
func newAppend(ctx context.Context, st store.Store) (operation, error) {
	now := time.Now()
	row := func(i int) *store.Conversation {
		return &store.Conversation{
			Key:  store.ConvKey{Peer: fmt.Sprintf("am_%026d", i), ID: fmt.Sprintf("conv_%08d", i)},
			Body: units.row[:], Updated: now, Expires: now.Add(24 * time.Hour),
		}
	}
	err := callEach(rowCount, func(i int) error {
		_, err := st.Steps().Apply(ctx, store.Step{Conv: row(i), Now: now})
		return err
	})
	return func(ctx context.Context, _ int) error {
		conv := row(rand.IntN(rowCount))
		conv.Rev = store.Any
		_, err := st.Steps().Apply(ctx, store.Step{
			Conv: conv, Append: []store.Entry{{MessageID: "msg", At: now, Raw: units.entry[:]}}, Now: now,
		})
		return err
	}, err
}

// newAcceptance returns an operation that stores what a node stores when it accepts a message: the replay record with
// the response, the conversation, the message and its reply in the transcript, and the inbox record.
func newAcceptance(ctx context.Context, st store.Store) (operation, error) {
	now := time.Now()
	book := &conversations.Book{Steps: st.Steps()}
	raw, answer, item := make([]byte, entrySize), make([]byte, 500), make([]byte, 900)
	rows := make([]store.Conversation, 1000)
	err := callEach(len(rows), func(i int) error {
		key := store.ConvKey{Peer: fmt.Sprintf("am_sender%018d", i), ID: fmt.Sprintf("conv_%08d", i)}
		err := book.Try(ctx, key, now, func(u *conversations.Unit) error {
			return u.Record(conversations.Event{Kind: conversations.Received, At: now, Intent: "mesh.message", Payload: payload})
		})
		if err != nil {
			return err
		}
		rows[i], err = st.Steps().Conversation(ctx, key, now)
		return err
	})
	var n atomic.Uint64
	return func(ctx context.Context, _ int) error {
		conv := rows[rand.IntN(len(rows))]
		conv.Rev = store.Any
		id := fmt.Sprintf("msg_%016x%016x", rand.Uint64(), n.Add(1))
		_, err := st.Steps().Apply(ctx, store.Step{
			Conv:   &conv,
			Append: []store.Entry{{MessageID: id, At: now, Raw: raw}, {Out: true, MessageID: id + "r", At: now, Raw: answer}},
			Replay: &store.Replay{Sender: conv.Key.Peer, MessageID: id, Conv: conv.Key, Status: 200, Answer: answer, Expires: now.Add(8 * 24 * time.Hour)},
			Records: []store.Change{{Record: store.Record{
				NS: "inbox", Key: fmt.Sprintf("in_%020d", n.Load()) + id, Body: item, Expires: now.Add(30 * 24 * time.Hour),
				Terms: []string{"state:new", "conv:" + conv.Key.Peer + "/" + conv.Key.ID},
			}}},
			Now: now,
		})
		return err
	}, err
}
