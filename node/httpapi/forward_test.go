package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// forwardKey is the key of the processes in these tests.
const forwardKey = "the key of the process that answers"

// twoProcesses starts a process that forwards every request under /bridge/, with the given key, and the process that
// answers them with answer. It returns the URL of the first one, and ends the forwarded requests when end is called.
func twoProcesses(t *testing.T, key string, answer echo.HandlerFunc) (front *httptest.Server, end context.CancelFunc) {
	t.Helper()
	cfg := Config{PublicURL: "http://agent.example", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, MaxConnsPerAddr: 2}
	holder := New(cfg)
	holder.Echo().Any("/bridge/*", answer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- holder.ServeForwarded(ctx, l, forwardKey) }()
	target, err := url.Parse("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tenure, end := context.WithCancel(context.Background())
	first, forwarder := New(cfg), NewForwarder()
	first.Echo().Any("/bridge/*", func(c echo.Context) error {
		ctx, cancel := context.WithCancel(c.Request().Context())
		defer cancel()
		defer context.AfterFunc(tenure, cancel)()
		if err := forwarder.Forward(ctx, c, target, key); err != nil {
			return wire.ErrUnavailable.Because(err)
		}
		return nil
	})
	front = httptest.NewUnstartedServer(first.Handler())
	front.Config.ReadTimeout, front.Config.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
	front.Start()
	t.Cleanup(func() {
		front.Close()
		end()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return front, end
}

// TestForward: the other process gets the request as the client sent it, knows the client's address, and its response
// reaches the client. A client cannot pose as a process.
func TestForward(t *testing.T) {
	front, _ := twoProcesses(t, forwardKey, func(c echo.Context) error {
		r := c.Request()
		body, err := io.ReadAll(r.Body)
		c.Response().Header().Set("X-Answer", "yes")
		return textOrError(c, err, fmt.Sprintf("%s %s%s %s from %s forwarded %v: %s %q", r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, ClientAddr(c), IsForwarded(c), body, r.Header[headerForwardKey]))
	})
	for _, expect := range []string{"", "100-continue"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+"/bridge/a%2Fb?x=1", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "agent.example"
		for name, value := range map[string]string{"Expect": expect, headerForwardClient: "192.0.2.7", headerForwardKey: "guessed", "X-Forwarded-For": "192.0.2.8"} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		want := `POST agent.example/bridge/a%2Fb x=1 from 192.0.2.8 forwarded true: body []`
		if err != nil || string(got) != want || resp.Header.Get("X-Answer") != "yes" || len(resp.Header["X-Request-Id"]) != 1 {
			t.Errorf("response %d %q, %v, %v, want %q", resp.StatusCode, got, resp.Header, err, want)
		}
	}
}

func textOrError(c echo.Context, err error, text string) error {
	if err != nil {
		return err
	}
	return c.String(http.StatusOK, text)
}

// TestForwardStream: a response may last longer than the time-outs of the first process, and a WebSocket passes in both
// directions until the forwarding ends.
func TestForwardStream(t *testing.T) {
	front, end := twoProcesses(t, forwardKey, func(c echo.Context) error {
		if !websocket.IsUpgrade(c.Request()) {
			for i := range 4 {
				time.Sleep(100 * time.Millisecond)
				_, _ = fmt.Fprint(c.Response(), i)
				c.Response().Flush()
			}
			return nil
		}
		conn, err := websocket.Accept(c.Response(), c.Request(), websocket.Options{})
		if err != nil {
			return err
		}
		for {
			_, text, err := conn.Read()
			if err != nil {
				return nil
			}
			if err := conn.Send(websocket.Text(text)); err != nil {
				return err
			}
		}
	})
	resp, err := http.Get(front.URL + "/bridge/stream")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(got) != "0123" {
		t.Errorf("stream = %q, %v", got, err)
	}
	conn, err := websocket.Dial(t.Context(), func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	}, "ws"+strings.TrimPrefix(front.URL, "http")+"/bridge/socket", websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		time.Sleep(150 * time.Millisecond)
		text := fmt.Sprint("frame ", i)
		if err := conn.Send(websocket.Text([]byte(text))); err != nil {
			t.Fatal(err)
		}
		if _, frame, err := conn.Read(); err != nil || string(frame) != text {
			t.Fatalf("frame = %q, %v, want %q", frame, err, text)
		}
	}
	end()
	if _, frame, err := conn.Read(); err == nil {
		t.Errorf("after the end of the forwarding: frame %q", frame)
	}
}

// TestForwardRefused: without the key of the process nothing is answered, and a process that is gone is an error.
func TestForwardRefused(t *testing.T) {
	reached := false
	front, _ := twoProcesses(t, "the key of an earlier process", func(c echo.Context) error {
		reached = true
		return c.NoContent(http.StatusOK)
	})
	w := do(front.Config.Handler, http.MethodGet, "/bridge/x", "")
	if w.Code != http.StatusServiceUnavailable || reached {
		t.Errorf("with another key: %d %s", w.Code, w.Body)
	}
	s := New(Config{PublicURL: "http://agent.example"})
	s.Echo().GET("/x", func(c echo.Context) error { return c.JSON(http.StatusOK, IsForwarded(c)) })
	if w := do(s.Handler(), http.MethodGet, "/x", "", headerForwardKey, forwardKey, headerForwardClient, "192.0.2.1"); strings.TrimSpace(w.Body.String()) != "false" {
		t.Errorf("a stranger on the public listener: %d %s", w.Code, w.Body)
	}
	gone := httptest.NewServer(nil)
	target, err := url.Parse(gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/bridge/x", nil), httptest.NewRecorder())
	if err := NewForwarder().Forward(t.Context(), c, target, forwardKey); err == nil || c.Response().Committed {
		t.Errorf("a process that is gone: %v", err)
	}
}

// TestForwardSpoofed: a client cannot name another client, remove the headers of the process, or hide its address, and
// the bridge sees no key.
func TestForwardSpoofed(t *testing.T) { // THREATS 24
	front, _ := twoProcesses(t, forwardKey, func(c echo.Context) error {
		return c.String(http.StatusOK, fmt.Sprint(ClientAddr(c), " ", c.Request().Header))
	})
	for _, headers := range []map[string]string{
		{headerForwardClient: "198.51.100.1"},
		{"Connection": headerForwardClient + ", " + headerForwardKey, headerForwardClient: "198.51.100.1"},
		{strings.ToLower(headerForwardClient): "198.51.100.1", headerNotForwarded: "true"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/bridge/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", "192.0.2.8")
		for name, value := range headers {
			req.Header[name] = []string{value}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(got), "192.0.2.8 ") || strings.Contains(string(got), forwardKey) || strings.Contains(string(got), "198.51.100") {
			t.Errorf("%v: %d %s, %v", headers, resp.StatusCode, got, err)
		}
	}
}

// TestForwardedOfOneClient: all processes together forward no more requests of one client at once than a client may
// have connections.
func TestForwardedOfOneClient(t *testing.T) { // AM-76
	release := make(chan struct{})
	front, _ := twoProcesses(t, forwardKey, func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusOK)
		c.Response().Flush()
		<-release
		return nil
	})
	defer close(release)
	get := func(client string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/bridge/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", client)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	for i, want := range []int{200, 200, 429, 429} {
		if got := get("192.0.2.8"); got != want {
			t.Errorf("request %d: %d, want %d", i, got, want)
		}
	}
	if got := get("192.0.2.9"); got != 200 {
		t.Errorf("another client: %d", got)
	}
}
