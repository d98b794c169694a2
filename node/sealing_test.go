package node_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSealingRules: which messages are sealed, depending on the owner's rule, the sender's choice, and whether the
// recipient can open them. A message that must be sealed but cannot be does not leave.
func TestSealingRules(t *testing.T) {
	mesh := meshtest.New(t)
	able := mesh.Node("able", open)
	unable := mesh.Node("unable", func(cfg *node.Config) {
		open(cfg)
		cfg.Identity.Card = meshtest.Card(t, "unable", cfg.Identity.Card.Endpoint)
	})
	for i, c := range []struct {
		rule   node.Sealing
		choice owner.SealChoice
		to     *meshtest.Member
		sealed bool
		err    error
	}{
		{"", "", able, false, nil},
		{node.SealOff, owner.Sealed, able, true, nil},
		{node.SealOff, owner.Sealed, unable, false, node.ErrCannotSeal},
		{node.SealPrefer, "", able, true, nil},
		{node.SealPrefer, "", unable, false, nil},
		{node.SealPrefer, owner.Unsealed, able, false, nil},
		{node.SealRequire, "", able, true, nil},
		{node.SealRequire, "", unable, false, node.ErrCannotSeal},
		{node.SealRequire, owner.Unsealed, able, false, node.ErrMustSeal},
	} {
		chris := mesh.Node("chris-"+string(rune('a'+i)), func(cfg *node.Config) { cfg.Outbound.Seal = c.rule })
		out := outgoing(t, c.to.ID(), wire.Deliver, secretBody)
		out.Seal, out.Conv = c.choice, "conv_rule"
		sent, err := chris.Send(t.Context(), out, 30*time.Second)
		if !errors.Is(err, c.err) || err == nil && sent.State != owner.SendDelivered {
			t.Errorf("%s, %q to %s: %+v, %v, want %v", c.rule, c.choice, c.to.Name, sent, err, c.err)
		}
		if err != nil {
			if got := state(t, chris); got != "0 items, 0 conversations, 0 asks" {
				t.Errorf("%s, %q to %s left %s", c.rule, c.choice, c.to.Name, got)
			}
			continue
		}
		if said, _ := conversations.ReadContent(transcriptOf(t, chris, c.to.ID(), "conv_rule")[0]); said.Sealed != c.sealed {
			t.Errorf("%s, %q to %s: sealed %v", c.rule, c.choice, c.to.Name, said.Sealed)
		}
	}
	big := outgoing(t, able.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"`+strings.Repeat("x", 200<<10)+`"}}`)
	if _, err := able.Send(t.Context(), node.Outgoing{To: unable.ID(), Intent: big.Intent, Payload: big.Payload}, 0); err != nil {
		t.Errorf("200 KiB unsealed: %v", err)
	}
	if big.Seal = owner.Sealed; big.Payload.Len() > 0 {
		if _, err := unable.Send(t.Context(), big, 0); !errors.Is(err, node.ErrCannotSeal) {
			t.Errorf("200 KiB sealed: %v, want ErrCannotSeal", err)
		}
	}
	forged := outgoing(t, able.ID(), wire.Deliver, `{"action":"sealed","age":"YWdl"}`)
	if _, err := unable.Send(t.Context(), forged, 0); !errors.Is(err, wire.ErrPayload) {
		t.Errorf("an owner's own sealed payload: %v", err)
	}
}

// replacingTransport is a connection that replaces a text in every answer.
type replacingTransport struct{ from, to string }

func (s replacingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	body = bytes.ReplaceAll(body, []byte(s.from), []byte(s.to))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// TestSealedToTheDirectory: a directory that puts its own age recipient on a card could read messages sealed to it.
// Because the agent's key did not sign that card, no message that must be sealed leaves.
func TestSealedToTheDirectory(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	liar := client.NewDirectory(mesh.Directory().Base, client.NewHTTP(client.HTTPConfig{Local: true}), replacingTransport{mesh.Age("sarah").PublicText(), mesh.Age("directory").PublicText()})
	chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Directories = []*client.Directory{liar} })
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal = owner.Sealed
	if _, err := chris.Send(t.Context(), out, 30*time.Second); !errors.Is(err, node.ErrCannotSeal) {
		t.Errorf("sealed to the directory: %v, want ErrCannotSeal", err)
	}
	if got := state(t, chris); got != "0 items, 0 conversations, 0 asks" {
		t.Errorf("it left %s", got)
	}
}

// TestSealedStaysHere: neither a peer of a foreign network nor a bridge's handler gets a sealed message unsealed.
func TestSealedStaysHere(t *testing.T) {
	wires := &wireTransport{deliver: takes}
	lone := loneNode(t, t.TempDir(), wires, func(cfg *node.Config) { cfg.Outbound.Seal = node.SealRequire })
	if _, err := lone.Send(t.Context(), to("ann", "conv_1", "hello"), 0); !errors.Is(err, node.ErrCannotSeal) {
		t.Errorf("to a foreign peer: %v, want ErrCannotSeal", err)
	}
	// A sealed payload that comes from a foreign peer is not opened.
	in := to("ann", "conv_2", "hello")
	in.Payload = wire.Obj(wire.Member{Key: "action", Value: wire.Text("sealed")}, wire.Member{Key: "age", Value: wire.Text("YWdl")})
	if _, err := lone.Accept(t.Context(), inbound(in, "wire:test", in.Address)); !errors.Is(err, wire.ErrSealed) && !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("from a foreign peer: %v, want ErrSealed", err)
	}

	mesh := meshtest.New(t)
	calls := make(chan hook.Call, 1)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		answers(secretReply, calls)(cfg)
		cfg.Routes[0].Foreign = true
	})
	chris := mesh.Node("chris", open)
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal, out.Conv = owner.Sealed, "conv_bridge"
	sent := mustSend(t, chris.Node, out, 30*time.Second)
	if sent.Status != http.StatusAccepted || len(calls) != 0 {
		t.Fatalf("sent = %+v, %d calls: the bridge got it", sent, len(calls))
	}
	ask := theAsk(t, sarah)
	if !bytes.Contains(ask.Body, []byte("foreign network")) {
		t.Errorf("the question does not say why: %s", ask.Body)
	}
	if _, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	if c := <-calls; !c.Sealed || !c.Approved || string(c.Payload) != secretBody {
		t.Errorf("after the approval the bridge gets %s", c.Payload)
	}
}

// TestSealedOfStrangerStaysHere: the question about a stranger also says that its sealed message would be forwarded
// unsealed, because approving the stranger forwards it.
func TestSealedOfStrangerStaysHere(t *testing.T) {
	mesh := meshtest.New(t)
	calls := make(chan hook.Call, 1)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		answers(secretReply, calls)(cfg)
		cfg.Policy.Mode, cfg.Routes[0].Foreign = acl.Approval, true
	})
	chris := mesh.Node("chris", open)
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal = owner.Sealed
	if sent := mustSend(t, chris.Node, out, 30*time.Second); sent.Status != http.StatusAccepted || len(calls) != 0 {
		t.Fatalf("sent = %+v, %d calls: the bridge got it", sent, len(calls))
	}
	if ask := theAsk(t, sarah); !bytes.Contains(ask.Body, []byte(`"hold":"sender"`)) || !bytes.Contains(ask.Body, []byte("foreign network")) {
		t.Errorf("the question does not say that the message would be forwarded unsealed: %s", ask.Body)
	}
}
