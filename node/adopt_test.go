package node_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// withEndpoint sets the endpoint on the node's card.
func withEndpoint(t *testing.T, cfg *node.Config, endpoint string) {
	t.Helper()
	card, err := wire.ParseCard(cfg.Identity.Card.Tree.With("endpoint", wire.Text(endpoint)), wire.CardRules{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Identity.Card = card
}

// TestAdopt: a directory that assigns ids and forgot the node can be joined again if the owner approves. The node then
// has the new id everywhere, and the registration under the old id is withdrawn (AM-57).
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = "https://reference.test/v1"
		dir := t.TempDir()
		reference, own := &meshtest.Reference{}, &memoryDirectory{}
		join := func(cfg *node.Config) {
			d := client.NewDirectory(at, cfg.HTTP, client.InProcess(reference))
			cfg.Directories = append([]*client.Directory{d}, cfg.Directories...)
			withEndpoint(t, cfg, "https://lone.test/agentmesh")
		}
		n, stop := registeredNode(t, dir, join, own)
		defer stop()
		synctest.Wait()
		first := n.ID()
		if !slices.Equal(reference.IDs(), []wire.AgentID{first}) || own.cards[string(first)] == "" {
			t.Fatalf("the node is %s, listed as %v and in %v", first, reference.IDs(), own.cards)
		}

		reference.Restart()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		l := n.Registrar().Listings()[0]
		if n.ID() != first || len(reference.IDs()) != 0 || !l.Refused || !strings.Contains(l.Hint, "register --adopt --directory "+at) {
			t.Fatalf("after a restart of the directory the node is %s, listed as %v: %+v", n.ID(), reference.IDs(), l)
		}
		if _, err := n.Registrar().Adopt(t.Context(), ""); err == nil {
			t.Error("two directories may assign an id at once")
		}
		if _, err := n.Registrar().Adopt(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second := n.ID()
		if second == first || !slices.Equal(reference.IDs(), []wire.AgentID{second}) || n.Registrar().Listings()[0].State != owner.Registered {
			t.Errorf("the node is %s, listed as %v: %+v", second, reference.IDs(), n.Registrar().Listings()[0])
		}
		if own.cards[string(second)] == "" || len(own.cards) != 1 {
			t.Errorf("the other directory lists %v, want only %s", own.cards, second)
		}
		stop()
		n, stop = registeredNode(t, dir, join, own)
		defer stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n.ID() != second || len(own.cards) != 1 || len(reference.IDs()) != 1 {
			t.Errorf("after a restart the node is %s, listed as %v and in %v", n.ID(), reference.IDs(), own.cards)
		}
	})
}

// TestAdoptBesideOwnDirectory: a node that is registered under its own id in one directory joins another that assigns
// ids.
func TestAdoptBesideOwnDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, minting := &memoryDirectory{}, &memoryDirectory{assignedID: "am_0123456789abcdef"}
		n, stop := registeredNode(t, t.TempDir(), nil, own, minting)
		defer stop()
		synctest.Wait()
		first := n.ID()
		if got := listings(t, n); got != "registered pending" || own.cards[string(first)] == "" {
			t.Fatalf("listings: %s", got)
		}
		if _, err := n.Registrar().Adopt(t.Context(), "https://directory-1.test/v1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n.ID() != "am_0123456789abcdef" || listings(t, n) != "registered registered" || own.cards[string(n.ID())] == "" || len(own.cards) != 1 {
			t.Errorf("the node is %s: %s, in %v", n.ID(), listings(t, n), own.cards)
		}
	})
}

// TestAdoptForeignID: the node does not adopt an id that belongs to another key (AM-2), and leaves no registration
// under that id.
func TestAdoptForeignID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minting := &memoryDirectory{assignedID: string(meshtest.Key("victim").Public().AgentID())}
		n, stop := registeredNode(t, t.TempDir(), nil, minting)
		defer stop()
		synctest.Wait()
		first := n.ID()
		if _, err := n.Registrar().Adopt(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if l := n.Registrar().Listings()[0]; n.ID() != first || string(first) == minting.assignedID || l.State != owner.Pending || l.Error == "" {
			t.Errorf("the node is %s: %+v", n.ID(), l)
		}
		if len(minting.cards) != 0 {
			t.Errorf("the directory lists %v", minting.cards)
		}
	})
}

// TestAdoptedMailbox: the endpoint of a node that uses a mailbox changes with its id, in the directory as well.
func TestAdoptedMailbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minting := &memoryDirectory{assignedID: "am_0123456789abcdef"}
		var old wire.AgentID
		n, stop := registeredNode(t, t.TempDir(), func(cfg *node.Config) {
			old = cfg.Identity.Card.ID
			withEndpoint(t, cfg, "https://relay.test/v1/mailbox/"+string(old))
		}, minting)
		defer stop()
		synctest.Wait()
		if want := "https://relay.test/v1/mailbox/am_0123456789abcdef"; n.Card().Endpoint != want {
			t.Errorf("the endpoint is %s, want %s", n.Card().Endpoint, want)
		}
		if got := minting.log(); len(got) != 2 || got[1] != "PUT 200" {
			t.Errorf("the directory got %v, want the card with the new endpoint", got)
		}
	})
}
