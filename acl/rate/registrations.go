package rate

import (
	"net/netip"
	"time"
)

const maxRegistrants = 1 << 16 // addresses whose registrations are counted

// Registrations limit the registrations of one address per hour, and of all addresses together. A refused registration
// costs nothing (AM-43). Registrations are safe for concurrent use. A nil *Registrations is a limit that is switched
// off.
type Registrations struct {
	each   *Allowance
	shared *Pool
}

// NewRegistrations returns limits of perHour registrations for each address; all addresses together draw from shared,
// which may be nil. NewRegistrations returns nil if perHour is not positive.
func NewRegistrations(perHour int, shared *Pool) *Registrations {
	if perHour <= 0 {
		return nil
	}
	return &Registrations{NewAllowance(PerHour(perHour), perHour, maxRegistrants), shared}
}

// Take charges a registration to the address, or returns how long the address must wait. byShared reports whether the
// limit for all addresses together caused the wait.
func (r *Registrations) Take(addr netip.Addr, now time.Time) (wait time.Duration, byShared bool) {
	if r == nil {
		return 0, false
	}
	if wait, ok := r.each.Take(addr, now); !ok {
		return wait, false
	}
	wait, ok := r.shared.Take(AddrSources(addr), "", now)
	if !ok {
		r.each.Return(addr, now)
	}
	return wait, !ok
}

// Return gives back a registration that the address took.
func (r *Registrations) Return(addr netip.Addr, now time.Time) {
	if r == nil {
		return
	}
	r.each.Return(addr, now)
	r.shared.Return(AddrSources(addr), "", now)
}

// Refusals returns how often an address had to wait because of its own registrations.
func (r *Registrations) Refusals() uint64 {
	if r == nil {
		return 0
	}
	return r.each.Refusals()
}
