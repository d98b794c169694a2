package exchange

import (
	"context"
	"errors"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Adopt stores threads that were read from files, all or none. If one of them exists already, the error is a 409.
func (x *Exchange) Adopt(ctx context.Context, list []thread.ParsedFile) ([]*thread.Thread, error) {
	if err := x.Load(); err != nil {
		return nil, err
	}
	var threads []*thread.Thread
	tx := x.begin(Actor{ID: thread.ExchangeID, forExchange: true}, Options{})
	for _, f := range list {
		t, messages := f.Adopt()
		threads = append(threads, t)
		tx.threads[t.Ref], tx.changedRefs = t, append(tx.changedRefs, t.Ref)
		tx.changes = append(tx.changes, store.Change{Record: threadRecord(t)})
		for _, m := range messages {
			tx.changes = append(tx.changes, store.Change{Record: messageRecord(m, t.Ref), IfRev: store.Any})
		}
	}
	err := tx.apply(ctx, tx.changes)
	if errors.Is(err, store.ErrConflict) {
		return nil, thread.Conflict("a thread with this ref exists already")
	}
	if err != nil {
		return nil, err
	}
	return threads, nil
}
