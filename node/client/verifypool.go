package client

import (
	"context"
	"runtime"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// poolWait is how long a message waits for a place to be verified before its sender is told to come again.
const poolWait = 5 * time.Second

// verifyPool bounds how many signatures are verified at once, so that a flood of bad ones leaves processors to the rest of
// the process. Of the places OpenPGP keys, which may be slow and serve one verification at a time, take at most
// half, and one key takes one: whoever sends with a slow key waits for itself.
type verifyPool struct {
	places chan struct{}
	slow   *gates
}

func newVerifyPool() *verifyPool {
	n := max(2, runtime.GOMAXPROCS(0))
	return &verifyPool{places: make(chan struct{}, n), slow: newGates(n/2, 1)}
}

// enter waits for a place to verify under key; the caller gives it back with release. Where none comes free in time,
// or ctx ends, the error is a wire.ErrUnavailable.
func (p *verifyPool) enter(ctx context.Context, key *signing.PublicKey) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, poolWait)
	defer cancel()
	busy := func() (func(), error) {
		return nil, wire.ErrUnavailable.Because(ctx.Err()).After(time.Second)
	}
	leave := func() {}
	if key.Kind() == signing.KindOpenPGP {
		if leave, err = p.slow.enter(ctx, key.Fingerprint()); err != nil {
			return busy()
		}
	}
	select {
	case p.places <- struct{}{}:
		return func() { <-p.places; leave() }, nil
	case <-ctx.Done():
		leave()
		return busy()
	}
}
