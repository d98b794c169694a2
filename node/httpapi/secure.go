package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// What the listener does about plain HTTP when it ends TLS itself.

const headerStay = "Strict-Transport-Security"

// staySecure is for thirty days, so that who moves away from https waits a month at most, and for this name alone.
var staySecure = []string{"max-age=2592000"}

// staysSecure says whether browsers are told to come back by https alone. A browser applies that to every port of the
// name, so it is said only by the service at the port of the name itself.
func staysSecure(cfg Config) bool {
	u, err := url.Parse(cfg.PublicURL)
	return cfg.TLS != nil && err == nil && (u.Port() == "" || u.Port() == "443")
}

// ChallengePath is where an ACME authority asks over plain HTTP (RFC 8555 section 8.3).
const ChallengePath = "/.well-known/acme-challenge/"

// ServePlain answers plain HTTP beside a listener with TLS, until ctx ends: challenge, if not nil, what is below
// [ChallengePath], a redirect to the public URL everything else that only reads. What would change something is
// refused: who sends it has shown it to the network already and should know. No route of this server is reached.
func (s *Server) ServePlain(ctx context.Context, l net.Listener, challenge http.Handler) error {
	return serve(ctx, s.plain(challenge), capped(l, s.cfg, s.conns), nil, s.cfg.Logger)
}

func (s *Server) plain(challenge http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerNoSniff, "nosniff")
		if _, ok := s.addresses.Allow(s.clients.of(r)); !ok {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		if challenge != nil && strings.HasPrefix(r.URL.Path, ChallengePath) {
			challenge.ServeHTTP(w, r)
			return
		}
		s.redirect(w, r)
	})
}

// redirect sends a reader to the same path at the public URL. What Host says does not count.
func (s *Server) redirect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "use "+s.cfg.PublicURL, http.StatusBadRequest)
		return
	}
	u, err := url.Parse(s.cfg.PublicURL)
	if err != nil || !strings.HasPrefix(r.URL.Path, "/") {
		http.Error(w, "use "+s.cfg.PublicURL, http.StatusBadRequest)
		return
	}
	to := url.URL{Scheme: u.Scheme, Host: u.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	w.Header().Set("Connection", "close")
	http.Redirect(w, r, to.String(), http.StatusPermanentRedirect)
}

// behindProxy says whether somebody else ends TLS for this listener.
func behindProxy(cfg Config) bool {
	return !cfg.Local && cfg.TLS == nil && strings.HasPrefix(cfg.PublicURL, "https:")
}

// proxiedOnly refuses who comes around the reverse proxy, and so without TLS. The log says so once: it may be the proxy
// itself, which the configuration does not name.
func (s *Server) proxiedOnly(next http.Handler) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr := peerAddr(r.RemoteAddr)
		if !addr.IsValid() || addr.IsLoopback() || isIn(s.cfg.TrustedProxies, addr) {
			next.ServeHTTP(w, r)
			return
		}
		s.around.Inc()
		once.Do(func() {
			s.cfg.Logger.Warn("plain HTTP refused; where this is the reverse proxy, name it in network.trusted_proxies", "client", addr)
		})
		w.Header().Set(headerNoSniff, "nosniff")
		http.Error(w, "use "+s.cfg.PublicURL, http.StatusForbidden)
	})
}
