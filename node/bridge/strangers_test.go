package bridge_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/registry"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// aCall is a request of a stranger.
type aCall struct {
	method, path, body string
	headers            []string
}

func jsonCall(method, path, key, body string) aCall {
	c := aCall{method, path, body, []string{"Content-Type", "application/json"}}
	if key != "" {
		c.headers = append(c.headers, "Authorization", "Bearer "+key)
	}
	return c
}

// network is a network whose strangers get keys or tokens from us.
type network struct {
	name     string
	mount    func(t *testing.T, s store.Store) func(*echo.Echo)
	register func(id string) aCall
	keyIn    func(answer wire.Value) string
	use      func(key, id string) aCall
	perHour  int    // registrations of one address; 0: a participant invites strangers instead
	ns       string // of the stored accounts
}

const (
	chosenBearer = "a-bearer-that-the-client-chose"
	wrongKey     = "mess_home_00000000000000000000000000000000" // has a form that every network accepts
)

func networks() []network {
	return []network{{
		name: "agentrelay", ns: "agentrelay/agents", perHour: 3,
		mount: func(t *testing.T, s store.Store) func(*echo.Echo) {
			r, err := relay.New(t.Context(), relay.Config{Records: s.Records(), Registration: credential.Open, RegistrationsPerHour: 3})
			if err != nil {
				t.Fatal(err)
			}
			return func(e *echo.Echo) { r.Mount(e) }
		},
		register: func(id string) aCall { return jsonCall("POST", "/register", "", `{"agent_id":"`+id+`"}`) },
		keyIn:    func(v wire.Value) string { return v.GetStr("token") },
		use: func(key, _ string) aCall {
			c := jsonCall("GET", "/arc", key, "")
			c.headers = append(c.headers, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
			return c
		},
	}, {
		name: "mess", ns: "mess/executors", perHour: 3,
		mount: func(_ *testing.T, s store.Store) func(*echo.Echo) {
			d := &rest.Server{Exchange: exchange.New(exchange.Config{Store: s, Registration: "open", RegistrationsPerHour: 3})}
			return func(e *echo.Echo) { d.Mount(e) }
		},
		register: func(id string) aCall {
			return jsonCall("POST", "/api/v1/exchanges/home/register", "", `{"executor_id":"`+id+`"}`)
		},
		keyIn: func(v wire.Value) string { return v.GetStr("api_key") },
		use:   func(key, _ string) aCall { return jsonCall("GET", "/api/v1/exchanges/home/requests", key, "") },
	}, {
		name: "moltspeak", ns: "moltspeak/registry", perHour: 20,
		mount: func(t *testing.T, s store.Store) func(*echo.Echo) {
			r, err := registry.NewServer(t.Context(), registry.Config{Records: s.Records(), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			return r.Mount
		},
		register: func(id string) aCall {
			return jsonCall("POST", "/api/v1/agents", chosenBearer, `{"agent_name":"`+id+`","org":"x","public_key":"ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="}`)
		},
		keyIn: func(wire.Value) string { return chosenBearer },
		use:   func(key, id string) aCall { return jsonCall("POST", "/api/v1/agents/"+id+"@x/heartbeat", key, "") },
	}, {
		name: "mew", ns: "mew-members",
		mount: func(t *testing.T, s store.Store) func(*echo.Echo) {
			all, err := capability.Parse(wire.Obj(wire.TextField("kind", "*")))
			if err != nil {
				t.Fatal(err)
			}
			g, err := gateway.New(t.Context(), gateway.Config{Records: s.Records(), Spaces: []gateway.SpaceConfig{{
				ID: "lab", Participants: []gateway.Participant{{Name: "admin", Tokens: []string{"admin-token"}, Capabilities: []capability.Capability{all}}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			return func(e *echo.Echo) { mew.Mount(e, g) }
		},
		register: func(id string) aCall {
			return jsonCall("POST", "/participants/admin/messages", "admin-token", `{"kind":"space/invite","payload":{"participant_id":"`+id+`","initial_capabilities":["chat"]}}`)
		},
		keyIn: func(v wire.Value) string { return v.GetStr("token") },
		use:   func(key, _ string) aCall { return jsonCall("GET", "/participants", key, "") },
	}}
}

// TestStrangers: every network treats the keys of strangers alike. A key is stored only as a hash, and admits its owner
// also after a restart. An id that is taken is not given away. An address may register a few strangers in an hour, and
// show a few wrong keys in a minute. A right key always admits, because an address may be shared.
func TestStrangers(t *testing.T) { // AM-43
	for _, n := range networks() {
		t.Run(n.name, func(t *testing.T) {
			s := meshtest.Store(t)
			door := apitest.NewDoor(t, n.mount(t, s))
			do := func(from netip.Addr, c aCall) (int, wire.Value) {
				status, body := door.Call(from, c.method, c.path, c.body, c.headers...)
				v, _ := wire.Parse([]byte(body))
				return status, v
			}
			refused := []int{http.StatusUnauthorized, http.StatusForbidden}
			admits := func(key string) bool {
				status, _ := do(apitest.Newcomer, n.use(key, "stranger"))
				return !slices.Contains(append(refused, http.StatusTooManyRequests), status)
			}
			status, answer := do(apitest.Newcomer, n.register("stranger"))
			key := n.keyIn(answer)
			if status >= 300 || !admits(key) {
				t.Fatalf("registered with %d %s, and the key does not admit", status, answer.JSON())
			}
			if status, answer := do(apitest.HostedAddr(1), n.register("stranger")); status != http.StatusConflict {
				t.Errorf("the id again: %d %s", status, answer.JSON())
			}
			for range credential.MaxFailures {
				if status, _ := do(apitest.Newcomer, n.use(wrongKey, "stranger")); !slices.Contains(refused, status) {
					t.Fatalf("a wrong key: %d", status)
				}
			}
			if status, _ := do(apitest.Newcomer, n.use(wrongKey, "stranger")); status != http.StatusTooManyRequests {
				t.Errorf("a wrong key too many: %d", status)
			}
			if status, _ := do(apitest.HostedAddr(2), n.use(wrongKey, "stranger")); status == http.StatusTooManyRequests || !admits(key) {
				t.Error("others pay for the wrong keys")
			}
			for i := 1; i <= n.perHour; i++ {
				want := i < n.perHour // one is used up
				if status, answer := do(apitest.Newcomer, n.register(fmt.Sprint("stranger-", i))); (status < 300) != want {
					t.Errorf("registration %d: %d %s", i, status, answer.JSON())
				}
			}
			hashes := 0
			for rec, err := range store.AllRecords(t.Context(), s.Records(), n.ns, "", time.Now()) {
				if err != nil || bytes.Contains(rec.Body, []byte(key)) {
					t.Errorf("the store has the key itself, or %v", err)
				}
				if bytes.Contains(rec.Body, []byte(credential.HashOf(key).String())) {
					hashes++
				}
			}
			if hashes == 0 {
				t.Error("the store has no hash of the key")
			}
			door = apitest.NewDoor(t, n.mount(t, s))
			if !admits(key) || admits(wrongKey) {
				t.Error("after a restart the key does not admit, or another does")
			}
		})
	}
}
