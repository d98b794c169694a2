package agentrelay

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/websocket"
)

// BenchmarkFanOut: one sender, 100 readers on real sockets, 256-byte payloads. An operation is one broadcast that all of
// them have read; two are under way at once, so that no reader can fall behind by more than its queue holds.
func BenchmarkFanOut(b *testing.B) {
	const readers, window = 100, 2
	s := newSite(b, RelayConfig{})
	var read atomic.Int64
	done := make(chan struct{}, window)
	for n := range readers {
		conn, err := s.dial(s.benchToken(fmt.Sprintf("reader-%d", n)))
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := conn.Read(); err != nil { // welcome
			b.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				if _, _, err := conn.Read(); err != nil {
					return
				}
				if read.Add(1)%readers == 0 {
					done <- struct{}{}
				}
			}
		}()
		b.Cleanup(func() { conn.Abort(); <-ended })
	}
	sender, err := s.dial(s.benchToken("sender"))
	if err != nil {
		b.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { defer close(gone); finish(sender) }()
	b.Cleanup(func() { sender.Abort(); <-gone })
	frame := websocket.Text([]byte(`{"to":["*"],"type":"thought","payload":"` + strings.Repeat("x", 256) + `"}`))
	under := 0
	began := time.Now()
	b.ResetTimer()
	for range b.N {
		if under == window {
			<-done
			under--
		}
		if err := sender.Send(frame); err != nil {
			b.Fatal(err)
		}
		under++
	}
	for ; under > 0; under-- {
		<-done
	}
	b.ReportMetric(float64(b.N*readers)/time.Since(began).Seconds(), "deliveries/s")
}

// benchToken registers an agent.
func (s *site) benchToken(id string) string {
	_, token, err := s.agents.register(context.Background(), registration{ID: id, Trusted: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}
