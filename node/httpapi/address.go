package httpapi

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

// extractor names the client: the other end of the connection or, behind trusted proxies alone, what the
// nearest of them says (THREATS row 24).
func extractor(trusted []netip.Prefix) echo.IPExtractor {
	if len(trusted) == 0 {
		return echo.ExtractIPDirect()
	}
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range trusted {
		p = p.Masked()
		options = append(options, echo.TrustIPRange(&net.IPNet{
			IP:   p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}))
	}
	return echo.ExtractIPFromXFFHeader(options...)
}

// ClientAddr returns the client's address. It is not valid for a connection without one (a Unix socket).
func ClientAddr(c echo.Context) netip.Addr {
	addr, err := netip.ParseAddr(c.RealIP())
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// Limits per client address (AM-43).
const (
	defaultRequests = 120 // a minute
	maxFaults       = 10  // bad signatures a minute
	faultPenalty    = 10 * time.Minute
	maxAddresses    = 1 << 16 // keys of each kind
	wideFactor      = 4       // what a /56 may do, in terms of one of its /64
)

// Addresses is the guard per client address (AM-43): all that a stranger pays with before a signature verified.
// An IPv6 client is its /64, and a /56 has four times the allowance of one (THREATS row 25). The zero value, the
// nil pointer and the guard of the local profile allow everything (AM-82).
type Addresses struct {
	exempt   []netip.Prefix
	requests *rate.Buckets // by rate.AddrKey
	wide     *rate.Buckets // by /56
	faults   *rate.Buckets
	barred   *rate.Buckets // an empty bucket is an address that is refused for its faults
}

func newAddresses(cfg Config) *Addresses {
	a := &Addresses{}
	if !cfg.Local {
		a.exempt = cfg.Exempt
		a.faults = rate.NewBuckets(rate.PerMinute(maxFaults), maxFaults, maxAddresses)
		a.barred = rate.NewBuckets(rate.Limit(1/faultPenalty.Seconds()), 1, maxAddresses)
		if n := cmp.Or(cfg.RequestsPerMinute, defaultRequests); n > 0 {
			a.requests = rate.NewBuckets(rate.PerMinute(n), n, maxAddresses)
			a.wide = rate.NewBuckets(rate.PerMinute(wideFactor*n), wideFactor*n, maxAddresses)
		}
	}
	cfg.Metrics.LimiterFunc("faults-of-address", a.barred.Refused)
	cfg.Metrics.LimiterFunc("requests-of-address", a.requests.Refused)
	cfg.Metrics.LimiterFunc("requests-of-block", a.wide.Refused)
	return a
}

// Allow takes one request from the address's allowance. When it is refused, wait says for how long.
func (a *Addresses) Allow(addr netip.Addr) (wait time.Duration, ok bool) {
	if a.free(addr) {
		return 0, true
	}
	now, key := time.Now(), rate.AddrKey(addr)
	if wait := a.barred.Peek(key, now); wait > 0 {
		return wait, false
	}
	if addr.Is6() {
		block, _ := addr.Prefix(56) // 56 is in range for every IPv6 address
		if wait, ok := a.wide.Take(block.String(), now); !ok {
			return wait, false
		}
	}
	return a.requests.Take(key, now)
}

// Fault counts a bad signature from the address: after ten within a minute it is refused for ten minutes.
func (a *Addresses) Fault(addr netip.Addr) {
	if a.free(addr) {
		return
	}
	now, key := time.Now(), rate.AddrKey(addr)
	a.faults.Take(key, now)
	if a.faults.Peek(key, now) > 0 {
		a.barred.Take(key, now)
	}
}

// free says whether no limit holds for the address. One without an address came over a socket of our own.
func (a *Addresses) free(addr netip.Addr) bool {
	return a == nil || a.faults == nil || !addr.IsValid() ||
		slices.ContainsFunc(a.exempt, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Check is Allow for the client of c, as a *[wire.Error]. Callers inside the process are free.
func (a *Addresses) Check(c echo.Context) error {
	if a == nil || a.faults == nil || internal(c.Request()) {
		return nil
	}
	if wait, ok := a.Allow(ClientAddr(c)); !ok {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// Payer is the key that what the client of c causes is charged to, "" for one that no limit holds for.
func (a *Addresses) Payer(c echo.Context) string {
	addr := ClientAddr(c)
	if a.free(addr) || internal(c.Request()) {
		return ""
	}
	return rate.AddrKey(addr)
}

// Guard checks every request of a route.
func (a *Addresses) Guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := a.Check(c); err != nil {
			return err
		}
		return next(c)
	}
}
