package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
)

// Connect opens a connection for a protocol that begins with an HTTP upgrade: TCP for ws, TLS for wss. The target must
// pass the same guard as in [HTTP.Do]. The caller must close the connection.
func (h *HTTP) Connect(ctx context.Context, reach Reach, target *url.URL) (net.Conn, error) {
	u := *target
	port := "80"
	switch u.Scheme {
	case "ws":
		u.Scheme = "http"
	case "wss":
		u.Scheme, port = "https", "443"
	default:
		return nil, &GuardError{u.Host, "the URL must be ws or wss"}
	}
	if err := h.CheckURL(reach, &u); err != nil {
		return nil, err
	}
	if p := u.Port(); p != "" {
		port = p
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Connect)
	defer cancel()
	pool := h.pools[poolOf(reach, u.Scheme)]
	conn, err := pool.dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", u.Host, err)
	}
	if u.Scheme == "http" {
		return conn, nil
	}
	cfg := pool.transport.TLSClientConfig.Clone()
	cfg.ServerName, cfg.NextProtos = u.Hostname(), nil
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", u.Host, err)
	}
	return secure, nil
}
