package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// prepare does everything that can fail before the process answers its first request.
func (p *Process) prepare(ctx context.Context, base string) error {
	if p.cfg.Has(config.RoleNode) {
		if err := (keyring{p}).prepare(ctx, nil, base); err != nil {
			return err
		}
	}
	var err error
	if p.certs, err = p.newCertificate(); err != nil {
		return err
	}
	if err := p.hosting.claim(ctx, p); err != nil {
		return err
	}
	if err := p.assemble(ctx, base); err != nil {
		return err
	}
	if p.node != nil {
		if err := p.dataDir.SaveCard(p.node.Card().Tree); err != nil {
			return err
		}
	}
	if address := p.cfg.TLS.PlainListen; address != "" {
		if p.plain, err = listenAcrossStarts(&p.rerun.sockets, address, "tls.plain_listen"); err != nil {
			return err
		}
	}
	if err := p.owner.Listen(); err != nil {
		return p.explainOwnerListen(err)
	}
	return nil
}

// Listen opens a listener. key is the flag or configuration key of the address, for hints.
func Listen(address, key string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	return l, explainListen(err, address, key)
}

// listenAcrossStarts is [Listen] with a listener that stays open if the process starts again.
func listenAcrossStarts(s *sockets, address, key string) (net.Listener, error) {
	l, err := s.listen(address)
	return l, explainListen(err, address, key)
}

// errPortInUse means that another program listens on the port. The text of the error begins with the address.
var errPortInUse = errors.New("in use")

// explainListen adds an exit code and a hint to an error of a listener.
func explainListen(err error, address, key string) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		if host, port, err := net.SplitHostPort(address); err == nil && strings.HasPrefix(key, "--") {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n < 65535 {
				key += " " + net.JoinHostPort(host, strconv.FormatUint(n+1, 10)) // the next port, for a second agent
			}
		}
		return exit.FailHint(exit.Unavailable, fmt.Errorf("%s is %w", address, errPortInUse), "choose another port with "+key+", or stop the program that uses it")
	case errors.Is(err, syscall.EACCES):
		return exit.FailHint(exit.Forbidden, fmt.Errorf("not permitted to listen on %s", address), "allow it (AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit, or setcap cap_net_bind_service=+ep on the program), or choose a port from 1024 up with "+key)
	case err != nil:
		return exit.Fail(exit.Config, err)
	}
	return nil
}

func baseURL(c config.Config, l net.Listener) string {
	if c.Public() {
		return strings.TrimRight(c.PublicURL, "/")
	}
	return "http://" + l.Addr().String()
}

func (p *Process) explainOwnerListen(err error) error {
	switch {
	case errors.Is(err, httpapi.ErrOwnerInUse):
		return p.dataDir.InUse()
	case errors.Is(err, syscall.EADDRINUSE):
		return exit.FailHint(exit.Unavailable, fmt.Errorf("%s is %w", p.cfg.OwnerAPI.Listen, errPortInUse), "choose another port with owner_api.listen, or stop the program that uses it")
	}
	return exit.Fail(exit.Config, err)
}

// Serve runs all parts of the process until ctx ends or a part fails, and returns after all parts have stopped. It
// calls started once, when everything answers.
func (p *Process) Serve(ctx context.Context, started func(context.Context, ServeInfo) error) error {
	ctx, p.rerun.stop = context.WithCancel(ctx)
	defer p.hosting.close()
	defer p.rerun.stop()
	listener, err := listenAcrossStarts(&p.rerun.sockets, p.cfg.Listen, "--listen")
	if err != nil {
		return err
	}
	base := baseURL(p.cfg, listener)
	if err := p.prepare(ctx, base); err != nil {
		return errors.Join(err, listener.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.server.Serve(ctx, listener) })
	if p.certs != nil {
		g.Go(func() error { p.certs.Run(ctx); return nil })
	}
	if p.plain != nil {
		g.Go(func() error { return p.server.ServePlain(ctx, p.plain, p.certs.Challenge()) })
	}
	g.Go(func() error { return p.owner.Serve(ctx) })
	g.Go(func() error { p.dataDir.MarkServing(ctx); return nil })
	if p.node != nil {
		g.Go(func() error { return p.runNode(ctx) })
	} else {
		g.Go(func() error { p.store.Follow(ctx); return nil })
		g.Go(func() error { p.audit.Run(ctx); return nil })
		g.Go(func() error { p.session.Do(ctx, directory.Lease, p.sweep); return nil })
		g.Go(func() error {
			p.session.Do(ctx, directory.Lease, func(ctx context.Context) { p.work.Run(ctx) })
			return nil
		})
	}
	if p.registry != nil {
		g.Go(func() error { p.registry.Run(ctx); return nil })
	}
	if p.hosting.listener != nil {
		g.Go(func() error { return p.server.ServeForwarded(ctx, p.hosting.listener, p.hosting.key) })
	}
	g.Go(func() error { return p.hosting.run(ctx, p) })
	g.Go(func() (err error) {
		if info := p.serveInfo(ctx, listener.Addr().String(), base); ctx.Err() == nil {
			err = started(ctx, info)
		}
		if err == nil && p.mirror != "" {
			source := client.NewDirectory(p.mirror, p.http, nil)
			p.session.Do(ctx, directory.Lease, func(ctx context.Context) { p.registry.Follow(ctx, source) })
		}
		return err
	})
	return g.Wait()
}

// runNode runs the node until ctx ends, and then saves its card, because a directory may have assigned another id.
func (p *Process) runNode(ctx context.Context) error {
	err := p.node.Run(ctx)
	if ctx.Err() != nil && errors.Is(err, store.ErrUnavailable) {
		p.log.Warn("the counts of the last minute for limits were not stored", "err", err)
		err = nil // a full disk does not make the end of the process a failure
	}
	return errors.Join(err, p.dataDir.SaveCard(p.node.Card().Tree))
}

const sweepEvery = 10 * time.Minute

// sweep removes expired rows in a process without a node. A node sweeps by itself.
func (p *Process) sweep(ctx context.Context) {
	clock := store.NewWallClock(p.log)
	for waiting.Pause(ctx, sweepEvery) {
		if err := clock.Sweep(ctx, p.store); err != nil {
			p.log.Warn("sweep failed; expired records stay until the next one", "err", err)
		}
	}
}
