package meshtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/node/client"
)

// Wired makes a mesh like [InMemory] in which calls to the members arrive: carry serves the calls to the member called
// to, over a connection that needs no socket. A call during which carry panics with http.ErrAbortHandler ends as if the
// network had failed.
func Wired(t testing.TB, carry func(to string, w http.ResponseWriter, r *http.Request)) *Mesh {
	t.Helper()
	m := InMemory(t)
	m.wire = &wires{conns: make(chan net.Conn), closed: make(chan struct{})}
	m.http = client.NewHTTP(client.HTTPConfig{Local: true, Dial: m.wire.dial})
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { carry(m.wire.member(r.Host), w, r) })}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(m.wire)
	}()
	t.Cleanup(func() {
		m.http.Close()
		srv.Close()
		<-done
	})
	return m
}

// wires are the connections between the members of a mesh, and the listener at their other end.
type wires struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	names []string // of members; the port of each is firstPort and its index
}

const firstPort = 2000

// url returns the base URL of a member.
func (w *wires) url(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.names, name)
	if i < 0 {
		i, w.names = len(w.names), append(w.names, name)
	}
	return fmt.Sprint("http://127.0.0.1:", firstPort+i)
}

func (w *wires) member(host string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var port int
	if _, err := fmt.Sscanf(host, "127.0.0.1:%d", &port); err != nil || port-firstPort < 0 || port-firstPort >= len(w.names) {
		return ""
	}
	return w.names[port-firstPort]
}

func (w *wires) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case w.conns <- there:
		return here, nil
	case <-w.closed:
		return nil, errors.New("the mesh has stopped")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *wires) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wires) Close() error   { w.once.Do(func() { close(w.closed) }); return nil }
func (w *wires) Addr() net.Addr { return &net.UnixAddr{Name: "mesh", Net: "unix"} }
