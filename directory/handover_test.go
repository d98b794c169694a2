package directory

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHandOver: with the operator's word the owner of the key has the card again, with its mail; nobody else has it.
func TestHandOver(t *testing.T) { // AM-83
	const fresh = "a-fresh-credential-1"
	for name, lapse := range map[string]func(*world){
		"listed":    func(*world) {},
		"expired":   func(*world) { time.Sleep(lifetime + time.Hour) },
		"withdrawn": func(w *world) { want(t, w.ask("DELETE", "/v1/agents/am_1", "", as(alice)...), 204, "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: 1, PerHour: -1, PerHost: 1} })
				card := boxCard("am_1")
				w.register(alice, card)
				w.register(bob, testCard("am_bob"))
				lapse(w)
				post := func(by string, card wire.Value, token string) int {
					stamp := proof(testKey(by), "POST", "/v1/agents", testBase, time.Now(), card)
					return w.ask("POST", "/v1/agents", string(card.JSON()), append(as(token), wire.HeaderKeyProof, stamp)...).Code
				}
				if got := post("am_1", card, fresh); got != 409 {
					t.Errorf("without the operator = %d", got)
				}
				operate[Ordered](w, 200, "POST", "/directory/cards/am_1/handover", `{"reason":"asked by its owner"}`)
				if ids, _ := w.list(""); len(ids) > 2 || name == "withdrawn" && len(ids) != 1 {
					t.Errorf("listed: %v", ids)
				}
				other := card.With("public_key", wire.Text(testKey("other").PublicText()))
				for what, got := range map[string]int{
					"no proof":         w.ask("POST", "/v1/agents", string(card.JSON()), as(fresh)...).Code,
					"another's key":    post("other", other, fresh),
					"a proof by other": post("other", card, fresh),
				} {
					if got != 409 && got != 401 {
						t.Errorf("%s = %d", what, got)
					}
				}
				if name == "listed" {
					receipt(t, w.ask("POST", "/v1/mailbox/am_1", letter("1", "am_elsewhere", "am_1")), 202)
				}
				if got := post("am_1", card, fresh); got != 201 {
					t.Errorf("the owner of the key = %d", got)
				}
				want(t, w.ask("PUT", "/v1/agents/am_1", "", as(alice)...), 403, "UNAUTHORIZED")
				if mail := w.mail(fresh, "agent_id=am_1"); name == "listed" && len(mail) != 1 {
					t.Errorf("%d messages wait", len(mail))
				}
				if got := post("am_1", card, alice); got != 409 {
					t.Errorf("once more, with the old credential = %d", got)
				}
			})
		})
	}
}

func TestHandOverOfNobody(t *testing.T) {
	w := newWorld(t)
	if err := w.reg.HandOver(t.Context(), "am_none", "why", "cli"); !errors.Is(err, wire.ErrNoAgent) {
		t.Errorf("nobody's card: %v", err)
	}
	operate[struct{}](w, 400, "POST", "/directory/cards/am_none/handover", `{}`)
}
