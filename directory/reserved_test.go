package directory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
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
