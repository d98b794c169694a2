package client

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"code.dny.dev/ssrf"

	"github.com/agentmesh/agentmesh/node/wire"
)

// GuardError is a call that was not made because its target is not allowed (AM-79).
type GuardError struct {
	Host   string // as in the URL, or the address if that was refused
	Reason string
}

func (e *GuardError) Error() string {
	return "call to " + wire.OneLine(e.Host, 100) + " refused: " + e.Reason
}

// guard decides which targets may be called. It checks the URL before the name is resolved, and the address when the
// connection is made, so that a name that then resolves to another address does not get around the guard.
type guard struct {
	private []netip.Prefix // ranges that cards may name although they are not public (AM-80)
}

// azureHost is the virtual address of Azure's host agent. It is in a public range, so package ssrf does not deny it.
var azureHost = netip.MustParsePrefix("168.63.129.16/32")

var public = ssrf.New(ssrf.WithDeniedV4Prefixes(azureHost))

// IsPublic reports whether peers on the internet may call an address. The registries of RFC 6890 list the addresses
// that they may not call, such as private ones.
func IsPublic(addr netip.Addr) bool { return public.SafeAddr(addr.Unmap()) == nil }

func newGuard(private []netip.Prefix) guard {
	var g guard
	for _, p := range private {
		g.private = append(g.private, p.Masked())
	}
	return g
}

type controlFunc = func(network, address string, c syscall.RawConn) error

// control returns a function that checks the address of each connection of a pool. It is nil for poolOwner.
func (g guard) control(pool int) controlFunc {
	if pool == poolOwner {
		return nil
	}
	plain := pool == poolPublicPlain || pool == poolLoopbackPlain
	loopback := pool == poolLoopback || pool == poolLoopbackPlain
	return func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return &GuardError{address, "not a TCP address"}
		}
		if !isPortAllowed(to.Port(), plain) {
			return &GuardError{address, portReason}
		}
		if reason := g.addressFault(to.Addr(), plain, loopback); reason != "" {
			return &GuardError{to.Addr().String(), reason}
		}
		return nil
	}
}

// addressFault returns why a connection to addr is not allowed, or "". plain is set for http, and loopback for the
// reach [Loopback].
func (g guard) addressFault(addr netip.Addr, plain, loopback bool) string {
	switch {
	case addr.Is4In6() || addr.Zone() != "":
		return "an IPv4-mapped address, or an address with a zone"
	case g.allows(addr), loopback && addr.IsLoopback():
		return ""
	case plain:
		return "plain http is only for private addresses that the configuration allows"
	case !IsPublic(addr):
		return "not a public address"
	}
	return ""
}

// allows reports whether the configuration allows cards to name addr (AM-80).
func (g guard) allows(addr netip.Addr) bool {
	return slices.ContainsFunc(g.private, func(p netip.Prefix) bool { return p.Contains(addr) })
}

const portReason = "the port must be 443 or from 1024 up"

// isPortAllowed reports whether AM-79 allows the port. Port 80 is allowed for plain http, which never goes to a
// public address.
func isPortAllowed(port uint16, plain bool) bool {
	return port == 443 || port >= 1024 || plain && port == 80
}

// CheckURL makes the checks of the guard before the name in the URL is resolved. When a call is made, the guard also
// checks the address. The error is a *[GuardError].
func (h *HTTP) CheckURL(reach Reach, u *url.URL) error {
	refuse := func(reason string) error { return &GuardError{u.Host, reason} }
	host, plain := u.Hostname(), u.Scheme == "http"
	switch {
	case u.Scheme != "https" && !plain, u.Opaque != "":
		return refuse("the URL must be https")
	case host == "":
		return refuse("the URL has no host")
	case reach == Owner:
		return nil
	case reach == Loopback && !h.cfg.Local:
		return refuse("loopback is allowed only in the local profile")
	case u.User != nil:
		return refuse("the URL must not have user info")
	case plain && reach == Public && len(h.guard.private) == 0: // http is only for private addresses
		return refuse("the URL must be https")
	case !isASCIIHost(host):
		return refuse("the host must be a plain ASCII name")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || !isPortAllowed(uint16(n), plain) {
			return refuse(portReason)
		}
	}
	addr, literal := literalHost(host)
	if literal && !h.guard.allows(addr) && (reach != Loopback || !addr.IsLoopback()) {
		return refuse("the host must be a name, not an address")
	}
	return nil
}

// AllowHTTP returns a function that reports whether the endpoint on a card of this reach may use http, and an IP
// address as its host; see [wire.CardRules]. The guard still checks the address when the connection is made.
func (h *HTTP) AllowHTTP(reach Reach) func(host string) bool {
	return func(host string) bool {
		loopback := reach == Loopback && h.cfg.Local
		if addr, literal := literalHost(host); literal {
			return h.guard.allows(addr) || loopback && addr.IsLoopback()
		}
		return reach == Owner || len(h.guard.private) > 0 || loopback && isLocalhost(host)
	}
}

// literalHost reports whether a host is an IP address, or a text that some resolvers read as one ("0x7f.1",
// "2130706433"). For such a text addr is the zero Addr, which no rule allows.
func literalHost(host string) (addr netip.Addr, literal bool) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, true
	}
	host = strings.ToLower(strings.TrimRight(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return addr, strings.Trim(hex, "0123456789abcdef") == ""
	}
	return addr, strings.Trim(last, "0123456789") == "" || strings.Contains(host, ":")
}

// isASCIIHost reports whether host has only the characters of host names and of addresses without brackets.
func isASCIIHost(host string) bool {
	return strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:") == ""
}

func isLocalhost(host string) bool {
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// IsLoopbackURL reports whether the host in the URL is a loopback address or localhost.
func IsLoopbackURL(u *url.URL) bool {
	addr, _ := literalHost(u.Hostname())
	return addr.IsLoopback() || isLocalhost(u.Hostname())
}
