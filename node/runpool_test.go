package node_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestStrangersLeaveAHook: even if many strangers keep hooks busy for as long as possible, a message of a known peer is
// answered while theirs wait.
func TestStrangersLeaveAHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		ann := mesh.Stranger("ann")
		var atWork, most atomic.Int32
		sarah := mesh.Node("sarah", configureHook(func(ctx context.Context, c hook.Call) (hook.Answer, error) {
			if c.Sender.AgentID != ann.ID {
				most.Store(max(most.Load(), atWork.Add(1)))
				time.Sleep(4 * time.Minute)
				atWork.Add(-1)
			}
			return says(t, `{"action":"confirmed"}`), nil
		}, unlimited, func(cfg *node.Config) { cfg.Policy.Allow = []string{string(ann.ID)} }))
		sarah.Start()
		for i := range 5 {
			stranger := mesh.Stranger(fmt.Sprint("stranger", i))
			for range 4 {
				must(t, sarah.Post(stranger.Sign(stranger.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
			}
		}
		if a := sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))); a.Status != http.StatusOK {
			t.Errorf("message of a known peer: %d %s", a.Status, a.Body)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if most.Load() != 3 || atWork.Load() != 0 {
			t.Errorf("strangers had %d hooks at once, want 3, and %d are still running", most.Load(), atWork.Load())
		}
	})
}

// faxBridge is a bridge whose own handler answers its intent. The link "slow" does not.
type faxBridge struct{}

const faxIntent wire.Intent = "org.example.fax"

func (faxBridge) Deliver(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{}, nil
}

func (faxBridge) Handle(ctx context.Context, c bridge.Call) (bridge.Reply, error) {
	if strings.HasPrefix(c.Address, "fax:slow/") {
		<-ctx.Done()
	}
	payload := wire.Obj(wire.TextField("action", "printed"))
	return bridge.Reply{Payload: &payload}, nil
}

// TestOneSourceHoldsNobodyUp (THREATS 45): hooks of one source that hang, or a link that does, delay no known peer, no
// stranger, no foreign caller and no bridge; and of one stranger's address only one hook runs, whatever its ids.
func TestOneSourceHoldsNobodyUp(t *testing.T) {
	for _, slow := range []string{"friend", "stranger", "address", "link", "friend and stranger"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				ann, chris, bob, dora := mesh.Stranger("ann"), mesh.Stranger("chris"), mesh.Stranger("bob"), mesh.Stranger("dora")
				sarah := mesh.Node("sarah", configureHook(func(ctx context.Context, c hook.Call) (hook.Answer, error) {
					if string(c.Payload) == `{"action":"deliver","message":{"body":"slow"}}` {
						<-ctx.Done()
						return hook.Answer{}, ctx.Err()
					}
					return says(t, `{"action":"deliver","message":{"body":"ok"}}`), nil
				}, unlimited, func(cfg *node.Config) {
					cfg.Policy.Allow = []string{string(ann.ID), string(bob.ID)}
					cfg.SyncDeadline = time.Second
				}))
				kind := bridge.Kind{Name: "fax", Intents: string(faxIntent), Native: true}
				if _, err := sarah.Attach(kind, []bridge.Link{{Name: "slow", Policy: bridge.LinkPolicy{Access: string(acl.Open)}}, {Name: "quick", Policy: bridge.LinkPolicy{Access: string(acl.Open)}}}); err != nil {
					t.Fatal(err)
				}
				sarah.Connect(kind, faxBridge{})
				sarah.Start()

				native := func(from *meshtest.Stranger, intent wire.Intent, payload, addr string) (int, error) {
					out, err := sarah.ReceiveFrom(t.Context(), from.Sign(from.Draft(sarah.ID(), intent, payload)), []rate.Source{{Key: addr, Width: 1}})
					return out.Status, err
				}
				foreign := func(address string, intent wire.Intent, payload string) (int, error) {
					a, err := bridge.ParseAddress(address)
					if err != nil {
						t.Fatal(err)
					}
					v, err := wire.Parse([]byte(payload))
					if err != nil {
						t.Fatal(err)
					}
					out, err := sarah.Accept(t.Context(), bridge.Inbound{
						Principal: address, Peer: a.Pseudonym(), Address: address, Verified: bridge.VerifiedNone,
						MessageID: wire.NewMessageID(), ConvID: wire.NewConversationID(), Intent: intent, Payload: v,
					})
					return out.Status, err
				}
				const slowText, quickText, fax = `{"action":"deliver","message":{"body":"slow"}}`, `{"action":"deliver","message":{"body":"quick"}}`, `{"action":"print"}`
				for i := range 8 {
					var err error
					switch slow {
					case "friend":
						_, err = native(ann, wire.Deliver, slowText, "192.0.2.1")
					case "stranger":
						_, err = native(chris, wire.Deliver, slowText, "192.0.2.1")
					case "address":
						_, err = native(mesh.Stranger(fmt.Sprint("id", i)), wire.Deliver, slowText, "192.0.2.1")
					case "link":
						_, err = foreign(fmt.Sprint("fax:slow/", i), faxIntent, fax)
					case "friend and stranger":
						_, err = native([]*meshtest.Stranger{ann, chris}[i%2], wire.Deliver, slowText, "192.0.2.1")
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				for name, send := range map[string]func() (int, error){
					"known peer":      func() (int, error) { return native(bob, wire.Deliver, quickText, "192.0.2.2") },
					"stranger":        func() (int, error) { return native(dora, wire.Deliver, quickText, "192.0.2.3") },
					"foreign caller":  func() (int, error) { return foreign("fax:quick/carl", wire.Deliver, quickText) },
					"bridge, native":  func() (int, error) { return native(bob, faxIntent, fax, "192.0.2.2") },
					"bridge, by link": func() (int, error) { return foreign("fax:quick/carl", faxIntent, fax) },
				} {
					if slow == "friend and stranger" && (name == "stranger" || name == "foreign caller") {
						continue // two sources may take all places but the last, which is for known peers
					}
					if status, err := send(); status != http.StatusOK || err != nil {
						t.Errorf("%s: %d, %v", name, status, err)
					}
				}
				time.Sleep(time.Hour)
				synctest.Wait()
			})
		})
	}
}
