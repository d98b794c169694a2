package gateway

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// readerFunc is a reader that calls a function.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestKickDuringRequest: a kick also ends the requests that the gateway has authenticated already: an envelope whose
// body comes slowly is refused, and a waiting poll gets nothing more (MEW-30).
func TestKickDuringRequest(t *testing.T) {
	synctest.Test(t, testKickDuringRequest)
}

func testKickDuringRequest(t *testing.T) {
	r := startOn(t, t.TempDir(), Config{Spaces: []SpaceConfig{newBossConfig(t)}}, mewtest.NewPipes())
	polled := startPoll(r, "worker", "worker-token")
	synctest.Wait()
	kick := func() {
		if fault := say(r.G.Space("lab"), "manager", `{"kind":"space/kick","payload":{"participant_id":"worker"}}`); fault != "" {
			t.Errorf("kick: %s", fault)
		}
	}
	slow := readerFunc(func(p []byte) (int, error) {
		kick()
		return copy(p, `{"kind":"chat","payload":{"text":"still here"}}`), io.EOF
	})
	req := httptest.NewRequest("POST", "/participants/worker/messages", slow)
	req.Header.Set("Authorization", "Bearer worker-token")
	w := httptest.NewRecorder()
	r.G.ServeHTTP(w, req)
	if w.Code != 403 {
		t.Errorf("the slow envelope: %d %s, want 403", w.Code, w.Body)
	}
	for _, e := range r.G.Space("lab").out.history.entries {
		if strings.Contains(string(e.raw), "still here") {
			t.Errorf("the others got %s", e.raw)
		}
	}
	if w := <-polled; w.Code != 403 {
		t.Errorf("the waiting poll: %d, want 403", w.Code)
	}
}

// TestPostDuringJoins: the answer to a refused envelope names its sender, also while the sender joins under other ids.
// The race detector reports an answer that reads the id without the lock of the space.
func TestPostDuringJoins(t *testing.T) {
	r := start(t, newLabConfig(t))
	s := r.G.Space("lab")
	m := s.members.byName["alice"]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 100 {
			s.mu.Lock()
			s.members.rename(m, fmt.Sprintf("client-%d", n)) // as a join does
			s.mu.Unlock()
		}
	}()
	for range 100 {
		req := httptest.NewRequest("POST", "/participants/alice/messages", strings.NewReader(`{"kind":"stream/request","payload":{"target":["nobody"]}}`))
		req.Header.Set("Authorization", "Bearer alice-token")
		w := httptest.NewRecorder()
		r.G.ServeHTTP(w, req)
		to, _ := mewtest.Parse(t, w.Body.String()).Get("to")
		if id := mewtest.Text(to.At(0)); w.Code != 400 || id != "alice" && !strings.HasPrefix(id, "client-") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	<-done
}
