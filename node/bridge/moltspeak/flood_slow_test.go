//go:build slow && !race

package moltspeak

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestEndpointUnderAFlood: an attacker with all addresses of a network registers without end and invents names that
// cause lookups. A newcomer, known peers and many agents at one hosting provider are still served.
func TestEndpointUnderAFlood(t *testing.T) {
	for _, network := range apitest.Networks {
		t.Run(network.Name, func(t *testing.T) {
			r, _ := newTestRig(t, func(c *Config) {
				c.Registry, c.Directories = true, []Directory{cards{listedCard}}
				c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 60}).Addresses()
			})
			r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`))
			door := apitest.NewDoor(t, r.b.Mount)
			headers := []string{"Content-Type", "application/json", "Authorization", "Bearer " + mine}
			ping := func(name string, keyless bool) string {
				d := r.draft(name, message.OpPing, `{"nonce":1}`)
				if keyless {
					d.From.Key = ""
				}
				return string(r.sign(name, d))
			}
			const endpoint, agents, messages = "https://x.example", "/api/v1/agents", "/moltspeak/v0.1/message"
			limited := make(map[string]int)
			for i := range 1500 {
				name := fmt.Sprintf("am_evil%d@agentmesh", i)
				attacks := map[string]string{agents: register(name, endpoint)}
				if i < 120 {
					attacks["signed"], attacks["unsigned"] = ping(name, false), ping(name, true)
				}
				for attack, body := range attacks {
					path := messages
					if attack == agents {
						path = agents
					}
					if status, _ := door.Call(network.Addr(i), "POST", path, body, headers...); status == http.StatusTooManyRequests {
						limited[attack]++
					}
				}
			}
			if len(limited) != 3 {
				t.Errorf("the attacker was limited in %v, want all three attacks", limited)
			}
			serve := func(from netip.Addr, name string) {
				door.Dial(http.StatusCreated, from, "POST", agents, register(name, endpoint), headers...)
				door.Dial(http.StatusOK, from, "POST", messages, ping(name, false), headers...)
			}
			serve(apitest.Newcomer, "am_newcomer@agentmesh")
			door.Dial(http.StatusUnauthorized, apitest.Newcomer, "POST", messages, ping("am_late@agentmesh", true), headers...)
			for i := range 8 {
				serve(apitest.HostedAddr(i), fmt.Sprintf("am_hosted%d@agentmesh", i))
			}
			door.Dial(http.StatusOK, apitest.HostedAddr(9), "POST", messages, ping(cat, false), headers...)
			door.CheckMemory()
		})
	}
}
