package mess

import (
	"context"
	"net/http"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// An executor that the owner set up has no key, one may lose its own, and one may get into wrong hands. The owner gives
// another key, or takes the key away. The id stays taken in both cases: whoever registered it anew would see the
// threads of the one before.

// GiveKey makes a new key for an executor and returns it, this once. The key before works no more. A registration that
// waited is approved by it; more are changes of the same unit.
func (x *Exchange) GiveKey(ctx context.Context, id string, more []store.Change) (string, error) {
	key := newKey(x.id)
	return key, x.setKey(ctx, id, hashKey(key), false, more)
}

// TakeKey ends the key of an executor. It is offered nothing until it has a key again or the owner approves it.
func (x *Exchange) TakeKey(ctx context.Context, id string, more []store.Change) error {
	return x.setKey(ctx, id, "", true, more)
}

func (x *Exchange) setKey(ctx context.Context, id, hash string, pending bool, more []store.Change) error {
	if err := x.load(); err != nil {
		return err
	}
	return x.edit(ctx, id, more, func(e *Executor) error {
		e.KeyHash, e.Pending = hash, pending
		return nil
	})
}

// decided are the changes that withdraw the question about a registration that is decided here.
func (r *call) decided(ctx context.Context, id string) ([]store.Change, error) {
	if r.answered == nil {
		return nil, nil
	}
	return r.answered(ctx, id)
}

func (r *call) giveKey() error {
	ctx := r.c.Request().Context()
	more, err := r.decided(ctx, r.path[1])
	if err != nil {
		return err
	}
	key, err := r.x.GiveKey(ctx, r.path[1], more)
	if err != nil {
		return err
	}
	return r.tree(http.StatusCreated, wire.Obj(
		wire.TextField("executor_id", r.path[1]), wire.TextField("api_key", key),
		wire.TextField("message", "keep the key: it is shown this once; the one before works no more")))
}

func (r *call) takeKey() error {
	ctx := r.c.Request().Context()
	more, err := r.decided(ctx, r.path[1])
	if err != nil {
		return err
	}
	if err := r.x.TakeKey(ctx, r.path[1], more); err != nil {
		return err
	}
	return r.tree(http.StatusOK, wire.Obj(
		wire.TextField("executor_id", r.path[1]), wire.Field("updated", wire.Bool(true))))
}
