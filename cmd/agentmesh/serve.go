package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// serveCmd runs directory and node on one listener until it is told to stop.
type serveCmd struct {
	JSON bool `help:"Print where everything runs as one line of JSON."`
}

func (c *serveCmd) Run(ctx context.Context, a *app) (err error) {
	cfg, err := a.checkedConfig()
	if err != nil {
		return err
	}
	a.quietest = slog.LevelDebug
	for _, m := range a.cannotRun(cfg) {
		a.note("%s", clean(m))
	}
	p, err := a.openToServe(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	listener, err := listen(cfg.Listen, "--listen")
	if err != nil {
		return err
	}
	base := cfg.reachedAt(listener)
	if err := p.prepare(ctx, base); err != nil {
		return errors.Join(err, listener.Close())
	}
	return p.serve(ctx, listener, func(ctx context.Context) error { return p.announce(ctx, listener.Addr().String(), base, c.JSON) })
}

// prepare makes everything that can fail before the process answers its first request.
func (p *process) prepare(ctx context.Context, base string) error {
	if p.cfg.has(roleNode) {
		if err := p.initialise(nil, base); err != nil {
			return err
		}
		if err := p.replaceCredential(); err != nil {
			return err
		}
	}
	var err error
	if p.certs, err = p.newCertificate(); err != nil {
		return err
	}
	if err := p.assemble(ctx, base); err != nil {
		return err
	}
	if p.node != nil {
		if err := p.home.saveCard(p.node.Card().Tree); err != nil {
			return err
		}
	}
	if address := p.cfg.TLS.PlainListen; address != "" {
		if p.plain, err = listen(address, "tls.plain_listen"); err != nil {
			return err
		}
	}
	if err := p.owner.Listen(); err != nil {
		return p.ownerFault(err)
	}
	return nil
}

// listen opens a listener at the address that a flag or key names.
func listen(address, key string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, failHint(exitUnavailable, fmt.Errorf("%s is in use", address), "choose another port with "+key+", or stop what has it")
	case errors.Is(err, syscall.EACCES):
		return nil, failHint(exitForbidden, fmt.Errorf("not permitted to listen on %s", address), "allow it (AmbientCapabilities=CAP_NET_BIND_SERVICE in a unit, or setcap cap_net_bind_service=+ep on the program), or choose a port from 1024 up with "+key)
	case err != nil:
		return nil, fail(exitConfig, err)
	}
	return l, nil
}

// reachedAt is the URL under which others reach what listens there.
func (c Config) reachedAt(l net.Listener) string {
	if c.Public() {
		return strings.TrimRight(c.PublicURL, "/")
	}
	return "http://" + l.Addr().String()
}

func (p *process) ownerFault(err error) error {
	switch {
	case errors.Is(err, httpapi.ErrOwnerInUse):
		return p.home.inUse()
	case errors.Is(err, syscall.EADDRINUSE):
		return failHint(exitUnavailable, fmt.Errorf("%s is in use", p.cfg.OwnerAPI.Listen), "choose another port with owner_api.listen, or stop what has it")
	}
	return fail(exitConfig, err)
}

// serve runs everything until ctx ends or a part fails, and returns when all parts have stopped. started is called
// once everything answers.
func (p *process) serve(ctx context.Context, listener net.Listener, started func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.edge.Serve(ctx, listener) })
	if p.certs != nil {
		g.Go(func() error { p.certs.Run(ctx); return nil })
	}
	if p.plain != nil {
		g.Go(func() error { return p.edge.ServePlain(ctx, p.plain, p.certs.Challenge()) })
	}
	g.Go(func() error { return p.owner.Serve(ctx) })
	if p.node != nil {
		g.Go(func() error { return p.runNode(ctx) })
	} else {
		g.Go(func() error { p.sweep(ctx); return nil })
		g.Go(func() error { p.audit.Run(ctx); return nil })
		g.Go(func() error { p.notices.Run(ctx); return nil })
	}
	if p.events != nil {
		g.Go(func() error { p.events.Run(ctx); return nil })
	}
	if p.registry != nil {
		g.Go(func() error { p.registry.Run(ctx); return nil })
	}
	for _, b := range p.bridges {
		g.Go(func() error { return b.Run(ctx) })
	}
	g.Go(func() error { return started(ctx) })
	return g.Wait()
}

// runNode runs the node until ctx ends, and keeps the card that it ends with: a directory may have given it
// another id.
func (p *process) runNode(ctx context.Context) error {
	err := p.node.Run(ctx)
	if ctx.Err() != nil && errors.Is(err, store.ErrUnavailable) {
		p.log.Warn("the limits of the last minute are not stored", "err", err)
		err = nil // a full disk is no reason to end badly
	}
	return errors.Join(err, p.home.saveCard(p.node.Card().Tree))
}

const sweepEvery = 10 * time.Minute

// sweep reclaims what has expired where no node does.
func (p *process) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	clock := store.NewWallClock(p.log)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := clock.Sweep(ctx, p.store); err != nil {
				p.log.Warn("sweep", "err", err)
			}
		}
	}
}

// where says what runs where.
type where struct {
	PID       int          `json:"pid"`
	Profile   string       `json:"profile"`
	Address   string       `json:"address"` // of the listener
	URL       string       `json:"url"`     // under which others reach it
	Directory string       `json:"directory,omitempty"`
	Endpoint  string       `json:"endpoint,omitempty"`
	AgentID   wire.AgentID `json:"agent_id,omitempty"`
	Name      string       `json:"name,omitempty"`
	Data      string       `json:"data"`
	Socket    string       `json:"owner_socket"`
	OwnerAPI  string       `json:"owner_api,omitempty"`
}
