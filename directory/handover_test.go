package directory

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHandOver: after a hand-over by the operator, the owner of the key gets the card back with its mail, and nobody
// else does.
func TestHandOver(t *testing.T) { // AM-83
	const newToken = "a-fresh-credential-1"
	for name, lapse := range map[string]func(*world){
		"listed":    func(*world) {},
		"expired":   func(*world) { time.Sleep(lifetime + time.Hour) },
		"withdrawn": func(w *world) { want(t, w.do("DELETE", "/v1/agents/am_1", "", withBearer(alice)...), 204, "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: 1, PerHour: -1, PerHost: 1} })
				card := mailboxCard("am_1")
				w.register(alice, card)
				w.register(bob, testCard("am_bob"))
				lapse(w)
				post := func(by string, card wire.Value, token string) int {
					stamp := proof(testKey(by), "POST", "/v1/agents", testBase, time.Now(), card)
					return w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(token), wire.HeaderKeyProof, stamp)...).Code
				}
				if got := post("am_1", card, newToken); got != 409 {
					t.Errorf("without the operator = %d", got)
				}
				operate[orderResult](w, 200, "POST", "/directory/cards/am_1/handover", `{"reason":"asked by its owner"}`)
				if ids, _ := w.list(""); len(ids) > 2 || name == "withdrawn" && len(ids) != 1 {
					t.Errorf("listed: %v", ids)
				}
				other := card.With("public_key", wire.Text(testKey("other").PublicText()))
				for what, got := range map[string]int{
					"no proof":         w.do("POST", "/v1/agents", string(card.JSON()), withBearer(newToken)...).Code,
					"another's key":    post("other", other, newToken),
					"a proof by other": post("other", card, newToken),
				} {
					if got != 409 && got != 401 {
						t.Errorf("%s = %d", what, got)
					}
				}
				if name == "listed" {
					wantReceipt(t, w.do("POST", "/v1/mailbox/am_1", testMessage("1", "am_elsewhere", "am_1")), 202)
				}
				if got := post("am_1", card, newToken); got != 201 {
					t.Errorf("the owner of the key = %d", got)
				}
				want(t, w.do("PUT", "/v1/agents/am_1", "", withBearer(alice)...), 403, "UNAUTHORIZED")
				if mail := w.mail(newToken, "agent_id=am_1"); name == "listed" && len(mail) != 1 {
					t.Errorf("%d messages wait", len(mail))
				}
				if got := post("am_1", card, alice); got != 409 {
					t.Errorf("once more, with the old credential = %d", got)
				}
			})
		})
	}
}

// TestHandOverOfNobody: a hand-over needs a card and a reason, and the feed shows no change of the card.
func TestHandOverOfNobody(t *testing.T) {
	w := newWorld(t)
	if err := w.reg.HandOver(t.Context(), "am_none", "why", "cli"); !errors.Is(err, wire.ErrNoAgent) {
		t.Errorf("nobody's card: %v", err)
	}
	operate[struct{}](w, 400, "POST", "/directory/cards/am_none/handover", `{}`)
	w.register(alice, testCard("am_1"))
	operate[orderResult](w, 200, "POST", "/directory/cards/am_1/handover", `{"reason":"asked by its owner"}`)
	w.wantChanges("", "registered am_1") // readers of the feed learn nothing, and nothing was verified
}
