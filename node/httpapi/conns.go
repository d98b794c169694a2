package httpapi

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/agentmesh/agentmesh/acl/rate"
)

const (
	defaultMaxConns        = 10_000
	defaultMaxConnsPerAddr = 256
	networkShare           = 4 // one network may have 1/networkShare of all connections, or more; see limitConns
)

// limitConns bounds the connections of l: all of them, per address, and per network, so that one network cannot use
// up all connections (AM-76). A network may have a quarter of all connections. If the limit per address is higher than
// that, it is also the limit per network, up to half of all connections. A connection above a limit is closed at once.
// If it waited instead, an attacker's connections would fill the queue of the listening socket.
func limitConns(l net.Listener, cfg Config, counts *connCounts) *limitedListener {
	c := &limitedListener{
		Listener: l,
		counts:   counts,
		cfg:      cfg,
		max:      cmp.Or(cfg.MaxConns, defaultMaxConns),
		perAddr:  cmp.Or(cfg.MaxConnsPerAddr, defaultMaxConnsPerAddr),
		open:     make(map[netip.Prefix]int),
	}
	if cfg.Local {
		c.perAddr = -1
	}
	c.perNetwork = max(c.max/networkShare, min(c.perAddr, c.max/2), 1)
	return c
}

type limitedListener struct {
	net.Listener
	counts                   *connCounts
	cfg                      Config
	max, perAddr, perNetwork int // negative for no limit

	mu    sync.Mutex
	total int
	open  map[netip.Prefix]int // connections by address and by network
}

// source is the key by which a client's connections are counted. A zero source counts only toward the total.
type source struct {
	addr    netip.Prefix // IPv4 address, or /64 of IPv6
	network netip.Prefix // /24, or /48
}

// Accept returns the next connection that no limit refuses.
func (c *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := c.source(conn.RemoteAddr())
		if c.enter(from) {
			return &countedConn{Conn: conn, leave: sync.OnceFunc(func() { c.leave(from) })}, nil
		}
		conn.Close()
	}
}

func (c *limitedListener) source(remote net.Addr) source {
	return c.sourceOf(peerAddr(remote.String()))
}

// sourceOf returns the source of connections from an address. It is zero for an address that many clients may share:
// that of a proxy or of this machine, where a tunnel may end, or that of an unknown client.
func (c *limitedListener) sourceOf(addr netip.Addr) source {
	if c.perAddr < 0 || !addr.IsValid() || addr == rate.Unknown || addr.IsLoopback() || c.cfg.isProxy(addr) {
		return source{}
	}
	networks := rate.Networks(addr) // narrowest first; the last but one is the /24 or /48
	return source{networks[0], networks[len(networks)-2]}
}

// enter counts a connection. It returns false if a limit refuses the connection.
func (c *limitedListener) enter(from source) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	hasSource := from != source{}
	switch {
	case c.max >= 0 && c.total >= c.max:
		c.counts.refused.Inc()
		return false
	case hasSource && (c.open[from.addr] >= c.perAddr || c.max >= 0 && c.open[from.network] >= c.perNetwork):
		c.counts.refusedAddr.Inc()
		return false
	}
	c.total++
	c.counts.open.Add(1)
	if hasSource {
		c.open[from.addr]++
		c.open[from.network]++
	}
	return true
}

func (c *limitedListener) leave(from source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	c.counts.open.Add(-1)
	for _, key := range []netip.Prefix{from.addr, from.network} {
		if c.open[key]--; c.open[key] <= 0 {
			delete(c.open, key)
		}
	}
}

type connCounts struct {
	open                 atomic.Int64
	refused, refusedAddr *Counter // by the limit for all connections; by the limits per address and network
}

func newConnCounts(m *Metrics) *connCounts {
	c := &connCounts{refused: m.Limiter("connections"), refusedAddr: m.Limiter("connections-of-address")}
	m.Gauge("http_connections", "Open connections of the public listener.", func() float64 { return float64(c.open.Load()) })
	return c
}

// countedConn is an open connection in the counts of a limitedListener. Close removes it from the counts.
type countedConn struct {
	net.Conn
	leave  func()
	unread []byte // read from the connection, but not by the server yet
}

// Read reads from the connection.
func (c *countedConn) Read(b []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(b, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// awaitRequest waits for the first byte of a request, which stays unread.
func (c *countedConn) awaitRequest() error {
	if len(c.unread) > 0 {
		return nil
	}
	var first [1]byte
	n, err := c.Conn.Read(first[:])
	if n == 0 {
		return err
	}
	c.unread = []byte{first[0]}
	return nil
}

func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseWrite closes our side of the connection, if it supports that. A WebSocket calls it after its close frame.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the underlying connection, for callers that need the socket.
func (c *countedConn) NetConn() net.Conn { return c.Conn }
