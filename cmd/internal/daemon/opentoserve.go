package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// How long a process waits for a data directory that another process uses without answering: another command, or a
// serve that starts or stops.
const (
	commandWait = 10 * time.Second

	// ServeWait is how long a serve waits. It is longer than [SendWait], because a command that uses the directory may
	// wait that long for an answer of a peer.
	ServeWait = (SendWait + 5) * time.Second
)

// OpenToServe opens the data directory for a process that will serve. It waits up to [ServeWait] for a command that
// uses the directory, but returns an error at once if another serve runs.
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
