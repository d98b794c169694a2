package httpapi

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits per client address (AM-43).
const (
	defaultRequests = 120 // a minute
	maxFaults       = 10  // a minute
	faultPenalty    = 10 * time.Minute
	maxAddresses    = 1 << 16 // that each limit remembers

	faultDelay = time.Second // before the response to a faulty request of an unknown client
	maxDelayed = 256         // responses that are delayed at the same time
)

// Addresses limits the requests of each client address (AM-43). Until the signature of a request is verified, only
// the client's address is charged. The zero value, a nil pointer and the Addresses of the local profile, which serves
// only this machine, allow everything (AM-82).
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

// Allow takes one request from the allowance of an address. If the allowance is used up, or the address has a penalty,
// ok is false, and wait is how long the client must wait.
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

// Fault counts a fault of a client at addr, such as a bad signature or a wrong token. After ten within a minute,
// the address is refused for ten minutes. The clients that share the address [rate.Unknown] are delayed instead;
// see [Addresses.Delay].
func (a *Addresses) Fault(ctx context.Context, addr netip.Addr) {
	if a.isExempt(addr) {
		return
	}
	a.faults.Fault(addr, time.Now())
	a.Delay(ctx, addr)
}

// Delay waits a second if addr is [rate.Unknown]. Many clients share that address, so a fault must cost only the client
// that made it. Delay returns early if ctx ends, and does not wait if too many responses are delayed.
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
	waiting.Pause(ctx, faultDelay)
}

// isExempt reports whether the address has no limits. A request without an address came from this machine.
func (a *Addresses) isExempt(addr netip.Addr) bool {
	return !a.hasLimits() || !addr.IsValid() || isIn(a.exempt, addr)
}

func (a *Addresses) hasLimits() bool { return a != nil && a.faults != nil }

// Check calls Allow for the client that made the request c. Its error is a *[wire.Error].
func (a *Addresses) Check(c echo.Context) error {
	if wait, ok := a.Allow(ClientAddr(c)); !ok {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// Sources returns what rate limits charge for the request: the client's address and the networks around it (AM-42). It
// returns none for an unknown or exempt client.
func (a *Addresses) Sources(c echo.Context) []rate.Source {
	addr := ClientAddr(c)
	if a.isExempt(addr) {
		return nil
	}
	return rate.AddrSources(addr)
}

// Guard is middleware that applies Check to every request of a route.
func (a *Addresses) Guard(next echo.HandlerFunc) echo.HandlerFunc {
	if !a.hasLimits() {
		return next // saves finding the address of each request
	}
	return func(c echo.Context) error {
		if err := a.Check(c); err != nil {
			return err
		}
		return next(c)
	}
}
