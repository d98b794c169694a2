//go:build slow && !race

package mess

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
)

const apiPath = "/api/v1/exchanges/home/"

// TestExchangeUnderAFlood: an attacker with all addresses of a network keeps registering and shows wrong keys. A new
// executor can still register, with and without approval, and everybody with a key gets in from any address.
func TestExchangeUnderAFlood(t *testing.T) {
	for _, network := range apitest.Networks {
		for _, mode := range []string{"approval", "open"} {
			t.Run(network.Name+"/"+mode, func(t *testing.T) {
				s := newHTTPLab(t, func(c *exchange.Config) { c.Registration = "open" })
				known := []string{"Authorization", "Bearer " + s.register("known")}
				x := exchange.New(exchange.Config{Store: s.store, Registration: mode})
				b, err := New(Config{Exchange: x, Store: s.store, Mesh: bridgetest.NewMesh(nil, s.store), Serve: true})
				if err != nil {
					t.Fatal(err)
				}
				door := apitest.NewDoor(t, b.Mount)

				waits, tries := 0, 256*2*credential.MaxFailures
				if mode == "open" { // the way to register makes no difference to wrong keys
					tries = max(tries, network.Size)
				}
				for i := range tries {
					if i < 300 || i%128 == 0 { // each costs a write
						door.Call(network.Addr(i/4), "POST", apiPath+"register", fmt.Sprintf(`{"executor_id":"evil-%d"}`, i))
					}
					status, _ := door.Call(network.Addr(i), "GET", apiPath+"requests", "", "Authorization", fmt.Sprintf("Bearer mess_home_%032d", i%6))
					switch status {
					case http.StatusTooManyRequests:
						waits++
					case http.StatusUnauthorized:
					default:
						t.Fatalf("a wrong key is answered with %d", status)
					}
				}
				if waits == 0 {
					t.Error("no wrong key had to wait")
				}
				door.Dial(http.StatusOK, apitest.Newcomer, "GET", apiPath+"requests", "", known...)
				door.Dial(http.StatusOK, network.Addr(0), "GET", apiPath+"requests", "", known...) // an address may be shared
				door.Dial(http.StatusUnauthorized, apitest.Newcomer, "GET", apiPath+"requests", "", "Authorization", "Bearer misspelled")
				answer := door.Dial(http.StatusCreated, apitest.Newcomer, "POST", apiPath+"register", `{"executor_id":"newcomer"}`)
				for i := range 8 {
					door.Dial(http.StatusCreated, apitest.HostedAddr(i), "POST", apiPath+"register", fmt.Sprintf(`{"executor_id":"hosted-%d"}`, i))
				}
				want := http.StatusOK
				if mode == "approval" {
					want = http.StatusForbidden // it waits for the owner
				}
				v, err := wire.Parse([]byte(strings.TrimSpace(answer)))
				if err != nil {
					t.Fatal(err)
				}
				door.Dial(want, apitest.Newcomer, "GET", apiPath+"requests", "", "Authorization", "Bearer "+v.GetStr("api_key"))
				door.CheckMemory()
			})
		}
	}
}
