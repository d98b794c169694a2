package httpapi

import (
	"bufio"
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	headerForwardKey    = "Agentmesh-Forward-Key"     // proves that a process of the same service sent the request
	headerForwardClient = "Agentmesh-Forward-Client"  // the client according to the first process; empty if it has no address
	headerNotForwarded  = "Agentmesh-Forward-Refused" // in a response: the process has another key
)

var errForwardRefused = errors.New("the other process does not accept forwarded requests with this key")

// Forwarder forwards requests to another process of the same service. It is safe for concurrent use.
type Forwarder struct{ transport *http.Transport }

// NewForwarder returns a forwarder.
func NewForwarder() *Forwarder {
	const dialTimeout, answerTimeout, keepIdle = 2 * time.Second, 2 * time.Minute, 64
	return &Forwarder{&http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, ResponseHeaderTimeout: answerTimeout,
		MaxIdleConnsPerHost: keepIdle, IdleConnTimeout: idleTimeout, DisableCompression: true,
	}}
}

// Forward sends the request of c to the process at base, and the response back, until ctx ends. A WebSocket passes in
// both directions. The process at base must serve with [Server.ServeForwarded] and the same key, and applies its
// limits to the client. An error means that the client has no response yet.
func (f *Forwarder) Forward(ctx context.Context, c echo.Context, base *url.URL, key string) (err error) {
	client, w := ClientAddr(c), &forwardWriter{Response: c.Response()}
	if err := w.control().SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) { // the other process sets deadlines
		return err
	}
	proxy := &httputil.ReverseProxy{
		Transport: f.transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = r.In.Host
			r.Out.Header.Set(headerForwardKey, key)
			r.Out.Header.Set(headerForwardClient, "")
			if client.IsValid() {
				r.Out.Header.Set(headerForwardClient, client.String())
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Header.Get(headerNotForwarded) != "" {
				return errForwardRefused
			}
			for name := range r.Header {
				w.Header().Del(name) // the other process sets its own
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, e error) { err = e },
	}
	proxy.ServeHTTP(w, c.Request().WithContext(ctx))
	if w.Committed || w.upgraded {
		return nil
	}
	return err
}

// forwardWriter applies the write time-out to each part of the response, so that a whole response may take longer.
type forwardWriter struct {
	*echo.Response
	upgraded bool
}

func (w *forwardWriter) control() *http.ResponseController {
	return http.NewResponseController(w.Response)
}

// Hijack implements [http.Hijacker], for a WebSocket.
func (w *forwardWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.control().Hijack()
	if err == nil {
		w.upgraded, w.Status = true, http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// WriteHeader implements [http.ResponseWriter]. It drops interim responses of the other process, because this process
// sends "100 Continue" itself.
func (w *forwardWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.Response.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (w *forwardWriter) Write(p []byte) (int, error) {
	if err := w.control().SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return w.Response.Write(p)
}

// caller is the origin of a request that did not come directly over the public listener.
type caller struct {
	client    netip.Addr // invalid for a caller in this process
	forwarded bool       // another process of the service forwarded the request
}

type callerKey struct{}

func withCaller(r *http.Request, from caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, from))
}

// callerOf returns the origin of a request. ok is false if the request came directly over the public listener.
func callerOf(r *http.Request) (from caller, ok bool) {
	from, ok = r.Context().Value(callerKey{}).(caller)
	return from, ok
}

// hasCaller reports whether the request came from this process, or was forwarded by another one. Its host and origin
// then need no check.
func hasCaller(r *http.Request) bool {
	_, ok := callerOf(r)
	return ok
}

// IsForwarded reports whether another process of the service forwarded the request.
func IsForwarded(c echo.Context) bool {
	from, _ := callerOf(c.Request())
	return from.forwarded
}

// ServeForwarded is [Server.Serve] for requests that other processes of the service forward over plain HTTP. It
// refuses a request without the key. The forwarding process has checked host and origin, and names the client. A client
// may have connections to several forwarding processes, so this process applies the limits for connections to the
// forwarded requests of each client (AM-76).
func (s *Server) ServeForwarded(ctx context.Context, l net.Listener, key string) error {
	// clients has no listener. It counts each forwarded request as a connection of the client.
	clients := limitConns(nil, s.cfg, &connCounts{refused: s.conns.refused, refusedAddr: s.conns.refusedAddr})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(headerForwardKey)), []byte(key)) != 1 {
			w.Header().Set(headerNotForwarded, "true")
			w.WriteHeader(http.StatusForbidden)
			return
		}
		client, _ := netip.ParseAddr(r.Header.Get(headerForwardClient)) // invalid for a client without an address
		r.Header.Del(headerForwardKey)
		r.Header.Del(headerForwardClient)
		from := clients.sourceOf(client)
		if !clients.enter(from) {
			s.echo.HTTPErrorHandler(wire.ErrRateLimited.After(time.Second), s.echo.NewContext(r, w))
			return
		}
		defer clients.leave(from)
		s.echo.ServeHTTP(w, withCaller(r, caller{client: client, forwarded: true}))
	})
	cfg := s.cfg
	cfg.MaxConnsPerAddr = -1 // an address here is that of a process, which forwards for many clients
	return Serve(ctx, h, limitConns(l, cfg, s.conns), nil, s.cfg.Logger)
}
