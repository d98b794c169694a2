package httpapi

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits per client address (AM-43).
const (
	defaultRequests = 120 // a minute
	maxFaults       = 10  // bad signatures a minute
	faultPenalty    = 10 * time.Minute
	maxAddresses    = 1 << 16 // of each kind

	faultDelay = time.Second // before the response to an unknown client that made a fault
	maxDelayed = 256         // responses that are delayed at the same time
)

// Addresses limits the requests of each client address (AM-43): a stranger is charged by address until a signature is
// verified. The zero value, the nil pointer and the limits of the local profile allow everything (AM-82).
type Addresses struct {
	exempt   []netip.Prefix
	requests *rate.Allowance
	faults   *rate.Penalties // nil for no limits
	delayed  chan struct{}   // holds one value per delayed response
}

func newAddresses(cfg Config) *Addresses {
	a := &Addresses{}
	if !cfg.Local {
		a.exempt = cfg.Exempt
		a.faults = rate.NewPenalties(maxFaults, faultPenalty, maxAddresses)
		a.delayed = make(chan struct{}, maxDelayed)
		if n := cmp.Or(cfg.RequestsPerMinute, defaultRequests); n > 0 {
			a.requests = rate.NewAllowance(rate.PerMinute(n), n, maxAddresses)
		}
	}
	cfg.Metrics.LimiterFunc("faults-of-address", a.faults.Refusals)
	cfg.Metrics.LimiterFunc("requests-of-address", a.requests.Refusals)
	cfg.Metrics.LimiterFunc("requests-of-block", a.requests.NetworkRefusals)
	return a
}

// Allow takes one request from the allowance of an address. If it refuses, wait is how long the address must wait.
func (a *Addresses) Allow(addr netip.Addr) (wait time.Duration, ok bool) {
	if a.isExempt(addr) {
		return 0, true
	}
	now := time.Now()
	if wait := a.faults.Admit(addr, now); wait > 0 {
		return wait, false
	}
	return a.requests.Take(addr, now)
}

// Fault counts a bad signature of the address: after ten within a minute the address is refused for ten minutes. An
// unknown client is never refused for faults; instead its response is delayed, see [Addresses.Delay].
func (a *Addresses) Fault(ctx context.Context, addr netip.Addr) {
	if a.isExempt(addr) {
		return
	}
	a.faults.Fault(addr, time.Now())
	a.Delay(ctx, addr)
}

// Delay waits a second if addr is the address of unknown clients. Several clients share that address, so a fault may
// only cost its own sender's time. Delay returns when ctx ends, and does not wait if too many responses are delayed
// already.
func (a *Addresses) Delay(ctx context.Context, addr netip.Addr) {
	if addr != rate.Unknown || a.isExempt(addr) {
		return
	}
	select {
	case a.delayed <- struct{}{}:
		defer func() { <-a.delayed }()
	default:
		return
	}
	timer := time.NewTimer(faultDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// isExempt reports whether no limit applies to the address. A request without an address came over our own socket, or
// from a caller in this process.
func (a *Addresses) isExempt(addr netip.Addr) bool {
	return a == nil || a.faults == nil || !addr.IsValid() || isIn(a.exempt, addr)
}

// Check is Allow for the client of c. It returns a *[wire.Error].
func (a *Addresses) Check(c echo.Context) error {
	if wait, ok := a.Allow(ClientAddr(c)); !ok {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// Sources returns the sources that the request c is charged to (AM-42): none for an unknown or exempt client.
func (a *Addresses) Sources(c echo.Context) []rate.Source {
	addr := ClientAddr(c)
	if a.isExempt(addr) {
		return nil
	}
	return rate.AddrSources(addr)
}

// Guard applies Check to every request of a route.
func (a *Addresses) Guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := a.Check(c); err != nil {
			return err
		}
		return next(c)
	}
}
