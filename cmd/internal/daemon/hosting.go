package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// leaseBridges is the lease for the bridges of a process without a node. A process with a node runs them under
// [node.Lease], because the node delivers through them.
const leaseBridges = "bridges"

// nsHosting is the namespace of the records of [host]. The key is the name of the lease.
const nsHosting = "hosting"

// These times begin when a process has decided to start again in order to run the bridges.
const (
	takeOverFor = 3 * time.Second  // how long that process tries to acquire the lease
	startFor    = 10 * time.Second // how long the other processes leave the lease to it
)

// How often a waiting process checks the lease for the bridges. lookSoon applies if the holder has not renewed the
// lease since the last check.
const (
	lookEvery = time.Second
	lookSoon  = 100 * time.Millisecond
)

// host describes how other processes forward requests to the process that runs the bridges.
type host struct {
	URL string `json:"url,omitempty"` // empty: that process takes no forwarded requests
	Key string `json:"key,omitempty"` // proves that a request comes from a process with the same store
	// Starting means that the process is starting again in order to run the bridges. It releases the lease and then
	// acquires it again.
	Starting bool `json:"starting,omitempty"`
}

// hosting makes one process at a time run the bridges: the links, and the spaces, exchanges and relays that they host.
// Bridges keep their state in memory, so another process only forwards their requests, and starts again when it gets
// the lease.
type hosting struct {
	lease    string
	leaseCtx context.Context // ends with the lease that claim acquired; nil without that lease
	release  func()          // releases the lease; nil if there is nothing to release

	listener  net.Listener // for the requests that other processes forward; nil if not configured
	key       string       // that those requests must carry
	forwarder *httpapi.Forwarder

	mu         sync.Mutex
	current    host            // where the bridges run, as last read
	hostCtx    context.Context // ends when current changes
	endHostCtx context.CancelFunc
}

// claim opens the listener for forwarded requests, and acquires the lease for the bridges. If another process has the
// lease, claim returns nil, and this process reads the record of the [host] whenever it changes.
func (h *hosting) claim(ctx context.Context, p *Process) (err error) {
	h.lease, h.key, h.forwarder = leaseBridges, rand.Text(), httpapi.NewForwarder()
	if p.cfg.Has(config.RoleNode) {
		h.lease = node.Lease
	}
	if address := p.cfg.Network.ForwardListen; address != "" {
		if h.listener, err = listenAcrossStarts(&p.rerun.sockets, address, "network.forward_listen"); err != nil {
			return err
		}
	}
	patience := time.Duration(0)
	if p.rerun.takesOver.Swap(false) {
		patience = takeOverFor
	}
	h.leaseCtx, h.release, err = p.session.ClaimSoon(ctx, h.lease, patience)
	switch {
	case errors.Is(err, store.ErrLeaseTaken):
		p.store.OnRemote(nsHosting, func(c store.Change) {
			if c.Record.Key == h.lease {
				h.read(p, c.Record)
			}
		})
		return nil
	case err != nil:
		return err
	}
	return h.publish(h.leaseCtx, p)
}

// publish stores where this process takes forwarded requests. If it takes none, publish only clears an old record.
func (h *hosting) publish(ctx context.Context, p *Process) error {
	var self host
	if h.listener != nil {
		self = host{URL: "http://" + h.listener.Addr().String(), Key: h.key}
	}
	_, err := p.store.Records().Get(ctx, nsHosting, h.lease, time.Now())
	if self == (host{}) && errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return h.store(ctx, p, self)
}

// store stores self as the process that runs the bridges.
func (h *hosting) store(ctx context.Context, p *Process, self host) error {
	c := store.Change{Record: store.Record{NS: nsHosting, Key: h.lease, Body: wire.MustMarshal(self)}, IfRev: store.Any}
	return p.store.Records().Apply(ctx, []store.Change{c}, time.Now())
}

// isElsewhere reports whether another process runs the bridges. A command that does not serve claims nothing, and uses
// the bridges itself.
func (h *hosting) isElsewhere() bool { return h.lease != "" && h.leaseCtx == nil }

// currentLease returns the lease for the bridges if this process has it, or nil.
func (h *hosting) currentLease() *store.Lease {
	if h.leaseCtx == nil {
		return nil
	}
	return store.LeaseOf(h.leaseCtx)
}

func (h *hosting) close() {
	if h.release != nil {
		h.release()
	}
	if h.listener != nil {
		_ = h.listener.Close() // it may be closed already
	}
}

// run runs the bridges until ctx ends. If another process has the lease, run waits for the lease, and then starts this
// process again. If this process loses the lease, run starts this process again too.
func (h *hosting) run(ctx context.Context, p *Process) error {
	if len(p.bridges) == 0 {
		<-ctx.Done()
		return nil
	}
	if h.isElsewhere() {
		return h.await(ctx, p)
	}
	work, stop := context.WithCancel(h.leaseCtx)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	g, work := errgroup.WithContext(work)
	for _, b := range p.bridges {
		g.Go(func() error { return b.Run(work) })
	}
	err := g.Wait()
	if errors.Is(context.Cause(h.leaseCtx), store.ErrLeaseLost) {
		p.log.Warn("lease for the bridges lost; the process starts again", "err", err)
		if awaitStore(ctx, p.store) {
			p.rerun.restart()
		}
		return nil
	}
	return err
}

// awaitStore waits until the store accepts writes, because a process cannot start without it. Until then, the process
// refuses what it cannot store. awaitStore returns false if ctx ended first.
func awaitStore(ctx context.Context, s store.Store) bool {
	for s.Ping(ctx) != nil {
		if !waiting.Pause(ctx, time.Second) {
			return false
		}
	}
	return true
}

// await waits for the lease, and starts this process again to run the bridges. The process keeps the lease until it has
// stopped serving, see [hosting.close].
func (h *hosting) await(ctx context.Context, p *Process) error {
	standby := store.NewSession(p.store.Leases(), p.log) // not p.session, so that no work under the lease begins before the new start
	var lastUntil time.Time                              // end of the lease when this process last looked
	next := time.NewTimer(lookEvery)
	defer next.Stop()
	var startingRev store.Rev  // revision of the newest record with Starting
	var startingSeen time.Time // when this process first read that revision
	var outage bool            // the store did not answer when this process last looked
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		next.Reset(lookEvery)
		record, err := p.store.Records().Get(ctx, nsHosting, h.lease, time.Now())
		var found host
		if err == nil || errors.Is(err, store.ErrNotFound) { // otherwise the host has not changed as far as we know
			found, _ = h.read(p, record)
		}
		if found.Starting {
			if startingRev != record.Rev {
				startingRev, startingSeen = record.Rev, time.Now()
			}
			if time.Since(startingSeen) < startFor {
				continue
			}
		}
		state, taken, err := h.state(ctx, p)
		if err != nil {
			if !outage && ctx.Err() == nil {
				p.log.Warn("lease of the bridges cannot be read; the process looks again", "lease", h.lease, "err", err)
			}
			outage = true
			continue
		}
		outage = false
		if taken {
			if state.Until.Equal(lastUntil) { // the holder has not renewed the lease
				next.Reset(lookSoon)
			}
			lastUntil = state.Until
			continue
		}
		leaseCtx, release, err := standby.Claim(context.WithoutCancel(ctx), h.lease)
		if err != nil {
			if !errors.Is(err, store.ErrLeaseTaken) {
				p.log.Warn("lease of the bridges not acquired; the process tries again", "lease", h.lease, "err", err)
			}
			continue
		}
		h.release = release
		if err := h.store(leaseCtx, p, host{Starting: true}); err != nil {
			p.log.Warn("name of the process that runs the bridges not stored; others cannot forward requests yet", "err", err)
		}
		p.log.Info("start again, to run the bridges")
		p.rerun.takesOver.Store(true)
		p.rerun.restart()
		return nil
	}
}

// state returns the lease for the bridges, and whether a process holds it.
func (h *hosting) state(ctx context.Context, p *Process) (state store.LeaseState, taken bool, err error) {
	leases, err := p.store.Leases().List(ctx)
	if i := slices.IndexFunc(leases, func(l store.LeaseState) bool { return l.Name == h.lease }); i >= 0 {
		return leases[i], true, nil
	}
	return state, false, err
}

// mount mounts the routes of the bridge of a kind. If another process runs the bridge, its public routes forward their
// requests, and its operations refuse them.
func (h *hosting) mount(p *Process, kind string, b bridge.Service) {
	operations := b.Operations()
	if !h.isElsewhere() {
		b.Mount(p.server.Echo())
		p.mountOperations(operations...)
		return
	}
	isOff := func() bool {
		s, ok := b.(bridge.Switched)
		return ok && !s.Serving() && (kind != moltspeak.Kind || p.cfg.MoltSpeak.Registry != "on") // the registry has no switch
	}
	scratch := echo.New() // only to list the routes
	b.Mount(scratch)
	for _, r := range scratch.Routes() {
		if r.Method != echo.RouteNotFound {
			p.server.Echo().Add(r.Method, r.Path, func(c echo.Context) error {
				if isOff() {
					return wire.ErrRoute
				}
				return h.forward(c, p)
			})
		}
	}
	operations = slices.Clone(operations)
	for i, op := range operations {
		operations[i] = owner.Raw(op.Method, op.Path, op.Right, func(c echo.Context) error { return h.refuse(c.Request().Context(), p) })
	}
	p.mountOperations(operations...)
}

func errElsewhere() *wire.Error {
	return (&wire.Error{
		Code: wire.AgentUnavailable, Status: http.StatusServiceUnavailable, Retry: true,
		Message: "another process of this service answers such requests",
	}).After(2 * time.Second)
}

// refuse refuses an operation of the owner API of a bridge. The error names the process that runs the bridge.
func (h *hosting) refuse(ctx context.Context, p *Process) error {
	e := errElsewhere()
	if state, _, _ := h.state(ctx, p); state.Holder != "" {
		e.Message = "the bridges run in the process " + state.Holder + ": repeat this there, with the data directory of that process (agentmesh status names all processes)"
	}
	return e
}

// forward forwards a request to the process that runs the bridges. If another process takes over the bridges meanwhile,
// forward cancels the request.
func (h *hosting) forward(c echo.Context, p *Process) error {
	if httpapi.IsForwarded(c) { // by a process that wrongly assumes that this one runs the bridges
		return errElsewhere()
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	defer cancel()
	record, err := p.store.Records().Get(ctx, nsHosting, h.lease, time.Now())
	if err != nil {
		return errElsewhere().Because(err)
	}
	target, hostCtx := h.read(p, record)
	defer context.AfterFunc(hostCtx, cancel)()
	base, err := url.Parse(target.URL)
	if err == nil && target.URL == "" {
		err = fmt.Errorf("the process with the lease %s has no network.forward_listen", h.lease)
	}
	if err == nil {
		err = h.forwarder.Forward(ctx, c, base, target.Key)
	}
	if err != nil {
		return errElsewhere().Because(err)
	}
	return nil
}

// read returns the host in a record, and a context that ends when the host changes. If the host has changed since the
// last call, read ends the requests that were forwarded to the previous one.
func (h *hosting) read(p *Process, record store.Record) (found host, hostCtx context.Context) {
	if err := json.Unmarshal(record.Body, &found); err != nil && len(record.Body) > 0 {
		p.log.Error("name of the process that runs the bridges cannot be read; requests for them are not forwarded", "err", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hostCtx == nil || found != h.current {
		if h.hostCtx != nil {
			h.endHostCtx()
		}
		h.current = found
		h.hostCtx, h.endHostCtx = context.WithCancel(context.Background())
	}
	return found, h.hostCtx
}
