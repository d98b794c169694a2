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

// GuardError is a call that was not made because of where it would have gone (AM-79).
type GuardError struct {
	Host   string // as in the URL or, where the address was the reason, the address
	Reason string
}

func (e *GuardError) Error() string {
	return "call to " + wire.OneLine(e.Host, 100) + " refused: " + e.Reason
}

// guard decides where calls may go: over URLs before a name is resolved, and over addresses when a connection is
// made, so that a name which resolves to something else the second time gains nothing.
type guard struct {
	private []netip.Prefix
	public  *ssrf.Guardian
}

// Beyond what the library denies: the virtual address of Azure's host agent, a public one by its number.
var azureHost = netip.MustParsePrefix("168.63.129.16/32")

func newGuard(private []netip.Prefix) guard {
	g := guard{public: ssrf.New(ssrf.WithDeniedV4Prefixes(azureHost), ssrf.WithAnyPort())}
	for _, p := range private {
		g.private = append(g.private, p.Masked())
	}
	return g
}

type controlFunc = func(network, address string, c syscall.RawConn) error

// control returns what the dialer of a lane asks before each connection.
func (g guard) control(lane int) controlFunc {
	if lane == laneOwner {
		return nil
	}
	plain := lane == lanePublicPlain || lane == laneLoopbackPlain
	loopback := lane == laneLoopback || lane == laneLoopbackPlain
	return func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return &GuardError{address, "not a TCP address"}
		}
		if !portAllowed(to.Port(), plain) {
			return &GuardError{address, portReason}
		}
		if reason := g.addressFault(to.Addr(), plain, loopback); reason != "" {
			return &GuardError{to.Addr().String(), reason}
		}
		return nil
	}
}

// addressFault says why addr must not be called, "" where it may.
func (g guard) addressFault(addr netip.Addr, plain, loopback bool) string {
	switch {
	case addr.Is4In6() || addr.Zone() != "":
		return "not a plain address"
	case g.allows(addr), loopback && addr.IsLoopback():
		return ""
	case plain:
		return "http is for private addresses that the configuration allows"
	case g.public.SafeAddr(addr) != nil:
		return "not a public address"
	}
	return ""
}

// allows says whether the configuration lets cards name addr (AM-80).
func (g guard) allows(addr netip.Addr) bool {
	return slices.ContainsFunc(g.private, func(p netip.Prefix) bool { return p.Contains(addr) })
}

const portReason = "the port must be 443 or from 1024 up"

// portAllowed holds AM-79's ports. Plain http, which reaches allowed private addresses only, has its own default too.
func portAllowed(port uint16, plain bool) bool {
	return port == 443 || port >= 1024 || plain && port == 80
}

// checkURL refuses what needs no name lookup to be refused.
func (h *HTTP) checkURL(reach Reach, u *url.URL) error {
	refuse := func(reason string) error { return &GuardError{u.Host, reason} }
	host, plain := u.Hostname(), u.Scheme == "http"
	switch {
	case u.Scheme != "https" && !plain, u.Opaque != "":
		return refuse("only https URLs are called")
	case host == "":
		return refuse("the URL names no host")
	case reach == Owner:
		return nil
	case reach == Loopback && !h.cfg.Local:
		return refuse("loopback is reached in the local profile only")
	case u.User != nil:
		return refuse("a URL with user info is not called")
	case plain && reach == Public && len(h.guard.private) == 0:
		return refuse("only https URLs are called")
	case !hostASCII(host):
		return refuse("the host must be a plain ASCII name")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || !portAllowed(uint16(n), plain) {
			return refuse(portReason)
		}
	}
	addr, literal := literalHost(host)
	if literal && !h.guard.allows(addr) && (reach != Loopback || !addr.IsLoopback()) {
		return refuse("the host must be a name, not an address")
	}
	return nil
}

// AllowHTTP says which hosts a card of this reach may name by http or by address; see [wire.CardRules]. A name that
// passes here still meets the guard when it is dialled.
func (h *HTTP) AllowHTTP(reach Reach) func(host string) bool {
	return func(host string) bool {
		loopback := reach == Loopback && h.cfg.Local
		if addr, literal := literalHost(host); literal {
			return h.guard.allows(addr) || loopback && addr.IsLoopback()
		}
		return reach == Owner || len(h.guard.private) > 0 || loopback && isLocalhost(host)
	}
}

// literalHost says whether a host is an address or would be read as one by some resolver ("0x7f.1", "2130706433");
// of the latter kind addr is the zero Addr, which nothing allows.
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

// hostASCII matches the characters of host names and bracketless addresses.
func hostASCII(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_', c == ':':
		default:
			return false
		}
	}
	return true
}

func isLocalhost(host string) bool {
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// isLoopbackURL says whether the URL's host is this machine by its spelling.
func isLoopbackURL(u *url.URL) bool {
	addr, _ := literalHost(u.Hostname())
	return addr.IsLoopback() || isLocalhost(u.Hostname())
}
