package mess

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// countedRecords is a store of which the call number fail fails.
type countedRecords struct {
	store.Records
	fail, calls int
}

func (r *countedRecords) check() error {
	if r.calls++; r.calls == r.fail {
		return errors.New("the disk is full")
	}
	return nil
}

func (r *countedRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if err := r.check(); err != nil {
		return store.Record{}, err
	}
	return r.Records.Get(ctx, ns, key, now)
}

func (r *countedRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := r.check(); err != nil {
		return store.RecordPage{}, err
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

func (r *countedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := r.check(); err != nil {
		return err
	}
	return r.Records.Apply(ctx, changes, now)
}

type stateRemote struct {
	createRemote
	status thread.Code
}

func (b *stateRemote) view(context.Context, string) (remoteView, error) {
	return remoteView{status: b.status}, nil
}

// TestStoreFailureOfADelivery: a failure of the store ends no delivery through a link, wherever it happens.
func TestStoreFailureOfADelivery(t *testing.T) {
	const there = "2026-01-31-001"
	for _, c := range []struct {
		name    string
		k       *shared // nil for a new thread
		status  thread.Code
		payload wire.Value
		calls   int // of the store
	}{
		{"new thread", nil, "", wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "when?")), 4},
		{"answer", &shared{Mine: true, Intent: wire.RequestInfo}, thread.NeedsInput,
			wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "at ten")), 4},
		{"claim", &shared{}, thread.Received, wire.Obj(wire.Field("mess", mustParse(t, "- status: {re: last, code: claimed}").Tree())), 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, remote, _ := newListRemote(t)
			l.remote = &stateRemote{createRemote{remote, there, 0}, c.status}
			if c.k != nil {
				c.k.Conv, c.k.There, c.k.Key = "conv_1", there, exchange.SharedKey(l.pseudonym(thread.ExchangeID), "conv_1")
				if err := l.save(t.Context(), *c.k); err != nil {
					t.Fatal(err)
				}
			}
			records := &countedRecords{Records: l.records}
			l.records, l.cfg.Records = records, records
			d := bridge.Delivery{ID: "a", Address: l.Address().String(), Message: wire.Message{Conversation: "conv_1", Payload: c.payload}}
			for records.fail = 1; records.fail < 50; records.fail++ {
				records.calls = 0
				err := l.Deliver(t.Context(), d)
				if err == nil {
					break
				}
				if !isRetry(err) {
					t.Errorf("call %d fails for good: %v", records.fail, err)
				}
			}
			if records.fail != c.calls+1 {
				t.Errorf("%d calls failed, want %d", records.fail-1, c.calls)
			}
		})
	}
}
