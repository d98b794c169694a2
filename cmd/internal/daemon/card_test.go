package daemon

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestCardSaysWhatTheOwnerSaid: the card publishes nothing about the person that the owner did not configure for it,
// and no list of other agents (AM-4, AM-6).
func TestCardSaysWhatTheOwnerSaid(t *testing.T) {
	key, err := signing.GenerateEd25519()
	if err != nil {
		t.Fatal(err)
	}
	age, err := datadir.GenerateKey(string(signing.KindAge))
	if err != nil {
		t.Fatal(err)
	}
	build := func(change func(*config.Config)) wire.Value {
		t.Helper()
		c := config.Default()
		c.Access.Allow, c.Access.Block = []string{"am_friend"}, []string{"am_foe"}
		change(&c)
		card, err := buildCard(c, datadir.Secrets{Key: key, Age: age, Credential: "a-credential"}, wire.Value{}, "http://127.0.0.1:3141")
		if err != nil {
			t.Fatal(err)
		}
		for _, private := range []string{"am_friend", "am_foe", "a-credential"} {
			if strings.Contains(string(card.Tree.JSON()), private) {
				t.Errorf("the card holds %s: %s", private, card.Tree.JSON())
			}
		}
		return card.Tree
	}
	if card := build(func(*config.Config) {}); card.Without("owner").Len() != card.Len() {
		t.Errorf("a card without an owner in the configuration has one: %s", card.JSON())
	}
	if card := build(func(c *config.Config) { c.Owner.Contact = "sarah@example.org" }); strings.Contains(string(card.JSON()), "sarah") {
		t.Errorf("a contact without an owner's name is published: %s", card.JSON())
	}
	owner, _ := build(func(c *config.Config) { c.Owner.Name = "Sarah" }).Get("owner")
	if got := string(owner.JSON()); got != `{"name":"Sarah"}` {
		t.Errorf("owner = %s, want the name alone", got)
	}
	owner, _ = build(func(c *config.Config) { c.Owner = config.Owner{Name: "Sarah", Contact: "sarah@example.org"} }).Get("owner")
	if owner.GetStr("contact") != "sarah@example.org" {
		t.Errorf("owner = %s, want the contact that the owner gave", owner.JSON())
	}
}

// TestLoopbackIsNotPublished: only the card of an agent that is reached only on this machine names a loopback URL.
func TestLoopbackIsNotPublished(t *testing.T) {
	const here, there = "http://127.0.0.1:3141", "https://mesh.example.org"
	for _, tc := range []struct {
		name, base, endpoint string
		change               func(*config.Config)
		want                 bool
	}{
		{"local", here, here + "/agentmesh", func(*config.Config) {}, true},
		{"public", there, there + "/agentmesh", func(c *config.Config) { c.PublicURL = there }, true},
		{"public, but not this", here, there + "/agentmesh", func(c *config.Config) { c.PublicURL = there }, false},
		{"via a relay", here, there + "/v1/mailbox/am_x", func(c *config.Config) { c.ViaRelay = there + "/v1" }, false},
		{"via a relay on this machine", here, here + "/v1/mailbox/am_x", func(c *config.Config) { c.ViaRelay = here + "/v1" }, false},
		{"behind a tunnel", here, there + "/agentmesh", func(c *config.Config) { c.Card.Endpoint = there + "/agentmesh" }, false},
		{"by name", "http://localhost:3141", there + "/agentmesh", func(c *config.Config) { c.Card.Endpoint = there + "/agentmesh" }, false},
	} {
		c := config.Default()
		tc.change(&c)
		if got := isPublishable(c, tc.base, tc.endpoint); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
