package main

import (
	"context"
	"errors"
	"time"
)

// How long somebody who needs the data directory waits for a process that has it and serves nothing: another command,
// or a serve that starts or ends.
const (
	commandWait = 10 * time.Second
	serveWait   = (sendWait + 5) * time.Second // a command may wait for an answer as long as it has the directory
	tellWait    = time.Second                  // from when on the user is told
	askAgain    = 100 * time.Millisecond
)

// errInUse is the error of a data directory that another process has.
var errInUse = errors.New("in use")

// untilFree calls take until it gets the data directory, at most for as long as wait; done ends it before that. What
// is refused for another reason than [errInUse] stays refused.
func (a *app) untilFree(ctx context.Context, h home, wait time.Duration, take func() (done bool, err error)) error {
	begun, told := time.Now(), false
	for {
		done, err := take()
		waited := time.Since(begun)
		if done || !errors.Is(err, errInUse) || waited >= wait {
			return err
		}
		if !told && waited >= tellWait {
			told = true
			a.note("waiting for %s to let go of %s", h.user(), h.dir)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// openToServe is [app.open] for a process that will serve. Where one serves already, it does not wait.
func (a *app) openToServe(ctx context.Context, cfg Config) (p *process, err error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	err = a.untilFree(ctx, home{dir}, serveWait, func() (done bool, err error) {
		p, err = a.open(ctx, cfg)
		if !errors.Is(err, errInUse) {
			return true, err
		}
		other := running(ctx, dir)
		if other == nil {
			return false, err
		}
		return true, errors.Join(err, other.close())
	})
	return p, err
}
