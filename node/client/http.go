package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Reach says whose word a URL is, and so how far a call may go.
type Reach uint8

const (
	// Public: the URL came from a card or a peer. Everything of AM-79 holds: https to a named host on port 443 or
	// from 1024 up, at a public address that is checked when the connection is made. The ranges of
	// [HTTPConfig.AllowPrivate] are let in, there also by http and by address (AM-80).
	Public Reach = iota
	// Loopback is Public plus http and https to this machine's loopback addresses: for cards that the owner gave or
	// that a directory on loopback lists, in the local profile (AM-82). In the public profile it is refused.
	Loopback
	// Owner: the owner configured the URL (a directory, a webhook). It is trusted and may be anywhere.
	Owner
)

var reachNames = [...]string{"public", "loopback", "owner"}

func (r Reach) String() string { return reachNames[r] }

// HTTPConfig configures the calls that go out. The zero value is the public profile with every guard on.
type HTTPConfig struct {
	// Local is the local profile (AM-82). Only there is [Loopback] allowed.
	Local bool
	// AllowPrivate lists address ranges that cards may name although they are not public (AM-80). Within them http
	// and IP-literal hosts work too. Whoever may register a card can make this process call any port from 1024 up
	// there, so keep the ranges small.
	AllowPrivate []netip.Prefix
	// Version of the program, for the User-Agent.
	Version string
	// Logger gets one debug line per call. Nil discards.
	Logger *slog.Logger

	Connect time.Duration // until a connection stands: 10 s where zero
	Answer  time.Duration // until the whole answer is read: 30 s where zero

	RootCAs  *x509.CertPool // nil: the system's
	Resolver *net.Resolver  // nil: the system's
}

const (
	defaultConnect = 10 * time.Second // AM-45
	defaultAnswer  = 30 * time.Second
	perHost        = 4   // calls at once (AM-79)
	inAll          = 256 // calls at once, and so the bound on the hosts we keep count of
	maxHeaders     = 32 << 10
)

// HTTP makes outgoing calls. It is safe for concurrent use.
type HTTP struct {
	cfg   HTTPConfig
	guard guard
	lanes [5]*lane // by laneOf
	gates *gates
}

// lane is a transport with its own connections: a connection that one reach was allowed to make is never used by
// a call that was not.
type lane struct {
	dialer    *net.Dialer
	transport *http.Transport
}

// NewHTTP returns a client. Close it when no call is made any more.
func NewHTTP(cfg HTTPConfig) *HTTP {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Connect <= 0 {
		cfg.Connect = defaultConnect
	}
	if cfg.Answer <= 0 {
		cfg.Answer = defaultAnswer
	}
	h := &HTTP{cfg: cfg, guard: newGuard(cfg.AllowPrivate), gates: newGates(inAll, perHost)}
	for i := range h.lanes {
		h.lanes[i] = newLane(cfg, h.guard.control(i))
	}
	return h
}

// The lanes. A plain one carries http, whose guard lets in fewer addresses than that of https (AM-80).
const (
	lanePublic = iota
	lanePublicPlain
	laneLoopback
	laneLoopbackPlain
	laneOwner
)

func laneOf(reach Reach, scheme string) int {
	switch {
	case reach == Owner:
		return laneOwner
	case scheme == "http":
		return 2*int(reach) + 1
	}
	return 2 * int(reach)
}

func newLane(cfg HTTPConfig, control controlFunc) *lane {
	d := &net.Dialer{Timeout: cfg.Connect, Resolver: cfg.Resolver, Control: control}
	return &lane{dialer: d, transport: &http.Transport{
		Proxy:                  nil, // AM-79: no proxy variables
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:    cfg.Connect,
		DisableCompression:     true, // an answer is as large as its bytes on the wire
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}}
}

// Close drops the idle connections.
func (h *HTTP) Close() {
	for _, l := range h.lanes {
		l.transport.CloseIdleConnections()
	}
}

// Do makes one call and follows no redirect. The response's body must be closed; read it with [ReadAll].
//
// A call that the guard refuses is a *[GuardError]: no connection was made. For [Public] and [Loopback] the whole
// call including the body takes at most [HTTPConfig.Answer], and at most four calls go to one host at once. For
// [Owner] a deadline of ctx takes the place of that bound.
func (h *HTTP) Do(ctx context.Context, reach Reach, req *http.Request) (*http.Response, error) {
	if err := h.checkURL(reach, req.URL); err != nil {
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
	if _, own := ctx.Deadline(); reach != Owner || !own {
		ctx, cancel = context.WithTimeout(ctx, h.cfg.Answer)
	}
	done := sync.OnceFunc(func() { cancel(); release() })

	req = req.Clone(ctx)
	req.Host = ""
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", h.userAgent())
	}
	began := time.Now()
	resp, err := h.lanes[laneOf(reach, req.URL.Scheme)].transport.RoundTrip(req)
	if err != nil {
		done()
		h.cfg.Logger.DebugContext(ctx, "outgoing call", "reach", reach, "host", req.URL.Host, "took", time.Since(began), "failed", true)
		return nil, fmt.Errorf("call %s: %w", req.URL.Host, err)
	}
	h.cfg.Logger.DebugContext(ctx, "outgoing call", "reach", reach, "host", req.URL.Host, "took", time.Since(began), "status", resp.StatusCode)
	resp.Body = &body{resp.Body, done}
	return resp, nil
}

// wait takes one of the host's places, for as long as an answer may take.
func (h *HTTP) wait(ctx context.Context, reach Reach, req *http.Request) (release func(), err error) {
	host := req.URL.Hostname()
	if reach == Loopback {
		host = req.URL.Host // every service of this machine is a host of its own
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Answer)
	defer cancel()
	if release, err = h.gates.enter(ctx, host); err != nil {
		return nil, &busyError{host, err}
	}
	return release, nil
}

// busyError: no place was free in time. Nothing was sent.
type busyError struct {
	host  string
	cause error
}

func (e *busyError) Error() string { return "too many calls to " + e.host + " at once" }
func (e *busyError) Unwrap() error { return e.cause }

func (h *HTTP) userAgent() string {
	if h.cfg.Version == "" {
		return "agentmesh"
	}
	return "agentmesh/" + h.cfg.Version
}

// body ends its call when it is closed.
type body struct {
	io.ReadCloser
	done func()
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// MaxAnswer bounds the answer of a peer, in bytes (AM-79).
const MaxAnswer = 256 << 10

// ErrAnswerTooLarge: the answer has more bytes than the caller takes.
var ErrAnswerTooLarge = errors.New("the answer is too large")

// ReadAll reads and closes the body of resp. More than limit bytes is [ErrAnswerTooLarge].
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
