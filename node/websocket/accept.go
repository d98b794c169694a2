package websocket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gobwas/ws"
	"golang.org/x/net/http/httpguts"
)

// handshakeTimeout bounds the peer's part of the handshake.
const handshakeTimeout = 10 * time.Second

// IsUpgrade reports whether a request asks for a WebSocket.
func IsUpgrade(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") && httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "websocket")
}

// Accept takes over the connection of an HTTP/1.1 request. The handler may return at once; the connection lives until
// Read returns an error. If Accept fails, it has already refused the request, with 403 for a foreign origin, or closed
// its connection.
func Accept(w http.ResponseWriter, r *http.Request, opt Options) (*Conn, error) {
	c := &Conn{opt: opt.withDefaults()}
	if !c.opt.checkOrigin(r) {
		http.Error(w, http.StatusText(http.StatusForbidden), http.StatusForbidden)
		return nil, errors.New("accept a WebSocket: a page of a foreign origin")
	}
	upgrader := ws.HTTPUpgrader{Timeout: handshakeTimeout}
	conn, rw, _, err := upgrader.Upgrade(r, w)
	if err == nil && rw.Reader.Buffered() > 0 {
		err = errors.New("data came before the handshake was over")
	}
	if err != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, fmt.Errorf("accept a WebSocket: %w", err)
	}
	c.conn, c.waiter = conn, newWaiter(conn)
	c.open(nil)
	return c, nil
}

// Dialer opens the connection of a WebSocket: TCP for ws, TLS for wss. It decides which addresses may be dialed.
// client.HTTP.Connect is a Dialer.
type Dialer func(ctx context.Context, u *url.URL) (net.Conn, error)

// HandshakeError means that the HTTP answer refused the upgrade.
type HandshakeError struct {
	Status int // of the HTTP answer
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("the WebSocket handshake was answered with status %d", e.Status)
}

// Dial connects to a ws or wss URL. If the server refuses the upgrade, the error is a *[HandshakeError]. Dial follows
// no redirect. ctx bounds only the handshake.
func Dial(ctx context.Context, dial Dialer, target string, opt Options) (*Conn, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("dial a WebSocket: %w", err)
	}
	c := &Conn{opt: opt.withDefaults(), client: true}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if c.conn, err = dial(ctx, u); err != nil {
		return nil, fmt.Errorf("dial a WebSocket: %w", err)
	}
	early, err := c.upgrade(ctx, u)
	if err != nil {
		c.conn.Close()
		if refused, ok := errors.AsType[ws.StatusError](err); ok {
			return nil, &HandshakeError{int(refused)}
		}
		return nil, fmt.Errorf("dial a WebSocket: %w", err)
	}
	c.open(early)
	return c, nil
}

// upgrade makes the handshake of a client, and returns what the server sent right after it.
func (c *Conn) upgrade(ctx context.Context, u *url.URL) (early []byte, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) }) // ends a read or a write
	rest, _, err := ws.Dialer{Header: ws.HandshakeHeaderHTTP(c.opt.Header)}.Upgrade(c.conn, u)
	if !stop() {
		err = cmp.Or(err, ctx.Err())
	}
	if rest != nil {
		early, _ = rest.Peek(rest.Buffered())
		early = bytes.Clone(early)
		ws.PutReader(rest)
	}
	return early, err
}
