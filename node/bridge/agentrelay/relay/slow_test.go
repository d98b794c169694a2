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

// TestOrder: frames of one sender arrive in the order in which it sent them (AR-23).
func TestOrder(t *testing.T) {
	s := newTestRelay(t, Config{})
	a, b := s.join("aaa"), s.join("bbb")
	for n := range 1000 {
		a.send(fmt.Sprintf(`{"to":["bbb"],"payload":%d}`, n))
		if n%100 == 99 { // stay within the queue of the receiver
			for m := n - 99; m <= n; m++ {
				if got := b.next(); number(got) != fmt.Sprint(m) {
					t.Fatalf("frame %d is %s", m, got.JSON())
				}
			}
		}
	}
}

// number returns the payload of a frame, up to the first blank.
func number(f wire.Value) string {
	payload, _ := f.Get("payload")
	if s, ok := payload.Str(); ok {
		before, _, _ := strings.Cut(s, " ")
		return before
	}
	return string(payload.JSON())
}

// TestStalledReader: one reader among 100 stops reading. The relay bounds what waits for it, then closes it with 1013.
// The others get everything, once and in order, and do not wait for it (AR-23).
func TestStalledReader(t *testing.T) {
	var log bytes.Buffer
	s := newTestRelay(t, Config{Logger: textLogger(&log)})
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
	s.waitConnected("stalled", true)
	const (
		size = 32 << 10
		most = (1 + 16) << 20 / size // the queue and the buffers of the system
	)
	filler := strings.Repeat("x", size)
	count := 0
	tell := func(text string) {
		a.send(fmt.Sprintf(`{"to":["*"],"payload":"%d %s"}`, count, text))
		for _, o := range others {
			if got := o.next(); number(got) != fmt.Sprint(count) {
				t.Fatalf("%s got %s, want frame %d", o.id, number(got), count)
			}
		}
		count++
	}
	// Most frames go to the stalled reader alone: on a slow machine, sending all of them to everybody takes longer than
	// the relay waits for a silent agent.
	for sent := 0; s.conns.isConnected("stalled"); sent++ {
		switch {
		case sent == most+1000: // closing takes a second
			t.Fatalf("%d MiB wait for the stalled reader", sent*size>>20)
		case sent > most:
			tell("")
			time.Sleep(10 * time.Millisecond) // the reader has some time to answer the close
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

// TestFloods: clients that flood the relay, with frames of 10 MB or with anything as fast as they can, lose their own
// connections. The others notice only what the flooders sent before.
func TestFloods(t *testing.T) {
	s := newTestRelay(t, Config{PerMinute: 100, PerHour: 1000})
	a, b := s.join("aaa"), s.join("bbb")
	for name, message := range map[string][]byte{
		"huge": bytes.Repeat([]byte("x"), 10<<20), "null": []byte("null"), "deep": bytes.Repeat([]byte("["), 60<<10),
		"direct": []byte(`{"to":["nobody"],"payload":"` + strings.Repeat("x", 60<<10) + `"}`), "broadcast": []byte(`{"to":["*"],"payload":1}`),
	} {
		f := s.join("flood-" + name)
		go func() { // read the answers
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
