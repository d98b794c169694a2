package bridge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// healthyAfter is the length of a connection after which the waits of a [Keeper] begin again with the first one.
const healthyAfter = time.Minute

// Keeper keeps a link connected: it connects again after each end of the connection, with waits that grow, until the
// owner must act. It also has the state of the link. It is safe for concurrent use.
type Keeper struct {
	// First and Last are the first and the longest wait. Each wait is up to a fifth shorter or longer, at random. Set
	// them before Run.
	First, Last time.Duration

	log     *slog.Logger
	wake    chan struct{} // ends a wait
	dialing chan struct{} // a lock, held during an attempt to connect

	mu     sync.Mutex
	status LinkStatus
}

// NewKeeper returns a keeper that waits for a second to a minute. status names the link.
func NewKeeper(status LinkStatus, log *slog.Logger) *Keeper {
	status.State = LinkConnecting
	return &Keeper{First: time.Second, Last: time.Minute, log: log, wake: make(chan struct{}, 1), dialing: make(chan struct{}, 1), status: status}
}

// Status returns the state of the link.
func (k *Keeper) Status() LinkStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Set changes the state. A link that is up needs no wake-up any longer: a pending one would undo a later end.
func (k *Keeper) Set(state LinkState, fault string) { k.set(state, fault, time.Time{}) }

func (k *Keeper) set(state LinkState, fault string, retry time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if state == LinkUp {
		select {
		case <-k.wake:
		default:
		}
	}
	k.status.Set(state, fault)
	k.status.Retry = retry
}

// Wake makes a link that waits connect now, also one that is down.
func (k *Keeper) Wake() { waiting.Wake(k.wake) }

// Dial waits until no other attempt to connect is made, because a second connection may end the first. The caller calls
// done when its attempt has an outcome.
func (k *Keeper) Dial(ctx context.Context) (done func(), err error) {
	select {
	case k.dialing <- struct{}{}:
		return sync.OnceFunc(func() { <-k.dialing }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// End is how an attempt to connect, or a connection, ended.
type End struct {
	Fault string        // what the owner sees of it
	Down  bool          // the link stays down until [Keeper.Wake]
	Wait  time.Duration // before the next attempt, at least
}

// Run calls connect again and again, until ctx ends. connect makes a connection and returns when it ends.
func (k *Keeper) Run(ctx context.Context, connect func(ctx context.Context) End) {
	wait := k.First
	k.Set(LinkConnecting, "")
	for ctx.Err() == nil {
		began := time.Now()
		end := connect(ctx)
		if ctx.Err() != nil {
			return
		}
		var timer <-chan time.Time
		if end.Down {
			wait = k.First
			k.Set(LinkDown, end.Fault)
			k.log.Error("the link is down until the owner acts", "err", end.Fault)
		} else {
			if time.Since(began) >= healthyAfter {
				wait = k.First
			}
			pause := max(end.Wait, time.Duration(float64(wait)*(0.8+0.4*rand.Float64())))
			wait = min(2*wait, k.Last)
			timer = time.After(pause)
			k.set(LinkConnecting, end.Fault, time.Now().Add(pause))
			k.log.Info("the link is not connected", "err", end.Fault, "retry_in", pause.Round(time.Second))
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-timer:
		}
	}
}
