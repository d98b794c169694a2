//go:build slow

package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// flaky is an unreliable proxy in front of an endpoint. It delays every message by up to 300 ms, fails one in twenty,
// and resets the connection of one in fifty. Half of the faults come before the endpoint gets the message, half after
// its answer. The random numbers are the same in every run. Repeated messages get no fault, so that no outbox entry
// needs a third attempt.
type flaky struct {
	endpoint atomic.Pointer[string] // URL of the endpoint
	accepted atomic.Int64           // messages that the endpoint accepted and whose sender got the answer

	mu      sync.Mutex
	dice    *rand.Rand
	seen    map[wire.MessageID]bool
	failed  int
	resets  int
	refused int // messages for which the endpoint was down
}

func newFlaky() *flaky {
	return &flaky{dice: rand.New(rand.NewPCG(1, 2)), seen: map[wire.MessageID]bool{}}
}

// fault is the treatment of one message.
type fault struct {
	wait        time.Duration
	fail, reset bool
	afterwards  bool // fail or reset only after the endpoint has answered
}

func (f *flaky) roll(body []byte) (m fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m.wait = time.Duration(f.dice.Int64N(int64(300 * time.Millisecond)))
	v, err := wire.ParseObject(body)
	id := wire.MessageID(v.GetStr("message_id"))
	if err != nil || f.seen[id] {
		return m
	}
	f.seen[id] = true
	n := f.dice.IntN(1000)
	m.afterwards = n%2 == 0
	switch {
	case n < 50:
		m.fail = true
		f.failed++
	case n < 70:
		m.reset = true
		f.resets++
	}
	return m
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m fault
	if r.Method == http.MethodPost {
		m = f.roll(body)
	}
	<-time.After(m.wait)
	if m.fail && !m.afterwards {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if m.reset && !m.afterwards {
		reset(w)
		return
	}
	// A message that has left its sender arrives even if the sender dies meanwhile.
	status, answer, err := f.forward(context.WithoutCancel(r.Context()), r.Method, body)
	switch {
	case err != nil:
		f.mu.Lock()
		f.refused++
		f.mu.Unlock()
		w.WriteHeader(http.StatusBadGateway)
	case m.fail:
		w.WriteHeader(http.StatusInternalServerError)
	case m.reset:
		reset(w)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if _, err := w.Write(answer); err == nil && r.Method == http.MethodPost && status < 300 {
			f.accepted.Add(1)
		}
	}
}

func (f *flaky) forward(ctx context.Context, method string, body []byte) (int, []byte, error) {
	endpoint := f.endpoint.Load()
	if endpoint == nil {
		return 0, nil, errors.New("the endpoint has not started")
	}
	return sendJSON(ctx, method, *endpoint, body)
}

// reset writes the beginning of an answer and then resets the connection.
func reset(w http.ResponseWriter) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	buf.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
	buf.Flush()
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
}
