package mew

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestJoinsUnderAFlood: an attacker with all addresses of a network shows wrong tokens without end to a listener behind
// a proxy. A newcomer with a wrong token still gets 403, everybody with a valid token gets in, and connected
// participants stay connected.
func TestJoinsUnderAFlood(t *testing.T) {
	for _, network := range apitest.Networks {
		t.Run(network.Name, func(t *testing.T) {
			r := start(t)
			door := apitest.NewDoor(t, func(e *echo.Echo) { Mount(e, r.G) })
			bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
			join := func(token, from string) *mewtest.Player {
				h := http.Header{"Authorization": {"Bearer " + token}, "X-Forwarded-For": {from}}
				conn, err := websocket.Dial(t.Context(), r.Dial, "ws"+strings.TrimPrefix(door.URL, "http")+"/ws", websocket.Options{Header: h})
				if err != nil {
					t.Fatal(err)
				}
				p := mewtest.NewPlayer(t, conn)
				p.Want("system/welcome")
				return p
			}
			known := join("admin-token", "198.51.100.1")
			statuses := map[int]int{}
			for i := range max(network.Size, 256*2*10) {
				status, _ := door.Call(network.Addr(i), "GET", "/participants", "", bearer(fmt.Sprint("guess", i%6))...)
				statuses[status]++
				if i%5000 == 0 {
					door.Dial(http.StatusOK, network.Addr(i), "GET", "/participants", "", bearer("bob-token")...)
				}
			}
			if statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusOK] > 0 {
				t.Errorf("the flood was answered with %v", statuses)
			}
			door.Dial(http.StatusForbidden, apitest.Newcomer, "GET", "/participants", "", bearer("misspelled")...)
			door.Dial(http.StatusOK, apitest.Newcomer, "GET", "/participants", "", bearer("bob-token")...)
			for i := range 30 {
				door.Dial(http.StatusForbidden, apitest.HostedAddr(i), "GET", "/participants", "", bearer("old-token")...)
			}
			join("alice-token", apitest.Newcomer.String())
			known.Want("system/presence")
			known.Fence()
			door.CheckMemory()
		})
	}
}
