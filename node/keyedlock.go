package node

import (
	"context"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxKeys bounds the acceptances that run or wait. Each has a request that counts against the connection limits.
const maxKeys = 4096

// keyedLock lets one acceptance per key run at a time: the second of two copies waits for the first's answer (AM-21).
type keyedLock struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	turn    chan struct{} // holds one token while nobody holds the lock
	waiting int           // callers that hold the lock or wait for it; guarded by keyedLock.mu
}

// lock waits until the caller holds key, and returns the function that unlocks it, or ctx's error.
func (k *keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		if len(k.locks) >= maxKeys {
			k.mu.Unlock()
			return nil, wire.ErrUnavailable
		}
		l = &keyLock{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		k.locks[key] = l
	}
	l.waiting++
	k.mu.Unlock()

	select {
	case <-l.turn:
		return func() { l.turn <- struct{}{}; k.drop(key, l) }, nil
	case <-ctx.Done():
		k.drop(key, l)
		return nil, ctx.Err()
	}
}

func (k *keyedLock) drop(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		delete(k.locks, key)
	}
}
