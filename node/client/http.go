package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Reach is the trust in a URL, which decides where a call may go.
type Reach uint8

const (
	// Public is the reach of a URL from a card or a peer. All rules of AM-79 apply: only https, to a host with a name,
	// on port 443 or from 1024 up, at a public address, which is checked when the connection is made. Addresses in
	// [HTTPConfig.AllowPrivate] are allowed too; for them the URL may use http, and an IP address as its host (AM-80).
	Public Reach = iota
	// Loopback allows everything that Public allows, and http and https to the loopback addresses of this machine. It
	// is for cards from the owner or from a directory on loopback. Only the local profile allows it (AM-82).
	Loopback
	// Owner is the reach of a URL that the owner configured (a directory, a webhook). It may be anywhere.
	Owner
)

// StrangersReach returns the reach of a URL that a stranger named: Public, or Loopback in the local profile (AM-82).
func StrangersReach(local bool) Reach {
	if local {
		return Loopback
	}
	return Public
}

var reachNames = [...]string{"public", "loopback", "owner"}

func (r Reach) String() string { return reachNames[r] }

// reachOf returns the reach of the endpoint on a card. The card is trusted if the owner gave it, or if the directory
// that lists it is on this machine: in the local profile, its endpoint may be on loopback (AM-82).
func (h *HTTP) reachOf(isTrusted bool) Reach {
	if isTrusted && h.cfg.Local {
		return Loopback
	}
	return Public
}

// HTTPConfig configures outgoing calls. The zero value is the public profile with all guards.
type HTTPConfig struct {
	// Local selects the local profile (AM-82), the only one that allows [Loopback].
	Local bool
	// AllowPrivate lists address ranges that cards may name although they are not public (AM-80). There, an endpoint
	// may also use http, and an IP address as its host. Everybody who may register a card can make this process call
	// port 80, port 443 and any port from 1024 up in these ranges, so keep them small.
	AllowPrivate []netip.Prefix
	// Version is the version of the program, for the User-Agent.
	Version string
	// Logger gets one debug line per call. Nil discards the log.
	Logger *slog.Logger

	Connect time.Duration // bounds making a connection; 0 means 10 s
	Answer  time.Duration // bounds the time until the whole answer is read; 0 means 30 s

	RootCAs  *x509.CertPool // nil means the system's certificates
	Resolver *net.Resolver  // nil means the system's resolver
	// Dial makes the connections of a test that has no network. Nil means the network, with the checks of the guard.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultConnect = 10 * time.Second // AM-45
	defaultAnswer  = 30 * time.Second
	perHost        = 4        // concurrent calls to one host (AM-79)
	maxCalls       = 256      // concurrent calls to all hosts
	maxHeaders     = 32 << 10 // bytes of the header of an answer
)

// HTTP makes outgoing calls. It is safe for concurrent use.
type HTTP struct {
	cfg   HTTPConfig
	guard guard
	pools [5]*connPool // indexed by poolOf
	limit *limiter
}

// connPool is a transport with its own connections. Each reach has its own pools, so that no call uses a connection
// that its reach may not make.
type connPool struct {
	dialer    *net.Dialer
	transport *http.Transport
}

// NewHTTP returns a client. The caller must close it after the last call.
func NewHTTP(cfg HTTPConfig) *HTTP {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Connect <= 0 {
		cfg.Connect = defaultConnect
	}
	if cfg.Answer <= 0 {
		cfg.Answer = defaultAnswer
	}
	h := &HTTP{cfg: cfg, guard: newGuard(cfg.AllowPrivate), limit: newLimiter(maxCalls, perHost)}
	for i := range h.pools {
		h.pools[i] = newConnPool(cfg, h.guard.control(i))
	}
	return h
}

// The connection pools. A plain pool is for http, for which the guard allows fewer addresses (AM-80). poolOf depends
// on the order.
const (
	poolPublic = iota
	poolPublicPlain
	poolLoopback
	poolLoopbackPlain
	poolOwner
)

func poolOf(reach Reach, scheme string) int {
	switch {
	case reach == Owner:
		return poolOwner
	case scheme == "http":
		return 2*int(reach) + 1
	}
	return 2 * int(reach)
}

func newConnPool(cfg HTTPConfig, control controlFunc) *connPool {
	d := &net.Dialer{Timeout: cfg.Connect, Resolver: cfg.Resolver, Control: control}
	dial := cfg.Dial
	if dial == nil {
		dial = d.DialContext
	}
	return &connPool{dialer: d, transport: &http.Transport{
		Proxy:                  nil, // AM-79: no proxy variables
		DialContext:            dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:    cfg.Connect,
		DisableCompression:     true, // so that the size of an answer counts bytes on the wire
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second}, // finds dead connections
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}}
}

// Close closes the idle connections.
func (h *HTTP) Close() {
	for _, p := range h.pools {
		p.transport.CloseIdleConnections()
	}
}

// Do makes one call and follows no redirect. The caller must close the body of the response, for example with
// [ReadAll].
//
// If the guard refuses the call, the error wraps a *[GuardError] and no connection was made. For [Public] and
// [Loopback], the whole call, including the body, takes at most [HTTPConfig.Answer], and at most four calls go to one
// host at once. Before the call, Do may wait as long again for a free slot. For [Owner], the number of calls is not
// limited, and a deadline of ctx replaces [HTTPConfig.Answer].
func (h *HTTP) Do(ctx context.Context, reach Reach, req *http.Request) (*http.Response, error) {
	if err := h.CheckURL(reach, req.URL); err != nil {
		return nil, err
	}
	release := func() {}
	if reach != Owner {
		var err error
		if release, err = h.wait(ctx, reach, req); err != nil {
			return nil, err
		}
	}
	cancel := context.CancelFunc(func() {})
	if _, hasDeadline := ctx.Deadline(); reach != Owner || !hasDeadline {
		ctx, cancel = context.WithTimeout(ctx, h.cfg.Answer)
	}
	done := sync.OnceFunc(func() { cancel(); release() })

	req = req.Clone(ctx)
	req.Host = "" // call the host of the checked URL
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", strings.TrimSuffix("agentmesh/"+h.cfg.Version, "/"))
	}
	var reused atomic.Bool
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) }}))
	began, pool := time.Now(), h.pools[poolOf(reach, req.URL.Scheme)]
	resp, err := pool.transport.RoundTrip(req)
	if err != nil {
		if reused.Load() && !errors.Is(ctx.Err(), context.Canceled) {
			pool.transport.CloseIdleConnections() // what cut this connection may have cut the others
		}
		done()
		h.cfg.Logger.DebugContext(ctx, "outgoing call", "reach", reach, "host", req.URL.Host, "took", time.Since(began), "failed", true)
		return nil, fmt.Errorf("call %s: %w", req.URL.Host, err)
	}
	h.cfg.Logger.DebugContext(ctx, "outgoing call", "reach", reach, "host", req.URL.Host, "took", time.Since(began), "status", resp.StatusCode)
	resp.Body = &body{resp.Body, done}
	return resp, nil
}

// wait waits for a slot of the host, at most as long as an answer may take. The caller must call release.
func (h *HTTP) wait(ctx context.Context, reach Reach, req *http.Request) (release func(), err error) {
	// Upper case and a final dot do not make another host.
	host := strings.ToLower(strings.TrimSuffix(req.URL.Hostname(), "."))
	if reach == Loopback {
		host = req.URL.Host // each service on this machine counts as a host
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Answer)
	defer cancel()
	if release, err = h.limit.acquire(ctx, host); err != nil {
		return nil, &busyError{host, err}
	}
	return release, nil
}

// busyError means that no slot became free in time. Nothing was sent.
type busyError struct {
	host  string
	cause error
}

func (e *busyError) Error() string { return "too many calls to " + e.host + " at once" }
func (e *busyError) Unwrap() error { return e.cause }

// body is the body of a response. Closing it ends the call.
type body struct {
	io.ReadCloser
	done func()
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// Get makes a GET request for JSON and reads the whole answer, of at most limit bytes. header may be nil. The error is as
// that of [HTTP.Do] or [ReadAll]; the answer is nil if there is none.
func (h *HTTP) Get(ctx context.Context, reach Reach, target string, header http.Header, limit int) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(ctx, reach, req)
	if err != nil {
		return nil, nil, err
	}
	data, err := ReadAll(resp, limit)
	return resp, data, err
}

// MaxAnswer is the largest answer of a peer in bytes (AM-79).
const MaxAnswer = 256 << 10

// ErrAnswerTooLarge means that the answer has more bytes than the caller accepts.
var ErrAnswerTooLarge = errors.New("the answer is too large")

// ReadAll reads and closes the body of resp. If the body has more than limit bytes, the error is [ErrAnswerTooLarge].
func ReadAll(resp *http.Response, limit int) ([]byte, error) {
	defer resp.Body.Close()
	if resp.ContentLength > int64(limit) {
		return nil, ErrAnswerTooLarge
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > limit {
		return nil, ErrAnswerTooLarge
	}
	return data, nil
}
