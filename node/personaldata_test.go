package node_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPersonalDataOnBridges: if personal data leaves over a bridge that does not look for it, the owner gets one
// notice for the message, with the kinds of data (MS-40).
func TestPersonalDataOnBridges(t *testing.T) {
	for _, tt := range []struct {
		name    string
		screens bool
		payload string
		want    string
	}{
		{"an address", false, `{"action":"deliver","message":{"body":"write to jane.doe@example.com"}}`, "email to wire:test/ann"},
		{"none", false, `{"action":"deliver","message":{"body":"the meeting is at noon"}}`, ""},
		{"in metadata", false, `{"action":"deliver","message":{"body":"x"},"metadata":{"in_reply_to":"jane.doe@example.com"}}`, ""},
		{"a bridge that looks itself", true, `{"action":"deliver","message":{"body":"write to jane.doe@example.com"}}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var attempts atomic.Int32
				w := &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
					if attempts.Add(1) == 1 {
						return bridge.Delivered{}, &client.SendError{Retry: true}
					}
					return bridge.Delivered{}, nil
				}}
				sarah := meshtest.InMemory(t).Node("sarah", func(c *node.Config) {
					unlimited(c)
					c.PersonalData = func(v wire.Value) []string {
						if strings.Contains(string(v.JSON()), "@example.com") {
							return []string{"email"}
						}
						return nil
					}
				})
				sarah.Connect(bridge.Kind{Name: "wire", Screens: tt.screens}, w)
				sarah.Start()
				out := to("ann", "conv_1", "")
				var err error
				if out.Payload, err = wire.Parse([]byte(tt.payload)); err != nil {
					t.Fatal(err)
				}
				mustSend(t, sarah.Node, out, 0)
				time.Sleep(time.Hour)
				if n := attempts.Load(); n != 2 {
					t.Fatalf("%d attempts, want 2", n)
				}
				list, _, err := sarah.Notices.List(t.Context(), "", 10, time.Now())
				var told []string
				for _, n := range list {
					told = append(told, n.Text)
				}
				if err != nil || strings.Join(told, ", ") != tt.want {
					t.Errorf("the owner's notices are %q, %v, want %q", told, err, tt.want)
				}
			})
		})
	}
}
