package httpapi

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	defaultMaxConns        = 10_000
	defaultMaxConnsPerAddr = 256
)

// capped bounds the connections of l, in all and per address (AM-76). One too many is closed at once: waiting
// would fill the backlog with an attacker's connections.
func capped(l net.Listener, cfg Config, counts *connCounts) net.Listener {
	c := &conns{
		Listener: l,
		counts:   counts,
		max:      cmp.Or(cfg.MaxConns, defaultMaxConns),
		perAddr:  cmp.Or(cfg.MaxConnsPerAddr, defaultMaxConnsPerAddr),
		trusted:  cfg.TrustedProxies,
		open:     make(map[netip.Prefix]int),
	}
	if cfg.Local {
		c.perAddr = -1
	}
	return c
}

type conns struct {
	net.Listener
	counts       *connCounts
	max, perAddr int // negative: no limit
	trusted      []netip.Prefix

	mu    sync.Mutex
	total int
	open  map[netip.Prefix]int // by IPv4 address or IPv6 /64; as many keys as connections at most
}

func (c *conns) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := c.key(conn.RemoteAddr())
		if c.enter(key) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { c.leave(key) })}, nil
		}
		conn.Close()
	}
}

// key is what connections are counted by; not valid for those that are not counted per address.
func (c *conns) key(remote net.Addr) netip.Prefix {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok || c.perAddr < 0 {
		return netip.Prefix{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if slices.ContainsFunc(c.trusted, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return netip.Prefix{}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // cannot fail: bits fits the address
	return p
}

func (c *conns) enter(key netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.max >= 0 && c.total >= c.max:
		c.counts.refused.Inc()
		return false
	case key.IsValid() && c.open[key] >= c.perAddr:
		c.counts.refusedAddr.Inc()
		return false
	}
	c.total++
	c.counts.open.Add(1)
	if key.IsValid() {
		c.open[key]++
	}
	return true
}

func (c *conns) leave(key netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	c.counts.open.Add(-1)
	if !key.IsValid() {
		return
	}
	if c.open[key]--; c.open[key] == 0 {
		delete(c.open, key)
	}
}

// connCounts are the metrics of connections.
type connCounts struct {
	open                 atomic.Int64
	refused, refusedAddr *Counter
}

func newConnCounts(m *Metrics) *connCounts {
	c := &connCounts{refused: m.Limiter("connections"), refusedAddr: m.Limiter("connections-of-address")}
	m.Gauge("http_connections", "Open connections of the public listener.", func() float64 { return float64(c.open.Load()) })
	return c
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseWrite sends the end of our side, where the connection has such a thing: a WebSocket's last word.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the connection below: what waits for a socket needs it.
func (c *counted) NetConn() net.Conn { return c.Conn }
