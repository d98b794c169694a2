package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// How long somebody who needs the data directory waits for a process that has it and serves nothing: another command,
// or a serve that starts or ends.
const (
	commandWait = 10 * time.Second
	ServeWait   = (SendWait + 5) * time.Second // a command may wait for an answer as long as it has the directory
)

// OpenToServe is [open] for a process that will serve. Where one serves already, it does not wait.
func OpenToServe(ctx context.Context, o Options) (p *Process, err error) {
	err = o.Dir.WaitFree(ctx, ServeWait, o.Note, func() (done bool, err error) {
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
