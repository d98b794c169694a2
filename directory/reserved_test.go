package directory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// keyCard is a card with the id that is derived from one key, and with another key.
func keyCard(id, key *signing.PrivateKey) wire.Value {
	return testCard(string(id.Public().AgentID()), text("public_key", key.PublicText()))
}

// withChain adds a key chain to a card.
func withChain(t *testing.T, card wire.Value, keys ...*signing.PrivateKey) wire.Value {
	t.Helper()
	chain := ""
	for i := range keys[1:] {
		var err error
		if chain, err = keys[i].ExtendKeyChain(keys[0].Public().AgentID(), chain, keys[i+1], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return card.With("metadata", wire.Obj(text(wire.MetaKeyChain, chain)))
}

// TestDerivedIDIsReserved: the first registration of a derived id needs the key that the id is derived from, or a chain
// from that key to the card's key (AM-2, THREATS 34). A proof by another key is not enough.
func TestDerivedIDIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b, c, mallory := testKey("a"), testKey("b"), testKey("c"), testKey("mallory")
		post := func(card wire.Value, by *signing.PrivateKey, token string) (int, string) {
			signed := proof(by, "POST", "/v1/agents", testBase, time.Now(), card)
			got := w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(token), wire.HeaderKeyProof, signed)...)
			return got.Code, got.Body.String()
		}
		const refused = `{"error":{"code":"INVALID_MESSAGE","message":"this id is reserved for the key it is derived from","retry":false}}`
		for name, card := range map[string]wire.Value{
			"another key":                    keyCard(a, mallory),
			"a chain to another key":         withChain(t, keyCard(a, mallory), a, b),
			"a chain from another key":       withChain(t, keyCard(a, mallory), b, mallory),
			"a chain that the squatter made": withChain(t, keyCard(a, mallory), mallory, a, mallory),
		} {
			if code, body := post(card, mallory, bob); code != 409 || body != refused {
				t.Errorf("%s = %d %s", name, code, body)
			}
		}
		if code, body := post(keyCard(a, a), a, alice); code != 201 {
			t.Errorf("its key = %d %s", code, body)
		}
		if code, body := post(withChain(t, keyCard(b, c), b, c), c, alice); code != 201 {
			t.Errorf("with a chain = %d %s", code, body)
		}
		for _, id := range []wire.AgentID{a.Public().AgentID(), b.Public().AgentID()} {
			if got := w.record(string(id)).Verification.ID; got != "derived" {
				t.Errorf("%s is shown as %s", id, got)
			}
		}
	})
}

// TestReservedIDKeepsToRotation: a registered card may change its key under AM-60. Its id is then shown as derived if
// the card has a chain, and as opaque otherwise (AM-61). Nobody else gets the id while it is reserved.
func TestReservedIDKeepsToRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b, mallory := testKey("a"), testKey("b"), testKey("mallory")
		id := string(a.Public().AgentID())
		w.register(alice, keyCard(a, a))
		for _, step := range []struct {
			card wire.Value
			want string
		}{{keyCard(a, b), "opaque"}, {withChain(t, keyCard(a, b), a, b), "derived"}, {keyCard(a, b), "opaque"}, {keyCard(a, a), "derived"}} {
			key := b
			if step.card.GetStr("public_key") == a.PublicText() {
				key = a
			}
			signed := proof(key, "PUT", "/v1/agents/"+id, testBase, time.Now(), step.card)
			want(t, w.do("PUT", "/v1/agents/"+id, string(step.card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, signed)...), 200, "")
			if got := w.record(id).Verification.ID; got != step.want {
				t.Errorf("id = %q, want %q", got, step.want)
			}
		}
		time.Sleep(lifetime + reservation + time.Hour)
		want(t, w.do("POST", "/v1/agents", string(keyCard(a, mallory).JSON()), withBearer(bob)...), 409, "INVALID_MESSAGE")
		want(t, w.do("POST", "/v1/agents", string(keyCard(a, a).JSON()), withBearer(bob)...), 201, "")
	})
}

// TestSquattedCardOfBefore: a card that an earlier version accepted although its id belongs to another key can still be
// read, renewed by PUT and POST, handed over and imported. It is shown as opaque.
func TestSquattedCardOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, mallory := testKey("a"), testKey("mallory")
		id, tree := string(a.Public().AgentID()), keyCard(a, mallory)
		put := func(w *world) {
			c, err := w.reg.rules.CheckCard(tree.JSON(), "", false, wire.Now())
			if err != nil {
				t.Fatal(err)
			}
			row := newRow(c, credential.HashOf(alice), listing.Meta{Current: wire.KeyChange{Since: wire.Now()}}, lifetime, wire.Now())
			if _, err := w.reg.cards.Put(t.Context(), store.PutCard{Card: row, IfRev: store.Absent, Now: wire.Now()}); err != nil {
				t.Fatal(err)
			}
		}
		put(w)
		want(t, w.do("GET", "/v1/agents/"+id, ""), 200, "")
		want(t, w.do("PUT", "/v1/agents/"+id, "", withBearer(alice)...), 200, "")
		want(t, w.do("POST", "/v1/agents", string(tree.JSON()), withBearer(alice)...), 201, "")
		if err := w.reg.HandOver(t.Context(), wire.AgentID(id), "asked", "cli"); err != nil {
			t.Fatal(err)
		}
		signed := proof(mallory, "POST", "/v1/agents", testBase, time.Now(), tree)
		want(t, w.do("POST", "/v1/agents", string(tree.JSON()), append(withBearer(bob), wire.HeaderKeyProof, signed)...), 201, "")
		if got := w.record(id).Verification.ID; got != "opaque" {
			t.Errorf("id = %q, want opaque", got)
		}
		page, err := w.reg.Export(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		other := newWorld(t)
		done, err := other.reg.Import(t.Context(), page.Cards, "moved", "cli")
		if err != nil || done.Added != 1 || other.record(id).Verification.ID != "opaque" {
			t.Errorf("imported %+v, %v", done, err)
		}
	})
}
