package client

import (
	"context"
	"runtime"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// poolWait bounds the wait of a message for verification. After that, the message is refused, and its sender should
// try again.
const poolWait = 5 * time.Second

// verifyPool bounds how many signatures are verified at once, so that a flood of bad signatures leaves processor time
// for the rest of the process. OpenPGP keys, which may be slow, take at most half of the slots, and each key at most
// one slot. So a sender with a slow key delays only itself.
type verifyPool struct {
	slots chan struct{}
	slow  *limiter
}

func newVerifyPool() *verifyPool {
	n := max(2, runtime.GOMAXPROCS(0))
	return &verifyPool{slots: make(chan struct{}, n), slow: newLimiter(n/2, 1)}
}

// acquire waits for a slot to verify a signature of key. The caller must call release. If no slot becomes free in time,
// or ctx ends, the error matches wire.ErrUnavailable.
func (p *verifyPool) acquire(ctx context.Context, key *signing.PublicKey) (release func(), err error) {
	if key.Kind() != signing.KindOpenPGP {
		select {
		case p.slots <- struct{}{}: // without a timer
			return p.release, nil
		default:
		}
	}
	ctx, cancel := context.WithTimeout(ctx, poolWait)
	defer cancel()
	busy := func() (func(), error) {
		return nil, wire.ErrUnavailable.Because(ctx.Err()).After(time.Second)
	}
	releaseSlow := func() {}
	if key.Kind() == signing.KindOpenPGP {
		if releaseSlow, err = p.slow.acquire(ctx, key.Fingerprint()); err != nil {
			return busy()
		}
	}
	select {
	case p.slots <- struct{}{}:
		return func() { p.release(); releaseSlow() }, nil
	case <-ctx.Done():
		releaseSlow()
		return busy()
	}
}

func (p *verifyPool) release() { <-p.slots }
