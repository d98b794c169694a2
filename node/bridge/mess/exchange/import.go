package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Import parses thread files and adopts them, all or none. If one of the threads exists already, the error is a 409.
func (x *Exchange) Import(ctx context.Context, list [][][]byte) ([]*thread.Thread, error) {
	if err := x.Load(); err != nil {
		return nil, err
	}
	parsed := make([]thread.ParsedFile, len(list))
	for i, files := range list {
		var err error
		if parsed[i], err = thread.ParseFiles(files...); err != nil {
			if len(list) > 1 {
				return nil, thread.Bad(fmt.Sprintf("files[%d]", i), thread.PublicText(err))
			}
			return nil, err
		}
	}
	return x.Adopt(ctx, parsed)
}

// Adopt stores threads that were read from files, all or none.
func (x *Exchange) Adopt(ctx context.Context, list []thread.ParsedFile) ([]*thread.Thread, error) {
	var threads []*thread.Thread
	var refs []string
	var changes []store.Change
	tx := x.begin(Actor{ID: thread.ExchangeID, system: true}, Options{})
	for _, f := range list {
		t, messages, err := f.Adopt()
		if err != nil {
			return nil, err
		}
		threads, refs = append(threads, t), append(refs, t.Ref)
		tx.threads[t.Ref], tx.order = t, append(tx.order, t.Ref)
		changes = append(changes, store.Change{Record: threadRecord(t)})
		for _, m := range messages {
			changes = append(changes, store.Change{Record: messageRecord(m, t.Ref), IfRev: store.Any})
		}
	}
	tx.addTurnNotices()
	err := x.records.Apply(ctx, append(changes, tx.changes...), time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil, thread.Conflict("a thread with this ref is here already")
	}
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		x.index.publish(t)
	}
	if tx.notices > 0 {
		x.WakeNotifier()
	}
	x.announce(refs)
	return threads, nil
}
