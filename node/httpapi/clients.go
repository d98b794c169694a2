package httpapi

import (
	"crypto/rand"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
)

const headerForwarded = "X-Forwarded-For"

// clients names the client of each request: the other end of the connection or, behind a proxy that is believed, the
// address in X-Forwarded-For (AM-43). In the public profile a connection from this machine comes from a proxy, from a
// tunnel, or from a local program. Its own address therefore tells no clients apart, and bars nobody.
type clients struct {
	cfg Config

	mu      sync.Mutex
	unknown uint64    // requests of clients that nothing names
	last    time.Time // of them
	warned  time.Time
	probe   clientProbe
}

// clientProbe is one request whose client the owner wants to know.
type clientProbe struct {
	secret string
	until  time.Time
	client netip.Addr
	seen   bool
}

const (
	probeLife   = time.Minute
	warnUnknown = 24 * time.Hour // between two lines of the log
)

// ClientAddr returns the client's address: [rate.Unknown] if it came through a proxy or tunnel that does not name it. It
// is not valid for a connection without an address (a Unix socket) and for callers inside the process.
func ClientAddr(c echo.Context) netip.Addr {
	addr, err := netip.ParseAddr(c.RealIP())
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// extract is the [echo.IPExtractor] of the listener.
func (s *clients) extract(r *http.Request) string {
	addr := s.of(r)
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

func (s *clients) of(r *http.Request) netip.Addr {
	peer := peerAddr(r.RemoteAddr)
	switch {
	case internal(r):
		return netip.Addr{}
	case s.cfg.Local || !s.cfg.isProxy(peer) && !peer.IsLoopback():
		return peer
	}
	client := rate.Unknown
	if s.cfg.isProxy(peer) {
		client = s.cfg.forwarded(r.Header[headerForwarded])
	}
	if client == rate.Unknown && isIn(s.cfg.Exempt, peer) {
		return peer
	}
	return client
}

// isProxy reports whether the X-Forwarded-For of a peer is believed.
func (cfg Config) isProxy(peer netip.Addr) bool {
	return cfg.ProxyHere && peer.IsLoopback() || isIn(cfg.TrustedProxies, peer)
}

// hasProxy reports whether the X-Forwarded-For of anybody is believed.
func (cfg Config) hasProxy() bool { return cfg.ProxyHere || len(cfg.TrustedProxies) > 0 }

// forwarded returns the client that a proxy names: the last entry that is not one of the listed proxies. An entry that is
// no address, or one of this machine, names nobody.
func (cfg Config) forwarded(headers []string) netip.Addr {
	client := rate.Unknown
	for _, entry := range slices.Backward(strings.Split(strings.Join(headers, ","), ",")) {
		addr, ok := parseForwarded(entry)
		if !ok {
			return rate.Unknown
		}
		client = addr
		if !isIn(cfg.TrustedProxies, addr) {
			break
		}
	}
	if client.IsLoopback() {
		return rate.Unknown
	}
	return client
}

// parseForwarded reads an entry of X-Forwarded-For, which some proxies write with a port.
func parseForwarded(entry string) (netip.Addr, bool) {
	entry = strings.TrimSpace(entry)
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(entry, "["), "]"))
	if err != nil {
		port, err := netip.ParseAddrPort(entry)
		return port.Addr().Unmap().WithZone(""), err == nil
	}
	return addr.Unmap().WithZone(""), true
}

// peerAddr returns the address of the other end of a connection, not valid if it has none.
func peerAddr(remote string) netip.Addr {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return from.Addr().Unmap().WithZone("")
}

func isIn(list []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// note counts a request whose client is unknown. The log says so at the first one, and then once a day.
func (s *clients) note(r *http.Request, log *slog.Logger) {
	if s.of(r) != rate.Unknown {
		return
	}
	now := time.Now()
	s.mu.Lock()
	s.unknown++
	s.last = now
	warn := s.warned.IsZero() || now.Sub(s.warned) >= warnUnknown
	if warn {
		s.warned = now
	}
	s.mu.Unlock()
	if !warn {
		return
	}
	hint := "if a reverse proxy on this machine sets X-Forwarded-For, name it in network.trusted_proxies"
	if s.cfg.hasProxy() {
		hint = "let the reverse proxy set X-Forwarded-For; behind a TCP tunnel, set network.trusted_proxies: none"
	}
	log.Warn("requests do not say who their client is, and share one allowance", "proxy", r.RemoteAddr, "hint", hint)
}

// ClientStatus tells the owner whether the clients of a process are told apart.
type ClientStatus struct {
	// Proxy is whether the X-Forwarded-For of some proxy is believed.
	Proxy bool `json:"proxy"`
	// Unknown counts requests, since the process started, of clients that share one allowance because nothing names them.
	Unknown uint64 `json:"unknown"`
	// LastUnknown is the time of the last one.
	LastUnknown time.Time `json:"last_unknown,omitzero"`
}

// Clients returns whether clients are told apart, nil in the local profile.
func (s *Server) Clients() *ClientStatus {
	if s.cfg.Local {
		return nil
	}
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	return &ClientStatus{s.cfg.hasProxy(), s.clients.unknown, s.clients.last}
}

// ExpectProbe returns a secret. After a GET of /health?probe=SECRET by anyone, [Server.Probed] returns the client of that
// request. Only the last secret counts, for a minute.
func (s *Server) ExpectProbe() string {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	s.clients.probe = clientProbe{secret: rand.Text(), until: time.Now().Add(probeLife)}
	return s.clients.probe.secret
}

// Probed returns the client of the request with the secret, and whether that request has come.
func (s *Server) Probed(secret string) (client netip.Addr, seen bool) {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	p := s.clients.probe
	return p.client, p.seen && p.is(secret)
}

func (p clientProbe) is(secret string) bool {
	return p.secret != "" && subtle.ConstantTimeCompare([]byte(p.secret), []byte(secret)) == 1 && time.Now().Before(p.until)
}

// probed keeps the client of a request with the secret that the owner's command waits for. The answer does not differ.
func (s *clients) probed(c echo.Context) {
	secret := c.QueryParam("probe")
	if secret == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probe.is(secret) {
		s.probe.client, s.probe.seen = ClientAddr(c), true
	}
}
