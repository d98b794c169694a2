package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxKeys bounds the keys that callers hold or wait for. The limits on connections bound the callers.
const maxKeys = 4096

// KeyedLock lets one caller per key run at a time. A node uses it so that the second of two copies of a message waits
// for the answer to the first (AM-21).
type KeyedLock struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

// NewKeyedLock returns a lock that nobody holds.
func NewKeyedLock() *KeyedLock { return &KeyedLock{locks: make(map[string]*keyLock)} }

type keyLock struct {
	free  chan struct{} // holds one token while nobody holds the lock
	users int           // callers that hold the lock or wait for it; guarded by KeyedLock.mu
}

// Lock waits until the caller holds key, and returns the function that unlocks it. It waits at most timeout, if that is
// not 0. The error is that of ctx, context.DeadlineExceeded after timeout, or wire.ErrUnavailable if too many keys are
// locked.
func (k *KeyedLock) Lock(ctx context.Context, key string, timeout time.Duration) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		if len(k.locks) >= maxKeys {
			k.mu.Unlock()
			return nil, wire.ErrUnavailable
		}
		l = &keyLock{free: make(chan struct{}, 1)}
		l.free <- struct{}{}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()

	unlock = func() { l.free <- struct{}{}; k.drop(key, l) }
	select {
	case <-l.free: // the usual case, which needs no timer
		return unlock, nil
	default:
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	select {
	case <-l.free:
		return unlock, nil
	case <-ctx.Done():
		k.drop(key, l)
		return nil, ctx.Err()
	}
}

// drop removes a user of l, and l itself after its last user.
func (k *KeyedLock) drop(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
