package mew

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestJoinsUnderAFlood: an attacker with all addresses of a network shows wrong tokens without end, at a listener behind
// a proxy. A newcomer with a wrong token is told so, everybody with a valid token gets in, and who is in stays.
func TestJoinsUnderAFlood(t *testing.T) {
	for _, network := range bridgetest.Networks {
		t.Run(network.Name, func(t *testing.T) {
			r := start(t, lab(t))
			door := bridgetest.NewDoor(t, r.g.Mount)
			bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
			join := func(token, from string) *player {
				h := http.Header{"Authorization": {"Bearer " + token}, "X-Forwarded-For": {from}}
				conn, err := websocket.Dial(t.Context(), r.dial, "ws"+strings.TrimPrefix(door.URL, "http")+"/ws", websocket.Options{Header: h})
				if err != nil {
					t.Fatal(err)
				}
				p := &player{t, conn}
				t.Cleanup(p.quit)
				p.want("system/welcome")
				return p
			}
			known := join("admin-token", "198.51.100.1")
			statuses := map[int]int{}
			for i := range max(network.Size, 256*2*maxFailedJoins) {
				status, _ := door.Call(network.Addr(i), "GET", "/participants", "", bearer(fmt.Sprint("guess", i%6))...)
				statuses[status]++
				if i%5000 == 0 {
					door.Dial(http.StatusOK, network.Addr(i), "GET", "/participants", "", bearer("bob-token")...)
				}
			}
			if statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusOK] > 0 {
				t.Errorf("the flood was answered with %v", statuses)
			}
			door.Dial(http.StatusForbidden, bridgetest.Newcomer, "GET", "/participants", "", bearer("misspelled")...)
			door.Dial(http.StatusOK, bridgetest.Newcomer, "GET", "/participants", "", bearer("bob-token")...)
			for i := range 30 {
				door.Dial(http.StatusForbidden, bridgetest.Hosted(i), "GET", "/participants", "", bearer("old-token")...)
			}
			join("alice-token", bridgetest.Newcomer.String())
			known.want("system/presence")
			known.fence()
			door.CheckMemory()
		})
	}
}
