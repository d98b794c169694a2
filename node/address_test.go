package node_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// oneLink is a transport with one link.
type oneLink struct{}

func (oneLink) Deliver(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{Queued: true}, nil
}

func (oneLink) Links() []bridge.LinkStatus { return []bridge.LinkStatus{{Name: "near"}} }

// TestAddressLeadsNowhere: a message to a link that does not exist is refused and stores nothing. Earlier it was
// accepted, and then failed.
func TestAddressLeadsNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Node("chris", open)
		chris.Connect(bridge.Kind{Name: "toy"}, oneLink{})
		chris.Start()
		send := func(address string) (owner.Sent, error) {
			a, err := bridge.ParseAddress(address)
			if err != nil {
				t.Fatal(err)
			}
			out := outgoing(t, a.Pseudonym(), wire.Deliver, hello)
			out.Address = address
			return chris.Send(t.Context(), out, 10*time.Second)
		}
		before := state(t, chris)
		_, err := send("toy:far/somebody")
		if refused, _ := errors.AsType[*wire.Error](err); refused == nil || refused.Status != http.StatusBadRequest || refused.Message != "there is no toy link far; configured: near" {
			t.Errorf("to a missing link: %v", err)
		}
		if after := state(t, chris); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
		if sent, err := send("toy:near/somebody"); err != nil || sent.State != owner.SendDelivered {
			t.Errorf("to a link: %+v, %v", sent, err)
		}
	})
}
