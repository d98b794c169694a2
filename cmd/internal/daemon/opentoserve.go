package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// A command or a serve waits this long for a data directory whose process does not answer: another command, or a serve
// that starts or stops.
const (
	commandWait = 10 * time.Second

	// ServeWait is the wait of a serve. It is longer than [SendWait]: a command that uses the directory may wait that
	// long for an answer.
	ServeWait = (SendWait + 5) * time.Second
)

// OpenToServe opens the data directory for a process that will serve. It waits up to [ServeWait] for a command that uses
// the directory, but returns an error at once if another serve runs.
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
