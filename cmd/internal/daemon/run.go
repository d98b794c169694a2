package daemon

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/gc"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// rerun makes serve start again inside its process, for example with another configuration.
type rerun struct {
	sockets sockets
	stop    context.CancelFunc // ends Serve
	mu      sync.Mutex         // guards undo and startErr
	undo    func() error       // restores the configuration that served last
	// startErr is why the process did not start with the newest configuration, or nil if it did.
	startErr error
	wanted   atomic.Bool // Serve ended so that Run starts again
	// takesOver makes the next Serve try to acquire the lease for the bridges before other processes do.
	takesOver atomic.Bool
	editing   sync.Mutex // held to change the configuration file
}

// restart is [rerun.restartOrUndo] without a change to undo.
func (r *rerun) restart() { r.restartOrUndo(nil) }

// restartOrUndo ends Serve, so that [Run] starts again with the current configuration. If Run cannot start with it, Run
// calls undo and serves as before. restartOrUndo returns false, and does nothing, in a process that does not serve.
func (r *rerun) restartOrUndo(undo func() error) bool {
	if r.stop == nil {
		return false
	}
	r.sockets.hold()
	r.addUndo(undo)
	r.setStartErr(nil)
	r.wanted.Store(true)
	r.stop()
	return true
}

// addUndo adds the undo of the newest change to those that still wait for the start.
func (r *rerun) addUndo(undo func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch earlier := r.undo; {
	case earlier == nil:
		r.undo = undo
	case undo != nil:
		r.undo = func() error { return errors.Join(undo(), earlier()) }
	}
}

// takeUndo returns the undo of the changes since the last start, or nil.
func (r *rerun) takeUndo() func() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	undo := r.undo
	r.undo = nil
	return undo
}

func (r *rerun) setStartErr(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.startErr = err
}

// failure returns why the process did not start with the newest configuration, or nil.
func (r *rerun) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.startErr
}

// Run serves the data directory until ctx ends. It starts again with what reload returns if the owner changes the
// configuration, or if this process must begin or stop running the bridges. It calls started once, when everything
// answers for the first time. A process that has served and starts again waits for its database.
func Run(
	ctx context.Context, o Options, reload func() (Options, error), started func(context.Context, *Process, ServeInfo) error,
) (err error) {
	gc.Adapt()
	r := &rerun{}
	defer func() { err = errors.Join(err, r.sockets.settle()) }()
	o.Passphrase = sync.OnceValues(o.Passphrase)
	var old Options // those of the previous start, in case the new ones do not start
	for {
		o.rerun = r
		undo := r.takeUndo()
		r.wanted.Store(false)
		hasServed := started == nil // the first start that succeeds calls started, and sets it to nil
		pageAddr, up, err := o.serve(ctx, started)
		switch {
		case err != nil && !up && undo != nil && ctx.Err() == nil && !isDatabaseAway(err): // the changed configuration does not start
			o.Logger.Error("the process cannot start with the new configuration, so the old one is back", "err", err)
			r.setStartErr(err)
			if err := undo(); err != nil {
				return err
			}
			o = old
			if now, err := reload(); err == nil { // links and bridges start and stop without a start of the process
				o.Config.Links = now.Config.Links
				for i, s := range now.Config.Switches() {
					*o.Config.Switches()[i].Serve = *s.Serve
				}
			}
			continue
		case ctx.Err() == nil && r.wanted.Load() && (up || err == nil): // restart was called, and the process served or at least did not fail
			if err != nil { // for example, the database does not answer
				o.Logger.Warn("the process did not stop cleanly, and starts again", "err", err)
			}
		case ctx.Err() != nil && !up && hasServed && (isDatabaseAway(err) || errors.Is(err, context.Canceled)):
			return nil // somebody ended the process while it started again
		case !up && hasServed && isDatabaseAway(err):
			o.Logger.Warn("database does not answer; the process starts again in a second", "err", err)
			r.addUndo(undo)
			if !waiting.Pause(ctx, time.Second) {
				return nil
			}
			continue
		default:
			return err
		}
		next, err := reload()
		if err != nil { // somebody broke the file while this process served; see [rerun.failure]
			o.Logger.Error("the configuration cannot be read, so this process goes on with the one that it has", "err", err)
			r.setStartErr(err)
			next = o
		}
		next.Passphrase, next.Mirror = o.Passphrase, o.Mirror
		if pageAddr != nil && next.Config.OwnerAPI.Listen == "" { // an open page finds the new process at the old address
			next.Config.OwnerAPI.Listen = pageAddr.String()
		}
		old, o = o, next
		if up {
			started = nil
		}
	}
}

// isDatabaseAway reports whether a process could not start because the database does not answer.
func isDatabaseAway(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || exit.Code(err) == exit.Unavailable && !errors.Is(err, errPortInUse)
}

// serve serves the data directory until ctx ends or [rerun.restartOrUndo] is called. It returns the address of the
// owner's page, and whether everything answered.
func (o Options) serve(ctx context.Context, started func(context.Context, *Process, ServeInfo) error) (pageAddr net.Addr, up bool, err error) {
	p, err := OpenToServe(ctx, o)
	if err != nil {
		return nil, false, err
	}
	err = p.Serve(ctx, func(ctx context.Context, info ServeInfo) error {
		up = true
		err := o.rerun.sockets.settle()
		if err == nil && started != nil {
			err = started(ctx, p, info)
		}
		return err
	})
	if p.owner != nil {
		pageAddr = p.owner.Addr()
	}
	return pageAddr, up, errors.Join(err, p.Close())
}

// How long a process waits for a data directory that another process uses without answering: another command, or serve
// while it starts or stops.
const (
	commandWait = 10 * time.Second

	// ServeWait is how long serve waits. It is longer than [SendWait], because a command that uses the directory may
	// wait that long for an answer of a peer.
	ServeWait = (SendWait + 5) * time.Second
)

// OpenToServe opens the data directory for a process that will serve. It waits up to [ServeWait] for a command that
// uses the directory, but returns an error at once if another serve process uses it.
func OpenToServe(ctx context.Context, o Options) (p *Process, err error) {
	err = o.Dir.WaitUntilFree(ctx, ServeWait, o.Note, func() (done bool, err error) {
		p, err = open(ctx, o)
		if !errors.Is(err, datadir.ErrInUse) {
			return true, err
		}
		other := Running(ctx, string(o.Dir))
		if other == nil {
			return false, err
		}
		return true, errors.Join(err, other.Close())
	})
	return p, err
}
