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

// clients determines the client of each request: the other end of the connection or, behind a trusted proxy, the
// address in X-Forwarded-For (AM-43). In the public profile, a connection from this machine comes from a proxy, a
// tunnel or a local program. So its own address identifies no client, and is never barred.
type clients struct {
	cfg Config

	mu      sync.Mutex
	unknown uint64    // requests of unknown clients
	last    time.Time // of the last such request
	warned  time.Time // when a warning about them was last logged
	probe   clientProbe
}

// clientProbe is a request whose client the owner wants to know.
type clientProbe struct {
	secret string
	until  time.Time
	client netip.Addr
	seen   bool
}

const (
	probeLifetime = time.Minute
	warnUnknown   = 24 * time.Hour // between two log lines
)

// ClientAddr returns the client's address. It is [rate.Unknown] if the request came through a proxy or tunnel that does
// not name its client. It is invalid for a Unix socket and for callers in this process.
func ClientAddr(c echo.Context) netip.Addr {
	addr, err := netip.ParseAddr(c.RealIP())
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// extract is the [echo.IPExtractor] of the public listener.
func (s *clients) extract(r *http.Request) string {
	addr := s.clientOf(r)
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

// clientOf determines the client that ClientAddr returns.
func (s *clients) clientOf(r *http.Request) netip.Addr {
	if from, ok := callerOf(r); ok { // from this process, or forwarded by another process of the service
		return from.client
	}
	peer := peerAddr(r.RemoteAddr)
	if s.cfg.Local || !s.cfg.isProxy(peer) && !peer.IsLoopback() {
		return peer
	}
	client := rate.Unknown
	if s.cfg.isProxy(peer) {
		client = s.cfg.forwardedClient(r.Header[headerForwarded])
	}
	if client == rate.Unknown && isIn(s.cfg.Exempt, peer) {
		return peer // so that the exemption applies
	}
	return client
}

func (cfg Config) isProxy(peer netip.Addr) bool {
	return cfg.ProxyHere && peer.IsLoopback() || isIn(cfg.TrustedProxies, peer)
}

func (cfg Config) hasProxy() bool { return cfg.ProxyHere || len(cfg.TrustedProxies) > 0 }

// forwardedClient returns the client that a proxy names: the last entry that is not a trusted proxy, or the first
// entry if all entries are trusted proxies. If that entry is not an address, or is loopback, the client is unknown.
func (cfg Config) forwardedClient(headers []string) netip.Addr {
	client := rate.Unknown
	for _, entry := range slices.Backward(strings.Split(strings.Join(headers, ","), ",")) {
		addr, ok := parseForwardedEntry(entry)
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

// ForwardedClient returns the client that the proxy in front of a loopback listener names in X-Forwarded-For, otherwise
// the other end of the connection. A local program can name any client.
func ForwardedClient(r *http.Request) netip.Addr {
	if client := (Config{}).forwardedClient(r.Header[headerForwarded]); client != rate.Unknown {
		return client
	}
	return peerAddr(r.RemoteAddr)
}

// parseForwardedEntry parses an entry of X-Forwarded-For, which some proxies write with a port.
func parseForwardedEntry(entry string) (netip.Addr, bool) {
	entry = strings.TrimSpace(entry)
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(entry, "["), "]"))
	if err != nil {
		port, err := netip.ParseAddrPort(entry)
		return port.Addr().Unmap().WithZone(""), err == nil
	}
	return addr.Unmap().WithZone(""), true
}

// peerAddr returns the address of the other end of a connection; invalid for a connection without an address.
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

// noteUnknown counts a request of an unknown client. It logs a warning about such requests at most once a day.
func (s *clients) noteUnknown(r *http.Request, log *slog.Logger) {
	if s.clientOf(r) != rate.Unknown {
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
	hint := "if a reverse proxy on this machine sets X-Forwarded-For, add it to network.trusted_proxies"
	if s.cfg.hasProxy() {
		hint = "configure the reverse proxy to set X-Forwarded-For; behind a TCP tunnel, set network.trusted_proxies: none"
	}
	log.Warn("the clients of some requests are unknown and share one allowance", "proxy", r.RemoteAddr, "hint", hint)
}

// ClientStatus shows the owner whether the process can distinguish its clients.
type ClientStatus struct {
	// Proxy is true if the X-Forwarded-For of some proxy is trusted.
	Proxy bool `json:"proxy"`
	// Unknown counts requests of unknown clients since the process started. They share one allowance.
	Unknown uint64 `json:"unknown"`
	// LastUnknown is the time of the last such request.
	LastUnknown time.Time `json:"last_unknown,omitzero"`
}

// Clients returns the status of the clients of this process, or nil in the local profile.
func (s *Server) Clients() *ClientStatus {
	if s.cfg.Local {
		return nil
	}
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	return &ClientStatus{s.cfg.hasProxy(), s.clients.unknown, s.clients.last}
}

// ExpectProbe returns a new secret. [Server.ProbeClient] returns the client of the next GET /health?probe=SECRET. Only
// the newest secret is valid, for a minute.
func (s *Server) ExpectProbe() string {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	s.clients.probe = clientProbe{secret: rand.Text(), until: time.Now().Add(probeLifetime)}
	return s.clients.probe.secret
}

// ProbeClient returns the client of the request with the secret, if that request has arrived.
func (s *Server) ProbeClient(secret string) (client netip.Addr, seen bool) {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	p := s.clients.probe
	return p.client, p.seen && p.matches(secret)
}

func (p clientProbe) matches(secret string) bool {
	return p.secret != "" && subtle.ConstantTimeCompare([]byte(p.secret), []byte(secret)) == 1 && time.Now().Before(p.until)
}

// recordProbe records the client of a request with the secret. The response does not depend on the secret.
func (s *clients) recordProbe(c echo.Context) {
	secret := c.QueryParam("probe")
	if secret == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probe.matches(secret) {
		s.probe.client, s.probe.seen = ClientAddr(c), true
	}
}
