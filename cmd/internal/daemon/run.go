package daemon

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// rerun makes a serve start again with another configuration.
type rerun struct {
	sockets sockets
	stop    context.CancelFunc // ends Serve
	wanted  atomic.Bool        // Serve ended so that Run starts again
}

// start ends Serve, so that [Run] starts again with the configuration as it is then.
func (r *rerun) start() {
	r.sockets.hold()
	r.wanted.Store(true)
	r.stop()
}

// Run serves the data directory until ctx ends. If the owner saves settings on the page, Run starts again with what
// reload returns. It calls started once, when everything answers for the first time.
func Run(
	ctx context.Context, o Options, reload func() (Options, error), started func(context.Context, *Process, ServeInfo) error,
) (err error) {
	r := &rerun{}
	defer func() { err = errors.Join(err, r.sockets.settle()) }()
	o.Passphrase = sync.OnceValues(o.Passphrase)
	for {
		o.rerun = r
		r.wanted.Store(false)
		p, err := OpenToServe(ctx, o)
		if err != nil {
			return err
		}
		err = p.Serve(ctx, func(ctx context.Context, info ServeInfo) error {
			err := r.sockets.settle()
			if err == nil && started != nil {
				err = started(ctx, p, info)
			}
			return err
		})
		var page net.Addr
		if p.owner != nil {
			page = p.owner.Addr()
		}
		err = errors.Join(err, p.Close())
		if err != nil || ctx.Err() != nil || !r.wanted.Load() {
			return err
		}
		next, err := reload()
		if err != nil {
			return err
		}
		next.Passphrase = o.Passphrase
		if page != nil && next.Config.OwnerAPI.Listen == "" { // an open page finds the new process at the old address
			next.Config.OwnerAPI.Listen = page.String()
		}
		o, started = next, nil
	}
}
