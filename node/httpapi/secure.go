package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// This file handles plain HTTP if the listener, or a reverse proxy in front of it, terminates TLS.

const headerStrictTransport = "Strict-Transport-Security"

// strictTransport lasts thirty days: an operator who gives up https waits a month at most. It covers only this host.
var strictTransport = []string{"max-age=2592000"}

// usesStrictTransport reports whether browsers get the header that makes them use https only. They apply it to every
// port of the host name, so only the service at the default port sends it.
func usesStrictTransport(cfg Config) bool {
	u, err := url.Parse(cfg.PublicURL)
	return cfg.TLS != nil && err == nil && (u.Port() == "" || u.Port() == "443")
}

// ChallengePath is where an ACME authority sends its requests over plain HTTP (RFC 8555 section 8.3).
const ChallengePath = "/.well-known/acme-challenge/"

// ServePlain answers plain HTTP beside a listener with TLS, until ctx ends. challenge, if not nil, gets requests
// below [ChallengePath]. Other reads are redirected to the public URL. All other requests are refused, so that
// senders notice that they sent something over the network unencrypted. No route of this server is reachable.
func (s *Server) ServePlain(ctx context.Context, l net.Listener, challenge http.Handler) error {
	return Serve(ctx, s.plain(challenge), limitConns(l, s.cfg, s.conns), nil, s.cfg.Logger)
}

func (s *Server) plain(challenge http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerNoSniff, "nosniff")
		if _, ok := s.addresses.Allow(s.clients.clientOf(r)); !ok {
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
	target := url.URL{Scheme: u.Scheme, Host: u.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	w.Header().Set("Connection", "close")
	http.Redirect(w, r, target.String(), http.StatusPermanentRedirect)
}

// isBehindProxy reports whether a reverse proxy terminates TLS for this listener.
func isBehindProxy(cfg Config) bool {
	return !cfg.Local && cfg.TLS == nil && strings.HasPrefix(cfg.PublicURL, "https:")
}

// requireProxy refuses requests that bypass the reverse proxy and therefore TLS. It logs the first refusal, because the
// sender may be a proxy that the configuration does not name.
func (s *Server) requireProxy(next http.Handler) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr := peerAddr(r.RemoteAddr)
		if !addr.IsValid() || addr.IsLoopback() || isIn(s.cfg.TrustedProxies, addr) {
			next.ServeHTTP(w, r)
			return
		}
		s.bypass.Inc()
		once.Do(func() {
			s.cfg.Logger.Warn("plain HTTP refused; if this client is the reverse proxy, add it to network.trusted_proxies", "client", addr)
		})
		w.Header().Set(headerNoSniff, "nosniff")
		http.Error(w, "use "+s.cfg.PublicURL, http.StatusForbidden)
	})
}
