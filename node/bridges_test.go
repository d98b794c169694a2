package node_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestAttachAccess: a foreign message is judged by the access mode of its link, or by that of the node if it came over
// no link.
func TestAttachAccess(t *testing.T) {
	for _, tt := range []struct {
		name    string
		node    acl.Mode
		access  string
		address string
		want    string // held, refused or taken
	}{
		{"allowlist under an open node", acl.Open, "allowlist", "fax:home/bob", "refused"},
		{"the default asks", acl.Open, "", "fax:home/bob", "held"},
		{"the default asks under approval", "", "", "fax:home/bob", "held"},
		{"the default is as strict as an allowlist", acl.Allowlist, "", "fax:home/bob", "refused"},
		{"approval under an allowlist", acl.Allowlist, "approval", "fax:home/bob", "held"},
		{"open under an allowlist", acl.Allowlist, "open", "fax:home/bob", "taken"},
		{"no link", acl.Open, "allowlist", "fax:in/bob", "taken"},
		{"a link of another kind", acl.Open, "allowlist", "pigeon:home/bob", "taken"},
		{"a peer with a slash", acl.Open, "allowlist", "fax:home/in/bob", "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := meshtest.New(t).Node("home", func(c *node.Config) { c.Policy.Mode = tt.node })
			if _, err := home.Attach(bridge.Kind{Name: "fax"}, []bridge.Link{{Name: "home", Policy: bridge.LinkPolicy{Access: tt.access}}}); err != nil {
				t.Fatal(err)
			}
			address, err := bridge.ParseAddress(tt.address)
			if err != nil {
				t.Fatal(err)
			}
			payload, err := wire.Parse([]byte(`{"action":"deliver","message":{"body":"hello"}}`))
			if err != nil {
				t.Fatal(err)
			}
			out, err := home.Accept(t.Context(), bridge.Inbound{
				Principal: "whatever the bridge calls it", Peer: address.Pseudonym(), Address: tt.address, Verified: bridge.VerifiedNone,
				MessageID: "msg_0123456789abcdef0123456789abcdef", ConvID: "conv_0123456789abcdef0123456789abcdef",
				Intent: wire.Deliver, Payload: payload,
			})
			got := "taken"
			switch {
			case err != nil:
				got = "refused"
			case out.Held:
				got = "held"
			}
			if got != tt.want {
				t.Errorf("the message is %s (%v), want it %s", got, err, tt.want)
			}
		})
	}
}

// TestAttachRefusesKeys: Attach refuses a policy key that the kind would ignore.
func TestAttachRefusesKeys(t *testing.T) {
	home := meshtest.New(t).Node("home", nil)
	link := bridge.Link{Name: "home", Policy: bridge.LinkPolicy{Tools: []string{"discover"}, Broadcast: true}}
	_, err := home.Attach(bridge.Kind{Name: "fax"}, []bridge.Link{link})
	goldentest.Refuses(t, "attach", err)
}

// TestBridgeDecidesNoAnswers: a bridge decides about the message that waits in a conversation, and not about an answer
// of ours that waits there, which the bridge has not shown to the owner.
func TestBridgeDecidesNoAnswers(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, hello), nil
	}, func(cfg *node.Config) { cfg.Outbound.Approve = []string{"mesh.message"} }))
	m, err := sarah.Attach(bridge.Kind{Name: "toy"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusAccepted)
	ask := theAsk(t, sarah)
	err = m.Decide(t.Context(), store.ConvKey{Peer: string(chris.ID), ID: string(d.Conversation)}, true)
	if refused, ok := errors.AsType[*wire.Error](err); !ok || refused.Status != http.StatusConflict {
		t.Errorf("Decide = %v, want a conflict", err)
	}
	if still := theAsk(t, sarah); still.ID != ask.ID {
		t.Errorf("the question about the answer was decided")
	}
}
