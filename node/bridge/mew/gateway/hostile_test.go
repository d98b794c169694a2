package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

func binaryText(s string) *websocket.Frame { return websocket.Of(websocket.BinaryType, []byte(s)) }

// TestBadInput: every bad message gets a full error envelope as answer, and the connection stays open.
func TestBadInput(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice := r.Join("alice-token")
	for name, bad := range map[string]string{
		"null":              `null`,
		"true":              `true`,
		"number":            `7`,
		"string":            `"chat"`,
		"array":             `[1]`,
		"empty":             ``,
		"blank":             ` `,
		"text behind":       `{"kind":"chat"} x`,
		"deep":              strings.Repeat(`{"a":`, 1000) + `1` + strings.Repeat(`}`, 1000),
		"deep arrays":       strings.Repeat(`[`, 100_000),
		"wide":              `{"kind":"chat","payload":{"a":[` + strings.Repeat(`1,`, 200_000) + `1]}}`,
		"invalid UTF-8":     "{\"kind\":\"chat\",\"payload\":{\"text\":\"\xff\"}}",
		"lone surrogate":    `{"kind":"chat","payload":{"text":"\ud800"}}`,
		"prototype":         `{"kind":"chat","__proto__":{}}`,
		"nested duplicate":  `{"kind":"chat","payload":{"a":1,"a":2}}`,
		"byte order mark":   "\ufeff{\"kind\":\"chat\"}",
		"a hash alone":      `#`,
		"half a frame":      `#stream-1`,
		"kind is a number":  `{"kind":1}`,
		"kind is long":      `{"kind":"` + strings.Repeat("x", 129) + `"}`,
		"id is long":        `{"id":"` + strings.Repeat("x", 257) + `","kind":"chat"}`,
		"many addressees":   `{"kind":"chat","to":["` + strings.Repeat(`a","`, 1024) + `a"]}`,
		"empty addressee":   `{"kind":"chat","to":[""]}`,
		"empty correlation": `{"kind":"chat","correlation_id":""}`,
		"context":           `{"kind":"chat","context":{}}`,
	} {
		for _, typ := range []websocket.Type{websocket.TextType, websocket.BinaryType} {
			if err := alice.Conn.Send(websocket.Of(typ, []byte(bad))); err != nil {
				t.Fatal(err)
			}
			e := alice.Want("system/error")
			if code := mewtest.Text(mewtest.Payload(e, "code")); code != "PROCESSING_ERROR" && code != "VALIDATION_ERROR" {
				t.Errorf("%s: %s", name, e.JSON())
			}
		}
	}
	alice.Fence()
	alice.Conn.Send(websocket.Of(websocket.BinaryType, make([]byte, 7<<20))) // within the queue of the client
	alice.AwaitClose(websocket.CodeTooLarge)
}

// TestStoppedReceiver: a receiver that reads nothing costs the others nothing. Its queue is bounded, then the gateway
// closes it with 1013 and announces that it left. Everybody else gets everything in order (MEW-Q3).
func TestStoppedReceiver(t *testing.T) {
	t.Parallel()
	var log watchedLog
	r := startWith(t, t.TempDir(), Config{Spaces: []SpaceConfig{newLabConfig(t)},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	stopped := dialRaw(r, "admin-token")
	const (
		size = 16 << 10
		most = (8 + 16) << 20 / size // the queue and the buffers of the system
	)
	text := strings.Repeat("x", size)
	gone := false
	chat := func(p *mewtest.Player, n int) { // the next chat is this one
		for {
			_, s := p.Next()
			gone = gone || strings.Contains(s, `"event":"leave"`) && strings.Contains(s, `"admin"`)
			if strings.Contains(s, "system/presence") {
				continue
			}
			if want := fmt.Sprintf(`"id":"n%d"`, n); !strings.Contains(s, want) {
				t.Fatalf("got %.80s, want %s", s, want)
			}
			return
		}
	}
	sent := 0
	for ; !gone; sent++ {
		if sent == most {
			t.Fatalf("%d MiB wait for the stopped receiver", most*size>>20)
		}
		alice.Send(fmt.Sprintf(`{"id":"n%d","kind":"chat","payload":{"text":%q}}`, sent, text))
		chat(alice, sent)
		chat(bob, sent)
	}
	for range 100 { // the others go on
		alice.Send(fmt.Sprintf(`{"id":"n%d","kind":"chat"}`, sent))
		chat(alice, sent)
		chat(bob, sent)
		sent++
	}
	log.wait(t, fmt.Sprintf("participant=admin why=\"websocket: closed with %d", websocket.CodeTryLater))
	stopped.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, stopped); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection of the stopped receiver is still open")
	}
}

// watchedLog is a log that a test can wait on.
type watchedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *watchedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *watchedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *watchedLog) has(s string) bool { return strings.Contains(l.String(), s) }

func (l *watchedLog) wait(t *testing.T, s string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(time.Minute); !l.has(s); {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatalf("the log never said %s", s)
		}
	}
}

// dialRaw connects with a token in the header and never reads; only the system buffers some data.
func dialRaw(r *mewtest.Rig[*Gateway], token string) net.Conn {
	r.T.Helper()
	conn, err := net.Dial("tcp", r.Server.Listener.Addr().String())
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer %s\r\n\r\n", token)
	return conn
}

// TestJoinsAndLeaves: thousands of joins and leaves leave no memory behind (TestMain counts goroutines too).
func TestJoinsAndLeaves(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	r := start(t, newLabConfig(t))
	s := r.G.Space("lab")
	m := s.members.byName["alice"]
	settle := func() (uint64, int) {
		runtime.GC()
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return st.HeapAlloc, runtime.NumGoroutine()
	}
	one := func() {
		ses := &session{m: m, space: s, conn: new(websocket.Conn)}
		s.mu.Lock()
		m.session = ses
		s.members.rename(m, "client-"+rand.Text())
		s.out.addReceiver(m)
		s.out.announcePresence("join", m.info(), m)
		s.unlock()
		s.leave(ses)
	}
	for range maxHistory { // until the history is full
		one()
	}
	heap, goroutines := settle()
	for range rounds {
		one()
	}
	after, left := settle()
	if after > heap+4<<20 || left > goroutines+2 {
		t.Errorf("heap %d KiB, then %d KiB; goroutines %d, then %d", heap>>10, after>>10, goroutines, left)
	}
	s.mu.Lock()
	if len(s.members.byID) != 0 || len(s.out.receivers) != 0 || len(s.board.ListReasoning()) != 0 {
		t.Errorf("%d ids and %d receivers are left", len(s.members.byID), len(s.out.receivers))
	}
	s.mu.Unlock()
	for range 200 { // and over sockets
		p := r.Open("/ws", "")
		p.Send(`{"type":"join","token":"bob-token","participantId":"` + strings.ToLower(rand.Text()) + `"}`)
		p.Want("system/welcome")
		p.Quit()
		for s.View().Participants[2].Connected {
			runtime.Gosched()
		}
	}
	if n := r.G.conns.Len(); n > 1 {
		t.Errorf("%d connections are open", n)
	}
}

// TestIdleMemory: an idle participant takes little memory (docs/performance.md has the number).
func TestIdleMemory(t *testing.T) {
	if testing.Short() || raceOn {
		t.Skip("opens many connections, and the race detector takes memory of its own")
	}
	const many = 400
	sc := SpaceConfig{ID: "lab"}
	for i := range many {
		sc.Participants = append(sc.Participants, Participant{Name: fmt.Sprintf("p%d", i), Tokens: []string{fmt.Sprintf("t%d", i)}, Capabilities: mewtest.Caps(t, "chat")})
	}
	r := start(t, sc)
	size := func() uint64 {
		runtime.GC()
		runtime.GC()
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return st.HeapAlloc + st.StackInuse
	}
	before := size()
	for i := range many {
		dialRaw(r, fmt.Sprintf("t%d", i))
	}
	for r.G.conns.Len() < many {
		runtime.Gosched()
	}
	// The announcement of the last join is still being delivered for a while.
	each := (int64(size()) - int64(before)) / many
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(30 * time.Second); each > 16<<10; each = (int64(size()) - int64(before)) / many {
		select {
		case <-tick.C:
			continue
		case <-patience:
			t.Fatalf("an idle connection takes %d KiB", each>>10)
		}
	}
	t.Logf("%d bytes for an idle connection", each)
}
