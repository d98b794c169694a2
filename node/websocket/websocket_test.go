package websocket_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve accepts WebSockets and passes each to f, which owns it. It returns the URL. The test ends only after every f
// returned.
func serve(t testing.TB, opt websocket.Options, f func(*websocket.Conn)) string {
	t.Helper()
	var open atomic.Int32
	gone := make(chan struct{}, 1024)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, opt)
		if err != nil {
			return
		}
		open.Add(1)
		go func() { f(c); gone <- struct{}{} }()
	}))
	t.Cleanup(func() {
		for range open.Load() {
			select {
			case <-gone:
			case <-time.After(30 * time.Second):
				t.Error("a connection is still open")
			}
		}
		srv.Close()
	})
	return "ws" + strings.TrimPrefix(srv.URL, "http")
}

func dialPlain(ctx context.Context, u *url.URL) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
}

func dial(t testing.TB, target string, opt websocket.Options) *websocket.Conn {
	t.Helper()
	c, err := websocket.Dial(t.Context(), dialPlain, target, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(c) })
	return c
}

// finish aborts a connection and reads it to its end.
func finish(c *websocket.Conn) {
	c.Abort()
	for {
		if _, _, err := c.Read(); err != nil {
			return
		}
	}
}

func echo(c *websocket.Conn) {
	for {
		typ, data, err := c.Read()
		if err != nil {
			return
		}
		if c.Send(websocket.Of(typ, data)) != nil {
			finish(c)
			return
		}
	}
}

func wantClose(t *testing.T, c *websocket.Conn, code int, remote bool) {
	t.Helper()
	for {
		_, _, err := c.Read()
		if err == nil {
			continue
		}
		ce, ok := errors.AsType[*websocket.CloseError](err)
		if !ok || ce.Code != code || ce.Remote != remote {
			t.Errorf("Read = %v, want a close with %d, remote %t", err, code, remote)
		}
		return
	}
}

// TestRoundTrip: messages of every header length come back unchanged, masked in the direction that needs it.
func TestRoundTrip(t *testing.T) {
	c := dial(t, serve(t, websocket.Options{}, echo), websocket.Options{})
	for _, size := range []int{0, 1, 125, 126, 127, 0xffff, 0x10000, 1 << 20} {
		for _, typ := range []websocket.Type{websocket.TextType, websocket.BinaryType} {
			want := bytes.Repeat([]byte("x"), size)
			if err := c.Send(websocket.Of(typ, want)); err != nil {
				t.Fatal(err)
			}
			got, data, err := c.Read()
			if err != nil || got != typ || !bytes.Equal(data, want) {
				t.Fatalf("%d bytes of type %d came back as %d of type %d, %v", size, typ, len(data), got, err)
			}
		}
	}
	c.Close(websocket.CodeNormal, "done")
	wantClose(t, c, websocket.CodeNormal, false)
	if err := c.Send(websocket.Text(nil)); !errors.Is(err, websocket.ErrClosed) {
		t.Errorf("Send after the end = %v, want ErrClosed", err)
	}
}

func TestClosedByPeer(t *testing.T) {
	target := serve(t, websocket.Options{}, func(c *websocket.Conn) {
		c.Send(websocket.Text([]byte("last")))
		c.Close(4403, "kicked")
		wantClose(t, c, 4403, false)
	})
	c := dial(t, target, websocket.Options{})
	if _, data, err := c.Read(); string(data) != "last" || err != nil {
		t.Errorf("Read = %q, %v, want what was sent before the close", data, err)
	}
	_, _, err := c.Read()
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if !ok || ce.Code != 4403 || ce.Reason != "kicked" || !ce.Remote {
		t.Errorf("Read = %v, want the peer's close", err)
	}
}

// TestLongCloseReason checks that a reason is cut between two characters: a half one would be a protocol error.
func TestLongCloseReason(t *testing.T) {
	target := serve(t, websocket.Options{}, func(c *websocket.Conn) {
		c.Close(4403, strings.Repeat("ü", 100))
		wantClose(t, c, 4403, false)
	})
	_, _, err := dial(t, target, websocket.Options{}).Read()
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if want := strings.Repeat("ü", 61); !ok || ce.Code != 4403 || ce.Reason != want {
		t.Errorf("Read = %v, want the code and the reason %q", err, want)
	}
}

// TestCoalescing: queued frames leave together: the reader sees thousands of frames, the network few writes.
func TestCoalescing(t *testing.T) {
	const frames = 2000
	var writes atomic.Int64
	counting := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		c, err := dialPlain(ctx, u)
		return &writeCounter{Conn: c, writes: &writes}, err
	}
	got := make(chan int, 1)
	target := serve(t, websocket.Options{}, func(c *websocket.Conn) {
		n := 0
		for {
			_, data, err := c.Read()
			if err != nil {
				return
			}
			if string(data) != strconv.Itoa(n) {
				t.Errorf("message %d is %q", n, data)
			}
			if n++; n == frames {
				got <- n
			}
		}
	})
	c, err := websocket.Dial(t.Context(), counting, target, websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	handshake := writes.Load()
	for i := range frames {
		if err := c.Send(websocket.Text([]byte(strconv.Itoa(i)))); err != nil {
			t.Fatal(err)
		}
	}
	<-got
	if n := writes.Load() - handshake; n > frames/4 {
		t.Errorf("%d frames took %d writes", frames, n)
	}
	finish(c)
}

// writeCounter counts writes and makes each one yield to another goroutine, so that frames accumulate.
type writeCounter struct {
	net.Conn
	writes *atomic.Int64
}

func (c *writeCounter) Write(p []byte) (int, error) {
	c.writes.Add(1)
	done := make(chan struct{})
	go close(done)
	<-done
	return c.Conn.Write(p)
}

// TestSlowReader: a peer that does not read is closed with 1013 when its queue is full, and no Send waits for it.
func TestSlowReader(t *testing.T) {
	overflow := make(chan error, 1)
	target := serve(t, websocket.Options{QueueFrames: 64, QueueBytes: 4 << 20}, func(c *websocket.Conn) {
		big := websocket.Of(websocket.BinaryType, make([]byte, 256<<10))
		var err error
		for err == nil {
			err = c.Send(big)
		}
		overflow <- err
		if err := c.Send(big); !errors.Is(err, websocket.ErrClosed) {
			t.Errorf("Send after the overflow = %v, want ErrClosed", err)
		}
		wantClose(t, c, websocket.CodeTryLater, false)
	})
	c := dial(t, target, websocket.Options{})
	if err := <-overflow; !errors.Is(err, websocket.ErrSlow) {
		t.Errorf("Send = %v, want ErrSlow", err)
	}
	// A peer that reads again in time gets the close code.
	wantClose(t, c, websocket.CodeTryLater, true)
}

// TestLargeFrame: whether a frame is too large for the queue does not depend on what waits there. It once did, and a
// sender could not know whether its last frame still counted.
func TestLargeFrame(t *testing.T) {
	c := dial(t, serve(t, websocket.Options{}, echo), websocket.Options{QueueBytes: 1000})
	if err := c.Send(websocket.Text(make([]byte, 1001))); !errors.Is(err, websocket.ErrSlow) {
		t.Errorf("Send = %v, want ErrSlow", err)
	}
	wantClose(t, c, websocket.CodeTryLater, false)
}

func TestReadLimit(t *testing.T) {
	target := serve(t, websocket.Options{ReadLimit: 100}, func(c *websocket.Conn) { wantClose(t, c, websocket.CodeTooLarge, false) })
	c := dial(t, target, websocket.Options{QueueBytes: 16 << 20})
	c.Send(websocket.Of(websocket.BinaryType, make([]byte, 10<<20)))
	wantClose(t, c, websocket.CodeTooLarge, true)
}

// TestProtocolError: a client that does not mask its frames violates §5.1.
func TestProtocolError(t *testing.T) {
	target := serve(t, websocket.Options{}, func(c *websocket.Conn) { wantClose(t, c, websocket.CodeProtocol, false) })
	u, _ := url.Parse(target)
	conn, err := dialPlain(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("GET / HTTP/1.1\r\nHost: " + u.Host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"))
	buf := make([]byte, 512)
	conn.Read(buf)
	conn.Write([]byte("\x81\x02hi"))
	n, _ := conn.Read(buf)
	if n < 4 || buf[0] != 0x88 || int(buf[2])<<8|int(buf[3]) != websocket.CodeProtocol {
		t.Errorf("got % x, want a close with 1002", buf[:n])
	}
}

func TestOrigin(t *testing.T) {
	target := serve(t, websocket.Options{Origins: []string{"https://friend.example"}}, echo)
	host := strings.TrimPrefix(target, "ws://")
	for origin, status := range map[string]int{
		"":                            0,
		"http://" + host:              0,
		"https://friend.example":      0,
		"https://evil.example":        http.StatusForbidden,
		"http://" + host + ".evil":    http.StatusForbidden,
		"https://friend.example:8443": http.StatusForbidden,
		"null":                        http.StatusForbidden,
		"http://%zz":                  http.StatusForbidden,
	} {
		h := http.Header{}
		if origin != "" {
			h.Set("Origin", origin)
		}
		c, err := websocket.Dial(t.Context(), dialPlain, target, websocket.Options{Header: h})
		if err == nil {
			finish(c)
		}
		got := 0
		if he, ok := errors.AsType[*websocket.HandshakeError](err); ok {
			got = he.Status
		} else if err != nil {
			t.Fatal(err)
		}
		if got != status {
			t.Errorf("origin %q: status %d, want %d", origin, got, status)
		}
	}
}

// TestTLS: TLS connections coalesce too, because nothing below the queue needs to be TCP.
func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, websocket.Options{}); err == nil {
			echo(c)
		}
	}))
	defer srv.Close()
	c, err := websocket.Dial(t.Context(), func(ctx context.Context, u *url.URL) (net.Conn, error) {
		d := tls.Dialer{Config: srv.Client().Transport.(*http.Transport).TLSClientConfig}
		return d.DialContext(ctx, "tcp", u.Host)
	}, "wss"+strings.TrimPrefix(srv.URL, "https"), websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		c.Send(websocket.Text([]byte("over TLS")))
	}
	for i := range 100 {
		if _, data, err := c.Read(); string(data) != "over TLS" || err != nil {
			t.Fatalf("message %d = %q, %v", i, data, err)
		}
	}
	c.Close(websocket.CodeNormal, "")
	wantClose(t, c, websocket.CodeNormal, false)
}
