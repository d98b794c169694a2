package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// publicEndpoint returns the member's endpoint as the public profile serves it to an internet address.
func publicEndpoint(m *meshtest.Member, perMinute int) http.Handler {
	edge := httpapi.New(httpapi.Config{PublicURL: "https://sarah.example", RequestsPerMinute: perMinute})
	m.Mount(edge.Echo(), edge.Addresses())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "203.0.113.9:4711"
		edge.Handler().ServeHTTP(w, r)
	})
}

// TestAddressLimitFirst (AM-24, lines 1 to 3): too large beats the limit of the address, and the limit beats bad JSON.
func TestAddressLimitFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		edge := publicEndpoint(sarah, 2)
		for range 2 {
			must(t, meshtest.PostTo(t, edge, []byte(`{`)), http.StatusBadRequest)
		}
		cases := map[string]struct {
			body   []byte
			status int
		}{
			"too large":    {bytes.Repeat([]byte(" "), wire.MaxMessage+1), http.StatusRequestEntityTooLarge},
			"bad JSON":     {[]byte(`{`), http.StatusTooManyRequests},
			"good message": {chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)), http.StatusTooManyRequests},
		}
		for name, c := range cases {
			if a := meshtest.PostTo(t, edge, c.body); a.Status != c.status {
				t.Errorf("%s over the limit: %d %s, want %d", name, a.Status, a.Body, c.status)
			}
		}
		time.Sleep(time.Minute)
		must(t, meshtest.PostTo(t, edge, cases["good message"].body), http.StatusOK)
	})
}

// TestForgersAddressIsBarred (AM-43): after ten bad signatures in a minute an address gets 429 for ten minutes. The
// agent whose name was forged is not affected.
func TestForgersAddressIsBarred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		edge := publicEndpoint(sarah, 1000)
		forge := func() meshtest.Answer {
			forger := chris.Forger("mallory")
			return meshtest.PostTo(t, edge, forger.Sign(forger.Draft(sarah.ID(), wire.Deliver, hello)))
		}
		for i := range 10 {
			if a := forge(); a.Code() != wire.InvalidSignature {
				t.Fatalf("forgery %d: %d %s", i, a.Status, a.Body)
			}
		}
		a := forge()
		if a.Code() != wire.RateLimited || a.Header.Get("Retry-After") != "600" {
			t.Errorf("11th forgery: %d %s, Retry-After %q", a.Status, a.Body, a.Header.Get("Retry-After"))
		}
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK) // from another address
		time.Sleep(10 * time.Minute)
		if a := forge(); a.Code() != wire.InvalidSignature {
			t.Errorf("ten minutes later: %d %s", a.Status, a.Body)
		}
	})
}

// otherProcess hides from a client that its directory is in the same process.
type otherProcess struct{ http.RoundTripper }

// TestMadeUpSendersLeaveLookups: an address that invents senders gets at most four fifths of the card look-ups. First
// messages from other addresses are still looked up (AM-43).
func TestMadeUpSendersLeaveLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		mallory, chris := mesh.Stranger("mallory"), mesh.Stranger("chris")
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			open(cfg)
			cfg.Directories = []*client.Directory{client.NewDirectory(mesh.URL, nil, otherProcess{client.InProcess(mesh.Public)})}
		})
		edge := publicEndpoint(sarah, 1000)
		answers := map[wire.Code]int{}
		for i := range 100 {
			d := mallory.Draft(sarah.ID(), wire.Deliver, hello)
			d.From = wire.AgentID(fmt.Sprintf("am_made_up_%d", i))
			answers[meshtest.PostTo(t, edge, mallory.Sign(d)).Code()]++
		}
		if answers[wire.RateLimited] != 52 {
			t.Errorf("answers to the flood: %v, want 52 times %s", answers, wire.RateLimited)
		}
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK) // from another address
	})
}

// TestForgedFloodLeavesTheVictimServed (THREATS 26): a message that a sender did not sign is not charged to that
// sender.
func TestForgedFloodLeavesTheVictimServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		forger := chris.Forger("mallory")
		sarah := mesh.Node("sarah", open)
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		before := state(t, sarah)
		raw := forger.Sign(forger.Draft(sarah.ID(), wire.Deliver, hello))
		for range 10_000 {
			if _, err := sarah.Receive(t.Context(), raw); !errors.Is(err, wire.ErrSignature) {
				t.Fatal(err)
			}
		}
		if after := state(t, sarah); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
		for range 9 { // the rest of the hour's allowance
			must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		}
	})
}

// TestClockInRefusal (AM-84): a refusal because of the sender's clock tells the sender our time.
func TestClockInRefusal(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	d.Time = time.Now().Add(-time.Hour)
	a := meshtest.Post(t, sarah.URL, chris.Sign(d))
	must(t, a, http.StatusBadRequest)
	at, err := http.ParseTime(a.Header.Get("Date"))
	if err != nil || time.Since(at).Abs() > 10*time.Second {
		t.Errorf("Date = %q, want about now", a.Header.Get("Date"))
	}
}

// TestStoreFailure (AM-26): a message that cannot be stored is not acknowledged, leaves no trace and reaches no hook.
// The same bytes succeed when the store works again.
func TestStoreFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, tom := mesh.Stranger("chris"), mesh.Stranger("tom")
		path := filepath.Join(t.TempDir(), "sarah.db")
		at := func(minFree int64) store.Store {
			s, err := bolt.Open(t.Context(), path, bolt.Config{MinFree: minFree})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}
		calls := 0
		on := func(s store.Store) func(*node.Config) {
			return configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
				calls++
				return hook.Answer{}, nil
			}, func(cfg *node.Config) { cfg.Store = s })
		}
		working := at(-1)
		sarah := mesh.Node("sarah", on(working))
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		before := state(t, sarah)
		raws := [][]byte{ // chris's key is already pinned; tom's would have to be
			chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)),
			tom.Sign(tom.Draft(sarah.ID(), wire.Deliver, hello)),
			chris.Sign(chris.Draft(sarah.ID(), wire.Handoff, talk)),
		}
		refused := func(what string, m *meshtest.Member) {
			t.Helper()
			for i, raw := range raws {
				a := m.Post(raw)
				if a.Status != http.StatusServiceUnavailable || a.Code() != wire.AgentUnavailable || a.Header.Get("Retry-After") == "" {
					t.Errorf("%s, message %d: %d %s, want 503", what, i, a.Status, a.Body)
				}
			}
		}
		working.Close()
		refused("store closed", sarah)
		full := at(math.MaxInt64)
		refused("disk nearly full", mesh.Copy(sarah, on(full)))
		full.Close()
		again := mesh.Copy(sarah, on(at(-1)))
		if after := state(t, again); after != before || calls != 1 {
			t.Errorf("state = %s, want %s; %d calls", after, before, calls)
		}
		must(t, again.Post(raws[0]), http.StatusOK)
		must(t, again.Post(raws[1]), http.StatusOK)
		must(t, again.Post(raws[2]), http.StatusAccepted)
	})
}

// logLines collects log output.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestNothingSecretIsLogged (THREATS 28 and 29): at the most verbose level, the log of a busy node contains no key, no
// credential, no text of a message and no control character of a peer.
func TestNothingSecretIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		var log logLines
		sarah := mesh.Node("sarah", configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			if bytes.Contains(c.Payload, []byte("fail")) {
				return hook.Answer{}, errors.New("it broke")
			}
			return hook.Answer{}, nil
		}, mode(acl.Approval), func(cfg *node.Config) {
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}))
		sarah.Start()
		body := func(text string) string {
			return fmt.Sprintf(`{"action":"deliver","message":{"body":"%s tulip \u001b[31m"}}`, text)
		}
		for _, text := range []string{"hold", "fail", "fine"} {
			raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, body(text)))
			sarah.Post(raw)
			for _, ask := range pendingAsks(t, sarah) {
				decide(t, sarah, ask, acl.Approve)
			}
			sarah.Post(bytes.Replace(raw, []byte("tulip"), []byte("roses"), 1))
			sarah.Post(raw[:len(raw)-5])
		}
		time.Sleep(2 * time.Hour)
		secret := client.Credential("credential-of-sarah")
		key, err := meshtest.Key("sarah").MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		sarah.Stop()
		got := log.String()
		if got == "" {
			t.Fatal("nothing was logged, so the test checks nothing")
		}
		for _, s := range []string{
			string(secret), string(registration.Credential(secret, mesh.Directory())), strings.Split(string(key), "\n")[1], "tulip", "roses", "\x1b", `\x1b`,
		} {
			if strings.Contains(got, s) {
				t.Errorf("the log has %q:\n%s", s, got)
			}
		}
	})
}
