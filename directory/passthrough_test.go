package directory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestForgedSendersLeavePlaces: messages of a thousand unknown senders, and copies of a known sender's message, do not
// use up the places for pass-through. A message with a forged signature gets no place at all.
func TestForgedSendersLeavePlaces(t *testing.T) { // THREATS 26, AM-67
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		w.register("dave-credential-4", testCard("am_dave"))
		var mu sync.Mutex
		passed := map[wire.AgentID]int{}
		stop := w.agent(alice, func(item mailbox.Item) (string, bool) {
			tree, err := wire.ParseObject(item.Message)
			if err != nil {
				t.Error(err)
			}
			from := tree.GetStr("from")
			if item.ReplyBy == "" {
				want(t, w.do("POST", "/v1/relay/"+item.RelayID+"/ack", "", withBearer(alice)...), 200, "")
				return "", true
			}
			mu.Lock()
			defer mu.Unlock()
			if passed[wire.AgentID(from)]++; strings.HasPrefix(from, "am_ghost") {
				passed["ghosts"]++
			}
			if from == "am_bob" {
				return testMessage("r", "am_alice", "am_bob"), true
			}
			return "", true // the sender waits
		})
		synctest.Wait()
		var senders sync.WaitGroup
		for i := range 1000 {
			senders.Go(func() {
				w.do("POST", "/v1/mailbox/am_alice", testMessage(fmt.Sprint(i), fmt.Sprint("am_ghost", i), "am_alice"))
			})
		}
		replayed := testMessage("d", "am_dave", "am_alice")
		for range 100 {
			senders.Go(func() { w.do("POST", "/v1/mailbox/am_alice", replayed) })
			senders.Go(func() {
				forged := strings.Replace(testMessage("f", "am_bob", "am_alice"), "hello", "hullo", 1)
				want(t, w.do("POST", "/v1/mailbox/am_alice", forged), 401, "INVALID_SIGNATURE")
			})
		}
		synctest.Wait()
		start := time.Now()
		if got := w.do("POST", "/v1/mailbox/am_alice", testMessage("1", "am_bob", "am_alice")); got.Code != 200 || time.Since(start) != 0 {
			t.Errorf("meanwhile Bob gets %d %s after %v", got.Code, got.Body, time.Since(start))
		}
		senders.Wait()
		mu.Lock()
		if passed["ghosts"] != mailbox.MaxTransitOfSender || passed["am_dave"] != mailbox.MaxTransitOfSender || passed["am_bob"] != 1 {
			t.Errorf("passed through: %d of strangers and %d of Dave, want %d of each; %d of Bob", passed["ghosts"], passed["am_dave"], mailbox.MaxTransitOfSender, passed["am_bob"])
		}
		mu.Unlock()
		stop()
	})
}

// TestForgersAreBarred: an address that sends bad signatures to mailboxes is refused, as at any endpoint (AM-43).
func TestForgersAreBarred(t *testing.T) { // THREATS 26, 27
	w := newRelayWorld(t)
	edge := httpapi.New(httpapi.Config{})
	reg := New(Config{Store: w.store, BaseURL: testBase, Addresses: edge.Addresses()})
	reg.Mount(edge.Echo())
	codes := map[int]int{}
	for i := range 40 {
		forged := strings.Replace(testMessage(fmt.Sprint(i), "am_bob", "am_alice"), "hello", "hullo", 1)
		codes[send(edge.Handler(), "POST", "/v1/mailbox/am_alice", forged).Code]++
	}
	if codes[401] < 10 || codes[401] > 11 || codes[429] != 40-codes[401] {
		t.Errorf("40 forged messages of one address = %v, want 10 refusals and then none", codes)
	}
	if got := send(edge.Handler(), "POST", "/v1/mailbox/am_alice", testMessage("x", "am_bob", "am_alice"), "Remote", "198.51.100.9:1"); got.Code != 202 {
		t.Errorf("the named sender, from another address, gets %d %s", got.Code, got.Body)
	}
}

// pipeListener is a listener in this process, for use with a fake clock.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipeListener) Close() error   { close(p.done); return nil }
func (p pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSlowReader: the connection of a client that asks for mail but does not read it is closed after a minute.
// Until then it occupies at most one page and delays nobody else. Its mail stays.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		big := wire.Member{Key: "padding", Value: wire.Text(strings.Repeat("x", 200<<10))}
		for i := range 40 {
			wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", testMessage(fmt.Sprint(i), []string{"am_bob", "am_carol"}[i%2], "am_alice", big)), 202)
		}
		l := pipeListener{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- w.edge.Serve(ctx, l) }()
		ask := func() net.Conn {
			near, far := net.Pipe()
			l.conns <- far
			if _, err := fmt.Fprintf(near, "GET /v1/relay?wait=30&limit=100 HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer %s\r\n\r\n", alice); err != nil {
				t.Fatal(err)
			}
			return near
		}
		start := time.Now()
		slow := ask()
		synctest.Wait()
		quick := ask()
		resp, err := http.ReadResponse(bufio.NewReader(quick), nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || n > maxPageBytes+wire.MaxMessage || n < maxPageBytes || time.Since(start) != 0 {
			t.Errorf("beside a slow reader another gets %d bytes after %v, %v", n, time.Since(start), err)
		}
		quick.Close()
		time.Sleep(time.Minute + time.Second) // without having read a byte
		if n, err := io.Copy(io.Discard, slow); n > 64<<10 || err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the slow reader then gets %d bytes, %v", n, err)
		}
		slow.Close()
		if all := w.countMail(); all.N != 40 {
			t.Errorf("%d messages are left", all.N)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
