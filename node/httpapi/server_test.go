package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
)

// start serves s on an in-process network until the test ends.
func start(t *testing.T, s *Server) *pipeListener {
	t.Helper()
	l := newPipeListener()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return l
}

func TestSlowHeadersAreCut(t *testing.T) { // AM-76
	synctest.Test(t, func(t *testing.T) {
		l := start(t, New(Config{}))
		conn, err := l.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != headerTimeout {
			t.Errorf("cut after %v, want %v", took, headerTimeout)
		}
	})
}

func TestIdleConnectionsAreCut(t *testing.T) { // AM-76
	synctest.Test(t, func(t *testing.T) {
		l := start(t, New(Config{}))
		conn, err := l.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("read = %v, want EOF", err)
		}
		if took := time.Since(began); took != idleTimeout {
			t.Errorf("cut after %v, want %v", took, idleTimeout)
		}
	})
}

func TestHeadersAreBounded(t *testing.T) { // AM-76
	synctest.Test(t, func(t *testing.T) {
		l := start(t, New(Config{}))
		for size, want := range map[int]int{8 << 10: 200, 32 << 10: 431} {
			r, _ := http.NewRequest("GET", "http://x/health", nil)
			r.Header.Set("X-Long", strings.Repeat("x", size))
			resp, err := l.client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%d bytes of header = %d, want %d", size, resp.StatusCode, want)
			}
		}
	})
}

func TestLongPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		wait := func(c echo.Context) error {
			select {
			case <-time.After(90 * time.Second):
				return c.String(http.StatusOK, "waited")
			case <-c.Request().Context().Done():
				return c.Request().Context().Err()
			}
		}
		s.Echo().GET("/patient", func(c echo.Context) error {
			if err := KeepOpen(c, 2*time.Minute); err != nil {
				return err
			}
			return wait(c)
		})
		s.Echo().GET("/hasty", wait)
		client := start(t, s).client()
		resp, err := client.Get("http://x/patient")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "waited" {
			t.Errorf("patient = %q, %v", body, err)
		}
		if resp, err := client.Get("http://x/hasty"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				t.Error("a handler without KeepOpen outlived the write time-out")
			}
		}
		client.CloseIdleConnections()
	})
}

func TestStopWaitsForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Echo().GET("/slow", func(c echo.Context) error {
			time.Sleep(3 * time.Second)
			return c.String(http.StatusOK, "done")
		})
		l := newPipeListener()
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan time.Time, 1)
		began := time.Now()
		go func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Errorf("Serve = %v", err)
			}
			stopped <- time.Now()
		}()
		time.AfterFunc(time.Second, cancel)
		client := l.client()
		resp, err := client.Get("http://x/slow")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if string(body) != "done" {
			t.Errorf("answer = %q", body)
		}
		if took := (<-stopped).Sub(began); took < 3*time.Second || took > 3*time.Second+stopTimeout {
			t.Errorf("stopped after %v", took)
		}
	})
}

func TestStopEndsLongPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		ended := make(chan time.Time, 1)
		s.Echo().GET("/poll", func(c echo.Context) error {
			if err := KeepOpen(c, time.Hour); err != nil {
				return err
			}
			<-c.Request().Context().Done()
			ended <- time.Now()
			return c.NoContent(http.StatusNoContent)
		})
		l := newPipeListener()
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan error, 1)
		go func() { stopped <- s.Serve(ctx, l) }()
		stopAt := time.Now().Add(time.Second)
		time.AfterFunc(time.Second, cancel)
		resp, err := l.client().Get("http://x/poll")
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Errorf("the poll = %v, %v; want its answer", resp, err)
		}
		if at := <-ended; at.Sub(stopAt) != stopGrace {
			t.Errorf("the poll ended %v after the stop, want %v", at.Sub(stopAt), stopGrace)
		}
		if err := <-stopped; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}

// TestStopCutsStalledClients: a client that never sends the rest of its body does not delay the stop by more than five
// seconds. It used to delay the whole process by ten.
func TestStopCutsStalledClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Echo().POST("/take", func(c echo.Context) error {
			_, err := io.ReadAll(c.Request().Body)
			return err
		})
		l := newPipeListener()
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan time.Time, 1)
		go func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Errorf("Serve = %v", err)
			}
			stopped <- time.Now()
		}()
		conn, err := l.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		cancel()
		if took := (<-stopped).Sub(began); took > 5*time.Second {
			t.Errorf("stopped after %v, want at most 5 s", took)
		}
	})
}

func TestServeReportsABrokenListener(t *testing.T) {
	l := newPipeListener()
	l.Close()
	if err := New(Config{}).Serve(t.Context(), l); err == nil {
		t.Error("Serve = nil, want the listener's error")
	}
}

func TestConnectionCaps(t *testing.T) { // AM-76
	for _, tt := range []struct {
		name string
		cfg  Config
		want int // connections of one address that stay open, of four
	}{
		{"per address", Config{MaxConnsPerAddr: 2}, 2},
		{"in all", Config{MaxConns: 3, MaxConnsPerAddr: -1}, 3},
		{"more per address than in all", Config{MaxConns: 4}, 2},
		{"one in all", Config{MaxConns: 1}, 1},
		{"local profile has none per address", Config{Local: true, MaxConnsPerAddr: 2}, 4},
		{"switched off", Config{MaxConns: -1, MaxConnsPerAddr: -1}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- New(tt.cfg).Serve(ctx, remoteListener{inner}) }()
			served := 0
			for range 4 {
				conn, err := net.Dial("tcp", inner.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				fmt.Fprint(conn, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
					served++
				}
			}
			if served != tt.want {
				t.Errorf("%d connections were served, want %d", served, tt.want)
			}
			cancel()
			<-done
		})
	}
}

// remoteListener is a listener whose connections seem to come from another machine.
type remoteListener struct{ net.Listener }

func (l remoteListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return remoteConn{conn}, err
}

type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("203.0.113.9"), Port: 9} }

// TestConnectionsOfANetwork: one network cannot use up all connections. Connections that carry many clients do not
// count as one client's (AM-76, THREATS 33).
func TestConnectionsOfANetwork(t *testing.T) {
	from := func(format string, args ...any) net.Addr {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, args...)), 9))
	}
	for _, network := range []string{"2001:db8:1:%x::1", "198.51.100.%d"} {
		c := limitConns(nil, Config{MaxConns: 400, MaxConnsPerAddr: 3}, newConnCounts(nil))
		var open []source
		for i := range 600 {
			if s := c.source(from(network, i%200)); c.enter(s) {
				open = append(open, s)
			}
		}
		if len(open) != 100 {
			t.Errorf("%s has %d connections, want a quarter of 400", network, len(open))
		}
		if !c.enter(c.source(from("203.0.113.9"))) || !c.enter(c.source(from("2001:db8:2::1"))) {
			t.Errorf("%s shuts another network out", network)
		}
		for _, s := range open {
			c.leave(s)
		}
		if len(c.open) != 4 || c.total != 2 {
			t.Errorf("%d keys of %d connections are kept, want 4 of 2", len(c.open), c.total)
		}
	}
	for remote, cfg := range map[string]Config{
		"127.0.0.1": {MaxConnsPerAddr: 1, ProxyHere: true},
		"::1":       {MaxConnsPerAddr: 1},
		"10.0.0.1":  {MaxConnsPerAddr: 1, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		c := limitConns(nil, cfg, newConnCounts(nil))
		for i := range 300 {
			if !c.enter(c.source(from("%s", remote))) {
				t.Fatalf("connection %d of a proxy or tunnel at %s is refused", i, remote)
			}
		}
	}
}

func TestConnectionsAreGivenBack(t *testing.T) {
	c := limitConns(nil, Config{MaxConns: 2, MaxConnsPerAddr: 1}, newConnCounts(nil))
	a := c.source(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")})
	b := c.source(&net.TCPAddr{IP: net.ParseIP("2001:db8::2")})
	if a != b {
		t.Errorf("two addresses of one /64 count apart: %v, %v", a, b)
	}
	if !c.enter(a) || c.enter(b) {
		t.Error("want one connection of the /64 and no second")
	}
	c.leave(a)
	if !c.enter(b) {
		t.Error("a closed connection still counts")
	}
	if len(c.open) != 2 {
		t.Errorf("%d keys are kept, want 2", len(c.open))
	}
}
