package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
)

// errBroken makes the Answer of a bell panic.
var errBroken = errors.New("broken")

// bell is a Waiter that a test rings. Its answer is the text of the last ring.
type bell struct {
	mu    sync.Mutex
	wake  func()
	text  string
	fault error
	left  chan struct{} // receives a value when the request leaves
}

func newBell() *bell { return &bell{wake: func() {}, left: make(chan struct{}, 10)} }

func (b *bell) OnWake(wake func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = wake
}

func (b *bell) Answer(context.Context) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.fault, errBroken) {
		panic("the bell is broken")
	}
	if b.text == "" {
		return nil, b.fault
	}
	text := b.text
	b.text = ""
	return []byte(text), b.fault
}

func (b *bell) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = func() {}
	b.left <- struct{}{}
}

func (b *bell) ring(text string, fault error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.fault = text, fault
	b.wake()
}

// parkWorld is a server with a route that waits for b, and a connection to it.
type parkWorld struct {
	*bell
	t       *testing.T
	server  *Server
	l       *pipeListener
	conn    net.Conn
	in      *bufio.Reader
	log     *safeBuffer
	stop    func()
	stopped chan error
}

func newParkWorld(t *testing.T) *parkWorld {
	log, text := newTestLog()
	w := &parkWorld{bell: newBell(), t: t, server: New(Config{Local: true, Logger: log}), l: newPipeListener(), log: text, stopped: make(chan error, 1)}
	w.server.Echo().GET("/wait", func(c echo.Context) error {
		Private(c)
		return Park(c, time.Minute, w, []byte(`"none"`))
	})
	w.server.Echo().GET("/now", func(c echo.Context) error { return Raw(c, http.StatusOK, []byte(`"now"`)) })
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	go func() { w.stopped <- w.server.Serve(ctx, w.l) }()
	conn, err := w.l.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.conn, w.in = conn, bufio.NewReader(conn)
	t.Cleanup(func() { conn.Close() })
	return w
}

// ask sends a request without a body.
func (w *parkWorld) ask(path string) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w.conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// answer reads a response.
func (w *parkWorld) answer() (*http.Response, string) {
	w.t.Helper()
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.ContentLength != int64(len(body)) || resp.Header.Get("Date") == "" || len(resp.Header.Get("X-Request-Id")) != 16 {
		w.t.Errorf("%v, %d of %d bytes, header %v", err, len(body), resp.ContentLength, resp.Header)
	}
	return resp, string(body)
}

func (w *parkWorld) expect(status int, body string) {
	w.t.Helper()
	if resp, got := w.answer(); resp.StatusCode != status || got != body || resp.Header.Get("Cache-Control") != "no-store" {
		w.t.Errorf("%s %s %v, want %d %s", resp.Status, got, resp.Header, status, body)
	}
}

// TestPark: a waiting request gets its answer, and the connection goes on: at once, after a pause, and with another
// kind of request.
func TestPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t)
		for i, pause := range []time.Duration{0, time.Second, headerTimeout + time.Second, idleTimeout - time.Second} {
			w.ask("/wait")
			time.Sleep(50 * time.Second) // longer than the time-outs of other requests
			w.ring(fmt.Sprintf(`"ring %d"`, i), nil)
			w.expect(http.StatusOK, fmt.Sprintf(`"ring %d"`, i))
			time.Sleep(pause)
			w.ask("/now")
			if resp, got := w.answer(); resp.StatusCode != http.StatusOK || got != `"now"` {
				t.Errorf("after %v: %s %s", pause, resp.Status, got)
			}
		}
		w.ring(`"there already"`, nil)
		w.ask("/wait")
		w.expect(http.StatusOK, `"there already"`)
		began := time.Now()
		w.ask("/wait")
		w.expect(http.StatusOK, `"none"`)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("none after %v", took)
		}
		w.ask("/wait")
		w.ring("", nil) // for somebody else
		time.Sleep(time.Second)
		w.ring("", errors.New("the disk is full"))
		if resp, body := w.answer(); resp.StatusCode != http.StatusInternalServerError || strings.Contains(body, "disk") || !strings.Contains(w.log.String(), "the disk is full") {
			t.Errorf("%s %s, logged %s", resp.Status, body, w.log)
		}
		w.ring("", nil)
		w.ask("/wait")
		w.ring("", errBroken)
		if resp, body := w.answer(); resp.StatusCode != http.StatusInternalServerError || strings.Contains(body, "bell") || !strings.Contains(w.log.String(), "park_test.go") {
			t.Errorf("a panic: %s %s, logged %s", resp.Status, body, w.log)
		}
		w.ask("/wait") // the bell is still broken
		if resp, _ := w.answer(); resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("a panic in the handler: %s", resp.Status)
		}
		time.Sleep(idleTimeout + time.Second)
		if _, err := w.in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("after the idle time-out: %v", err)
		}
		if got := len(w.left); got != 9 || w.server.conns.open.Load() != 0 {
			t.Errorf("%d of 9 requests left, %d connections are open", got, w.server.conns.open.Load())
		}
		w.stop()
		if err := <-w.stopped; err != nil {
			t.Error(err)
		}
	})
}

// TestParkNextRequest: a request that follows before the answer of a waiting one ends its wait, and is answered too.
func TestParkNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t)
		w.ask("/wait")
		go io.WriteString(w.conn, "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\nGET /now HTTP/1.1\r\nHost: localhost\r\n\r\n")
		w.expect(http.StatusOK, `"none"`)
		for range 2 {
			if resp, got := w.answer(); resp.StatusCode != http.StatusOK || got != `"now"` {
				t.Errorf("%s %s", resp.Status, got)
			}
		}
		go io.WriteString(w.conn, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\nGET /now HTTP/1.1\r\nHost: localhost\r\n\r\n")
		w.expect(http.StatusOK, `"none"`)
		if resp, got := w.answer(); resp.StatusCode != http.StatusOK || got != `"now"` {
			t.Errorf("%s %s", resp.Status, got)
		}
		w.stop()
		<-w.stopped
	})
}

// TestParkedClientLeaves: a request ends at once when its client leaves, and so does the count of its connection.
func TestParkedClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t)
		w.ask("/wait")
		began := time.Now()
		w.conn.Close()
		<-w.left
		synctest.Wait()
		if took := time.Since(began); took > 0 || w.server.conns.open.Load() != 0 {
			t.Errorf("left after %v, %d connections are open", took, w.server.conns.open.Load())
		}
		w.stop()
		<-w.stopped
	})
}

// TestParkedStop: a stop answers waiting requests, and does not wait for an idle connection or for a client that does
// not read.
func TestParkedStop(t *testing.T) {
	for name, prepare := range map[string]func(w *parkWorld){
		"waiting": func(w *parkWorld) {
			w.ask("/wait")
			go w.expect(http.StatusOK, `"none"`)
		},
		"idle":           func(w *parkWorld) { w.ask("/wait"); w.ring(`"x"`, nil); w.expect(http.StatusOK, `"x"`) },
		"does not read":  func(w *parkWorld) { w.ask("/wait") },
		"is being given": func(w *parkWorld) { w.ask("/wait"); w.ring(`"x"`, nil); w.expect(http.StatusOK, `"x"`); w.ask("/wait") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newParkWorld(t)
				prepare(w)
				began := time.Now()
				w.stop()
				if err := <-w.stopped; err != nil || time.Since(began) > time.Second || w.server.conns.open.Load() != 0 {
					t.Errorf("stopped after %v: %v, %d connections are open", time.Since(began), err, w.server.conns.open.Load())
				}
			})
		})
	}
}

// TestWaitInHandler: a request that cannot be parked waits in its handler: one that closes its connection, one over
// HTTP/1.0, one with a body, and one within the process.
func TestWaitInHandler(t *testing.T) {
	for name, head := range map[string]string{
		"close": "HTTP/1.1\r\nConnection: close\r\n\r\n", "1.0": "HTTP/1.0\r\n\r\n", "body": "HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newParkWorld(t)
				go io.WriteString(w.conn, strings.Replace("GET /wait "+head, "\r\n", "\r\nHost: localhost\r\n", 1))
				time.Sleep(50 * time.Second)
				w.ring("", nil)
				synctest.Wait()
				w.ring(`"ring"`, nil)
				w.expect(http.StatusOK, `"ring"`)
				<-w.left
				w.conn.Close()
				w.stop()
				<-w.stopped
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t)
		began := time.Now()
		rec := httptest.NewRecorder()
		w.server.Internal().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/wait", nil))
		got := rec.Body.String()
		if got != `"none"` || time.Since(began) != time.Minute {
			t.Errorf("within the process: %s after %v", got, time.Since(began))
		}
		w.stop()
		<-w.stopped
	})
}
