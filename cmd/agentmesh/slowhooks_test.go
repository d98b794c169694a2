//go:build slow

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestSlowHooks (THREATS 45): while the program hangs over eight messages of one peer, or of one stranger, serve answers
// other peers, other strangers, MESS and A2A callers at once.
func TestSlowHooks(t *testing.T) {
	for _, slow := range []string{"friend", "stranger"} {
		t.Run(slow, func(t *testing.T) {
			t.Parallel()
			c := newCrash(t)
			hook := filepath.Join(t.TempDir(), "hook")
			script := "#!/bin/sh\nin=$(cat)\ncase $in in *slowly*) exec sleep 60;; esac\n" +
				`echo '{"payload":{"action":"deliver","message":{"body":"ok"}}}'` + "\n"
			if err := os.WriteFile(hook, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			keys := map[string]*signing.PrivateKey{"friend": c.sender}
			for _, name := range []string{"another peer", "stranger", "another stranger"} {
				key, err := signing.GenerateEd25519()
				if err != nil {
					t.Fatal(err)
				}
				keys[name] = key
			}
			c.serve("--set=access.mode=open", fmt.Sprintf("--set=access.allow=[%s, %s]", keys["friend"].Public().AgentID(), keys["another peer"].Public().AgentID()),
				"--set=mess.serve=on", "--set=a2a.serve=on", "--set=hooks=[{intent: mesh.message, exec: ['"+hook+"']}]")
			for _, key := range keys {
				credential := client.NewCredential() // strangers are told apart by it
				if _, _, err := c.directory().Register(t.Context(), loadCard(key, c.endpoint.URL), credential, key); err != nil {
					t.Fatal(err)
				}
			}
			send := func(from string, intent wire.Intent, payload string) (int, string) {
				key := keys[from]
				v, err := wire.Parse([]byte(payload))
				if err != nil {
					t.Error(err)
					return 0, ""
				}
				signed, err := key.SignValue(wire.Draft{
					ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: key.Public().AgentID(), To: c.server.info.AgentID,
					Time: time.Now(), Intent: intent, Payload: v,
				}.Tree())
				if err != nil {
					t.Error(err)
					return 0, ""
				}
				status, answer, err := c.post(t.Context(), signed.JSON())
				if err != nil {
					t.Error(err)
				}
				return status, string(answer)
			}
			raw, err := c.owner.Call(t.Context(), "POST", "a2a/tokens/ci", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			token, err := daemon.Decode[a2a.Token](raw)
			if err != nil {
				t.Fatal(err)
			}
			caller := a2aCaller{t, strings.TrimSuffix(c.server.info.Directory, "/v1") + "/a2a/v1", token.Token}

			var hung sync.WaitGroup
			defer hung.Wait()
			for range 8 {
				hung.Go(func() { send(slow, wire.Deliver, `{"action":"deliver","message":{"body":"slowly"}}`) })
			}
			<-time.After(2 * time.Second) // the programs hang
			const text = `{"action":"deliver","message":{"body":"hi"}}`
			for _, tt := range []struct {
				name string
				send func() (int, string)
				want string
			}{
				{"another peer", func() (int, string) { return send("another peer", wire.Deliver, text) }, `"ok"`},
				{"another stranger", func() (int, string) { return send("another stranger", wire.Deliver, text) }, `"ok"`},
				{"mess", func() (int, string) {
					return send("another peer", "com.github.teaguesterling.mess.request", `{"action":"request","mess":[{"request":{"intent":"water the plants"}}]}`)
				}, `"ack"`},
				{"a2a", func() (int, string) {
					task, text := caller.do("POST", "/message:send", a2aMessage("m1", "hi", false))
					if task.Status.State != "TASK_STATE_COMPLETED" {
						return 0, text
					}
					return http.StatusOK, text
				}, `"ok"`},
			} {
				began := time.Now()
				status, answer := tt.send()
				took := time.Since(began)
				t.Logf("%s was answered after %v", tt.name, took)
				if status != http.StatusOK || !strings.Contains(answer, tt.want) || took > 5*time.Second { // with the fault, after 20 s
					t.Errorf("%s after %v: %d %s", tt.name, took, status, answer)
				}
			}
		})
	}
}
