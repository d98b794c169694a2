package main

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestCardSaysWhatTheOwnerSaid is AM-4 and AM-6: nothing about the person, and no list of others, is published that
// the owner did not write for it.
func TestCardSaysWhatTheOwnerSaid(t *testing.T) {
	key, err := signing.GenerateEd25519()
	if err != nil {
		t.Fatal(err)
	}
	age, err := generate(string(signing.KindAge))
	if err != nil {
		t.Fatal(err)
	}
	build := func(change func(*Config)) wire.Value {
		t.Helper()
		c := defaultConfig()
		c.Access.Allow, c.Access.Block = []string{"am_friend"}, []string{"am_foe"}
		change(&c)
		card, err := buildCard(c, secrets{key: key, age: age, credential: "a-credential"}, wire.Value{}, "http://127.0.0.1:3141")
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
	if card := build(func(*Config) {}); card.Without("owner").Len() != card.Len() {
		t.Errorf("a card without an owner in the configuration has one: %s", card.JSON())
	}
	if card := build(func(c *Config) { c.Owner.Contact = "sarah@example.org" }); strings.Contains(string(card.JSON()), "sarah") {
		t.Errorf("a contact without an owner's name is published: %s", card.JSON())
	}
	owner, _ := build(func(c *Config) { c.Owner.Name = "Sarah" }).Get("owner")
	if got := string(owner.JSON()); got != `{"name":"Sarah"}` {
		t.Errorf("owner = %s, want the name alone", got)
	}
	owner, _ = build(func(c *Config) { c.Owner = OwnerConfig{Name: "Sarah", Contact: "sarah@example.org"} }).Get("owner")
	if owner.GetStr("contact") != "sarah@example.org" {
		t.Errorf("owner = %s, want the contact that the owner gave", owner.JSON())
	}
}
