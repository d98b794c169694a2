package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// AR-23: the order of one sender is kept.
func TestOrder(t *testing.T) {
	s := newSite(t, Config{})
	a, b := s.join("aaa"), s.join("bbb")
	for n := range 1000 {
		a.send(fmt.Sprintf(`{"to":["bbb"],"payload":%d}`, n))
		if n%100 == 99 { // more than the queue of a receiver must not wait
			for m := n - 99; m <= n; m++ {
				if got := b.next(); number(got) != fmt.Sprint(m) {
					t.Fatalf("frame %d is %s", m, got.JSON())
				}
			}
		}
	}
}

// number is the payload of a frame, up to the first blank.
func number(f wire.Value) string {
	payload, _ := f.Get("payload")
	if s, ok := payload.Str(); ok {
		before, _, _ := strings.Cut(s, " ")
		return before
	}
	return string(payload.JSON())
}

// AR-23: one reader among 100 stops. What waits for it is bounded, then it is out with 1013; the others get everything,
// once and in order, and nobody waits for it.
func TestStalledReader(t *testing.T) {
	var log bytes.Buffer
	s := newSite(t, Config{Logger: textLogger(&log)})
	a := s.join("aaa")
	var others []*agent
	for n := range 99 {
		others = append(others, s.join(fmt.Sprintf("agent-%02d", n)))
	}
	stalled, err := dialer(t.Context(), s.address())
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	fmt.Fprintf(stalled, "GET /arc?token=%s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", s.register("stalled"))
	s.until("stalled", true)
	const (
		size = 32 << 10
		most = (1 + 16) << 20 / size // the queue, and what the system's own buffers may take
	)
	filler := strings.Repeat("x", size)
	told := 0
	tell := func(text string) {
		a.send(fmt.Sprintf(`{"to":["*"],"payload":"%d %s"}`, told, text))
		for _, o := range others {
			if got := o.next(); number(got) != fmt.Sprint(told) {
				t.Fatalf("%s got %s, want frame %d", o.id, number(got), told)
			}
		}
		told++
	}
	// Most of it goes to the stalled reader alone: all of it to everybody takes a slow machine longer than a silent agent has.
	for sent := 0; s.conns.isConnected("stalled"); sent++ {
		switch {
		case sent == most+1000: // it takes a second to go
			t.Fatalf("%d MiB wait for the stalled reader", sent*size>>20)
		case sent > most:
			tell("")
			time.Sleep(10 * time.Millisecond) // lets the time pass that it has to take the close
		case sent%16 == 0:
			tell(filler)
		default:
			a.send(fmt.Sprintf(`{"to":["stalled"],"payload":"%s"}`, filler))
		}
	}
	for range 100 { // the others go on
		tell("")
	}
	for _, x := range append(others, a) {
		x.quiet()
	}
	s.stop()
	if !strings.Contains(log.String(), `agent=stalled why="websocket: closed with 1013`) {
		t.Errorf("the log does not say that the stalled reader was closed with 1013:\n%s", log.String())
	}
	stalled.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, stalled); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection of the stalled reader is still open")
	}
}

// Clients that flood the relay, with frames of 10 MB or with anything as fast as they can, end their own connections. What
// they sent before is what the others notice of it.
func TestFloods(t *testing.T) {
	s := newSite(t, Config{PerMinute: 100, PerHour: 1000})
	a, b := s.join("aaa"), s.join("bbb")
	for name, message := range map[string][]byte{
		"huge": bytes.Repeat([]byte("x"), 10<<20), "null": []byte("null"), "deep": bytes.Repeat([]byte("["), 60<<10),
		"direct": []byte(`{"to":["nobody"],"payload":"` + strings.Repeat("x", 60<<10) + `"}`), "broadcast": []byte(`{"to":["*"],"payload":1}`),
	} {
		f := s.join("flood-" + name)
		go func() { // what it gets back
			for range f.in {
			}
		}()
		ready := websocket.Text(message)
		for range min(1000, 100<<20/len(message)) {
			if f.conn.Send(ready) != nil {
				break
			}
		}
		got := f.closed()
		if cut := got == websocket.CodeTooLarge || got == websocket.CodeAbnormal; got != frame.CloseRate && !(cut && name == "huge") {
			t.Errorf("%s: ended with %d", name, got)
		}
	}
	a.send(`{"to":["bbb"],"payload":"still here"}`)
	for f, n := b.next(), 0; f.GetStr("payload") != "still here"; f, n = b.next(), n+1 {
		if f.GetStr("from") != "flood-broadcast" || n == 100 {
			t.Fatalf("after %d frames bbb got %.200s", n, f.JSON())
		}
	}
}
