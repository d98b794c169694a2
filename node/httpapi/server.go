package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
)

// Config configures the public listener. The zero value is the public profile with every limit on.
type Config struct {
	// Local selects the local profile (AM-82): loopback hosts only, no limits per address.
	Local bool
	// PublicURL is where others reach this server; "" in the local profile.
	PublicURL string
	// TLS terminates TLS on this listener; nil means plain HTTP. If PublicURL has the default port of https, a header
	// makes browsers use https only.
	TLS *tls.Config
	// TrustedProxies are proxies whose X-Forwarded-For names the client.
	TrustedProxies []netip.Prefix
	// ProxyHere treats every connection from this machine as one of the reverse proxy (AM-43). Only such a
	// connection and those of TrustedProxies may name a client in X-Forwarded-For.
	ProxyHere bool
	// CORSOrigins ("https://app.example.com") may call every route from a browser.
	CORSOrigins []string
	// RequestsPerMinute bounds the requests of each address (AM-43): 0 is 120; a negative value means no limit.
	RequestsPerMinute int
	// Exempt addresses have no limits on requests or faults (AM-44).
	Exempt []netip.Prefix
	// MaxConns bounds all connections of one listener together: 0 is 10,000; a negative value means no limit.
	MaxConns int
	// MaxConnsPerAddr bounds the connections of one address, except those of trusted proxies: 0 is 256; a negative
	// value means no limit. The local profile ignores it.
	MaxConnsPerAddr int
	// Version is shown by /health.
	Version string
	// Logger gets one line per request; nil discards them.
	Logger *slog.Logger
	// Metrics count requests, connections and refusals by limits; may be nil. The public listener does not serve
	// them.
	Metrics *Metrics
}

// Limits of every listener (AM-76).
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 15 * time.Second
	writeTimeout  = 60 * time.Second
	idleTimeout   = 60 * time.Second
	maxHeader     = 16 << 10        // bytes
	maxStreams    = 100             // of one HTTP/2 connection
	stopTimeout   = 4 * time.Second // for a whole stop, because supervisors and users wait at most five seconds
	stopGrace     = 2 * time.Second // until the contexts of requests are canceled
)

// Server is the public listener. Mount routes before the first request.
type Server struct {
	cfg       Config
	echo      *echo.Echo
	addresses *Addresses
	clients   *clients
	conns     *connCounts
	bypass    *Counter // requests that bypassed the reverse proxy
	health    health
}

// New returns a server with the routes that every service has: /health, /readyz, /.well-known/agentmesh.json and
// /openapi.yaml.
func New(cfg Config) *Server {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		cfg: cfg, addresses: newAddresses(cfg), clients: &clients{cfg: cfg}, conns: newConnCounts(cfg.Metrics),
		bypass: cfg.Metrics.Limiter("plain-http"),
	}
	s.echo = newEcho(publicGate(cfg, s.clients), s.clients.extract)
	s.health.version = cfg.Version
	s.health.mount(s.echo, s.clients)
	s.echo.Match([]string{http.MethodGet, http.MethodHead}, "/openapi.yaml", serveOpenAPI, AnyOrigin)
	return s
}

func newEcho(g *gate, extract echo.IPExtractor) *echo.Echo {
	e := echo.New()
	e.IPExtractor = extract
	e.HTTPErrorHandler = respondError
	e.Pre(g.wrap)
	return e
}

// Echo returns the router on which services mount their routes.
func (s *Server) Echo() *echo.Echo { return s.echo }

// Addresses returns the limits per client address.
func (s *Server) Addresses() *Addresses { return s.addresses }

// Handler serves every mounted route.
func (s *Server) Handler() http.Handler { return s.echo }

// Internal returns a handler with the same routes for callers in this process. It skips the checks of host and origin,
// and the limits per address.
func (s *Server) Internal() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.echo.ServeHTTP(w, withCaller(r, caller{}))
	})
}

// Serve answers connections of l until ctx ends. Then it stops accepting and waits for requests in flight. After two
// seconds it cancels their contexts, which ends long polls. After four seconds it closes their connections, because a
// client may stall in the middle of a body. Serve then returns nil.
//
// If PublicURL is https and TLS is nil, it answers only the reverse proxy: loopback and TrustedProxies.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := s.Handler()
	if isBehindProxy(s.cfg) {
		h = s.requireProxy(h)
	}
	return Serve(ctx, h, limitConns(l, s.cfg, s.conns), s.cfg.TLS, s.cfg.Logger)
}

// Serve answers connections of l with h, over TLS if secure is not nil, and stops like [Server.Serve].
func Serve(ctx context.Context, h http.Handler, l net.Listener, secure *tls.Config, log *slog.Logger) error {
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	park := newParking(requests, l.Addr(), log)
	defer park.waiting.Wait()
	defer cancelRequests()
	srv := &http.Server{
		Handler:           h,
		TLSConfig:         secure,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan error, 1)
	unhook := context.AfterFunc(ctx, func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		defer time.AfterFunc(stopGrace, cancelRequests).Stop()
		err := srv.Shutdown(stopCtx)
		if err != nil {
			srv.Close()
		}
		stopped <- err
	})
	if _, ok := l.(*limitedListener); ok && secure == nil { // Park can take over connections of this type
		srv.BaseContext = func(net.Listener) context.Context { return context.WithValue(requests, parkingKey{}, park) }
		go srv.Serve(park) // returns when srv stops
	}
	run := srv.Serve
	if secure != nil {
		run = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	err := run(l)
	if unhook() { // ctx has not ended, so the listener failed
		srv.Close()
		return err
	}
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
