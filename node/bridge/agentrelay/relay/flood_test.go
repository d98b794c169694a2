package relay

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestRelayUnderAFlood: an attacker with all addresses of a network registers without end and shows wrong tokens to a
// listener behind a proxy. A newcomer can still register and connect, so can agents at one hosting provider, and an
// agent that is connected stays connected.
func TestRelayUnderAFlood(t *testing.T) {
	for _, network := range apitest.Networks {
		t.Run(network.Name, func(t *testing.T) {
			s := newTestRelay(t, Config{RegistrationsPerHour: defaultRegistrations, MaxAgents: 1000})
			door := apitest.NewDoor(t, func(e *echo.Echo) { s.Relay.Mount(e) })
			known := s.connectAs("known-agent", s.register("known-agent"))
			connects := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
			registered, statuses := 0, map[int]int{}
			for i := range max(network.Size, 256*2*credential.MaxFailures) {
				if i < 2000 || i%16 == 0 {
					if status, _ := door.Call(network.Addr(i), "POST", "/register", ""); status == http.StatusOK {
						registered++
					}
				}
				status, _ := door.Call(network.Addr(i), "GET", fmt.Sprint("/arc?token=guess", i%6), "", connects...)
				statuses[status]++
			}
			if registered < 60 || registered > 500 {
				t.Errorf("the flood registered %d agents, want some, and at most half of the relay", registered)
			}
			if statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusTooManyRequests]+statuses[http.StatusUnauthorized] != max(network.Size, 256*2*credential.MaxFailures) {
				t.Errorf("wrong tokens were answered with %v", statuses)
			}
			door.Dial(http.StatusUnauthorized, apitest.Newcomer, "GET", "/arc?token=misspelled", "", connects...)
			answer := door.Dial(http.StatusOK, apitest.Newcomer, "POST", "/register", `{"agent_id":"newcomer"}`)
			for i := range 8 {
				door.Dial(http.StatusOK, apitest.HostedAddr(i), "POST", "/register", "")
			}
			_, token, _ := strings.Cut(answer, `"token":"`)
			token, _, _ = strings.Cut(token, `"`)
			for _, from := range []string{apitest.Newcomer.String(), network.Addr(0).String()} { // agents may share an address
				conn, err := websocket.Dial(t.Context(), dialer, "ws"+strings.TrimPrefix(door.URL, "http")+"/arc", websocket.Options{
					Header: http.Header{"Authorization": {"Bearer " + token}, "X-Forwarded-For": {from}},
				})
				if err != nil {
					t.Fatalf("the newcomer connects from %s: %v", from, err)
				}
				defer conn.Drain()
				defer conn.Close(websocket.CodeNormal, "")
			}
			known.quiet()
			door.CheckMemory()
		})
	}
}
