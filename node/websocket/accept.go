package websocket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
)

// handshakeTimeout bounds the peer's part of the handshake.
const handshakeTimeout = 10 * time.Second

// readBufferSize is small because every idle connection has a read buffer. A larger message is read directly into
// its own buffer. Gorilla accepts only readers of more than 256 bytes.
const readBufferSize = 512

// IsUpgrade reports whether a request asks for a WebSocket.
func IsUpgrade(r *http.Request) bool { return websocket.IsWebSocketUpgrade(r) }

// Accept takes over the connection of an HTTP/1.1 request. The handler may return at once; the connection lives until
// Read returns an error. If Accept fails, it has already refused the request, with 403 for a foreign origin, or closed
// its connection.
func Accept(w http.ResponseWriter, r *http.Request, opt Options) (*Conn, error) {
	c := &Conn{opt: opt.withDefaults()}
	up := websocket.Upgrader{
		HandshakeTimeout: handshakeTimeout,
		WriteBufferPool:  noBuffers{}, // we write the frames, so gorilla needs no buffer
		WriteBufferSize:  256,
		CheckOrigin:      c.opt.checkOrigin,
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			w.Header().Set("Sec-WebSocket-Version", "13")
			http.Error(w, http.StatusText(status), status)
		},
	}
	ws, err := up.Upgrade(responseWriter{w, c}, r, nil)
	if err != nil {
		return nil, fmt.Errorf("accept a WebSocket: %w", err)
	}
	c.open(ws)
	return c, nil
}

// responseWriter hands gorilla a connection whose writes go through our queue after the handshake.
type responseWriter struct {
	http.ResponseWriter
	c *Conn
}

func (t responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if rw.Reader.Buffered() > 0 {
		conn.Close()
		return nil, nil, errors.New("data came before the handshake was over")
	}
	t.c.conn = conn
	queued := &queuedConn{conn, t.c}
	t.c.in, t.c.waiter = bufio.NewReaderSize(queued, readBufferSize), newWaiter(conn)
	rw.Reader = t.c.in // gorilla uses the buffer that it gets
	return queued, rw, nil
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
	connect := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dial(ctx, u)
		if err != nil {
			return nil, err
		}
		c.conn = conn
		return &queuedConn{conn, c}, nil
	}
	d := websocket.Dialer{
		NetDialContext: connect, NetDialTLSContext: connect,
		HandshakeTimeout: handshakeTimeout, ReadBufferSize: readBufferSize, WriteBufferPool: noBuffers{}, WriteBufferSize: 256,
	}
	ws, resp, err := d.DialContext(ctx, u.String(), c.opt.Header)
	if errors.Is(err, websocket.ErrBadHandshake) && resp != nil {
		return nil, &HandshakeError{resp.StatusCode}
	}
	if err != nil {
		return nil, fmt.Errorf("dial a WebSocket: %w", err)
	}
	// Drop the deadline of the handshake. An error here shows up at the first read.
	_ = c.conn.SetDeadline(time.Time{})
	c.open(ws)
	return c, nil
}

// noBuffers keeps gorilla from holding a write buffer for each connection.
type noBuffers struct{}

func (noBuffers) Get() any { return nil }
func (noBuffers) Put(any)  {}
