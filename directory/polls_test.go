package directory

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// BenchmarkWaitingPolls reports the heap and the stack of a poll that waits for mail, with both ends of its connection.
// The client's end has neither buffers nor a goroutine.
func BenchmarkWaitingPolls(b *testing.B) {
	const polls = 1000
	w := newWorld(b)
	w.edge = httpapi.New(httpapi.Config{RequestsPerMinute: -1, MaxConns: -1, MaxConnsPerAddr: -1})
	w.reg = New(Config{Store: w.store, BaseURL: testBase, Quotas: Quotas{PerToken: -1, PerHost: -1, PerHour: -1}, Addresses: w.edge.Addresses()})
	w.reg.Mount(w.edge.Echo())
	bearer := func(i int) string { return fmt.Sprintf("%s-%06d", alice, i) }
	for i := range polls {
		if got := send(w.edge.Handler(), "POST", "/v1/agents", string(mailboxCard(fmt.Sprintf("am_%06d", i)).JSON()), withBearer(bearer(i))...); got.Code != http.StatusCreated {
			b.Fatalf("register = %d %s", got.Code, got.Body)
		}
	}
	for b.Loop() {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- w.edge.Serve(ctx, listener) }()
		before := memoryInUse()
		conns := make([]net.Conn, polls)
		for i := range conns {
			if conns[i], err = net.Dial("tcp", listener.Addr().String()); err == nil {
				_, err = fmt.Fprintf(conns[i], "GET /v1/relay?wait=30 HTTP/1.1\r\nHost: directory.example\r\nAuthorization: Bearer %s\r\n\r\n", bearer(i))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		for w.reg.relay.Connections().Count() < polls {
			runtime.Gosched()
		}
		after := memoryInUse()
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/polls, "heap-B/poll")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/polls, "stack-B/poll")
		for _, conn := range conns {
			conn.Close()
		}
		stop()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

// memoryInUse collects garbage, which also shrinks stacks, until both have settled.
func memoryInUse() (m runtime.MemStats) {
	for range 5 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
