package directory

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/node/wire"
)

func inviteOnly(c *Config) { c.Mode = Invite }

// issue makes an invite code over the owner API.
func (w *world) issue(body string) issuedToken {
	w.t.Helper()
	got := send(w.owner.Handler(), "POST", "/owner/tokens", body)
	var t issuedToken
	if err := json.Unmarshal(got.Body.Bytes(), &t); err != nil || got.Code != http.StatusOK {
		w.t.Fatalf("issue = %d %s", got.Code, got.Body)
	}
	return t
}

func TestInvite(t *testing.T) { // AM-56
	w := newWorld(t, inviteOnly)
	post := func(id, token, invite string) int {
		header := withBearer(token)
		if invite != "" {
			header = append(header, wire.HeaderInvite, invite)
		}
		return w.do("POST", "/v1/agents", string(testCard(id).JSON()), header...).Code
	}
	if got := post("am_a", alice, ""); got != 403 {
		t.Errorf("without an invite = %d, want 403", got)
	}
	code := w.issue(`{"label":"for Alice"}`).Code
	if got := post("am_a", alice, code); got != 201 {
		t.Errorf("with the invite beside a credential = %d, want 201", got)
	}
	if got := post("am_b", alice, code); got != 403 {
		t.Errorf("the invite again = %d, want 403", got)
	}
	if got := post("am_a", alice, ""); got != 201 {
		t.Errorf("a renewal needs no invite: %d, want 201", got)
	}
	want(t, w.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...), 200, "")

	code = w.issue("").Code
	if got := post("am_c", code, ""); got != 201 {
		t.Errorf("the invite as the bearer = %d, want 201", got)
	}
	want(t, w.do("PUT", "/v1/agents/am_c", "", withBearer(code)...), 200, "") // it became the credential
	if got := post("am_d", code, ""); got != 403 {
		t.Errorf("it brings in another card: %d, want 403", got)
	}

	for invite, text := range map[string]string{"": "send an invite code in the header AgentMesh-Invite", "WRONG": "unknown, used or expired", code: "unknown, used or expired"} {
		rec := w.do("POST", "/v1/agents", string(testCard("am_e").JSON()), append(withBearer(alice), wire.HeaderInvite, invite)...)
		if want(t, rec, 403, "UNAUTHORIZED"); !strings.Contains(rec.Body.String(), text) {
			t.Errorf("with the code %q: %s", invite, rec.Body)
		}
	}
}

// TestInviteFromABarredAddress: wrong invites bar an address from further wrong ones. A client at the same address with
// a valid invite can still register.
func TestInviteFromABarredAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, inviteOnly)
		code := w.issue("").Code
		post := func(id, invite string) int {
			return w.do("POST", "/v1/agents", string(testCard(id).JSON()), append(withBearer(bob), wire.HeaderInvite, invite)...).Code
		}
		for i := range admission.MaxFailures {
			if got := post("am_a", fmt.Sprint("WRONG", i)); got != 403 {
				t.Fatalf("wrong invite %d = %d, want 403", i, got)
			}
		}
		if got := post("am_a", "WRONG"); got != 429 {
			t.Errorf("one wrong invite more = %d, want 429", got)
		}
		if got := post("am_a", code); got != 201 {
			t.Errorf("the right invite from the same address = %d, want 201", got)
		}
	})
}

func TestInviteIsNotSpentInVain(t *testing.T) {
	w := newWorld(t, inviteOnly, func(c *Config) { c.Quotas.PerHost = 1 })
	w.register(w.issue("").Code, testCard("am_a"))
	token := w.issue("")
	post := func(card wire.Value) int {
		return w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(bob), wire.HeaderInvite, token.Code)...).Code
	}
	full := testCard("am_b", text("endpoint", "https://am-a.example/"))
	if got := post(full); got != 429 {
		t.Errorf("over the quota = %d, want 429", got)
	}
	if got := post(testCard("am_a", text("endpoint", "https://elsewhere.example/"))); got != 409 {
		t.Errorf("a taken id = %d, want 409", got)
	}
	if got := post(testCard("am_b")); got != 201 {
		t.Errorf("after two refusals = %d, want 201", got)
	}
}

func TestInviteIsSpentOnce(t *testing.T) {
	w := newWorld(t, inviteOnly)
	code := w.issue("").Code
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			rec := w.do("POST", "/v1/agents", string(testCard(fmt.Sprint("am_", i)).JSON()), append(withBearer(alice), wire.HeaderInvite, code)...)
			mu.Lock()
			defer mu.Unlock()
			got[rec.Code]++
		})
	}
	wg.Wait()
	if got[201] != 1 || got[403] != 15 {
		t.Errorf("sixteen at once = %v, want one 201 and fifteen 403", got)
	}
}

func TestClosed(t *testing.T) { // AM-56
	db := newWorld(t)
	db.register(alice, testCard("am_a"))
	w := newWorldOver(t, db.store, func(c *Config) {
		c.Mode = Closed
		c.Operators = [][32]byte{credential.HashOf("the-operators-own")}
	})
	want(t, w.do("POST", "/v1/agents", string(testCard("am_b").JSON()), withBearer(bob)...), 403, "UNAUTHORIZED")
	want(t, w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(alice)...), 201, "")
	want(t, w.do("POST", "/v1/agents", string(testCard("am_op").JSON()), withBearer("the-operators-own")...), 201, "")
}

func TestTokenRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, inviteOnly)
		token := w.issue(`{"label":"one","days":1}`)
		other := w.issue(`{"label":"two"}`)
		if len(token.Code) < 26 || token.ID == "" || strings.Contains(token.ID, token.Code) {
			t.Errorf("issued %+v", token)
		}
		if !token.Expires.Equal(time.Now().Add(24*time.Hour)) || !other.Expires.Equal(time.Now().Add(7*24*time.Hour)) {
			t.Errorf("expiries: %v, %v", token.Expires, other.Expires)
		}
		w.register(other.Code, testCard("am_a"))
		list := func() (l tokenList) {
			got := send(w.owner.Handler(), "GET", "/owner/tokens?limit=100", "")
			if strings.Contains(got.Body.String(), token.Code) {
				t.Error("the list shows a code")
			}
			if err := json.Unmarshal(got.Body.Bytes(), &l); err != nil {
				t.Fatal(err)
			}
			return l
		}
		if l := list(); len(l.Tokens) != 2 {
			t.Fatalf("list = %+v", l)
		}
		for _, tok := range list().Tokens {
			if used := tok.ID == other.ID; (tok.UsedBy == "am_a") != used || tok.Used.IsZero() == used {
				t.Errorf("token %+v", tok)
			}
		}
		if got := send(w.owner.Handler(), "DELETE", "/owner/tokens/"+token.ID, ""); got.Code != 204 {
			t.Errorf("revoke = %d %s", got.Code, got.Body)
		}
		if got := send(w.owner.Handler(), "DELETE", "/owner/tokens/"+token.ID, ""); got.Code != 404 {
			t.Errorf("revoke again = %d", got.Code)
		}
		if got := send(w.owner.Handler(), "DELETE", "/owner/tokens/"+strings.Repeat("x", 600), ""); got.Code != 404 {
			t.Errorf("revoke nonsense = %d", got.Code)
		}
		want(t, w.do("POST", "/v1/agents", string(testCard("am_b").JSON()), append(withBearer(bob), wire.HeaderInvite, token.Code)...), 403, "")
		late := w.issue(`{"days":1}`)
		time.Sleep(24 * time.Hour)
		want(t, w.do("POST", "/v1/agents", string(testCard("am_b").JSON()), append(withBearer(bob), wire.HeaderInvite, late.Code)...), 403, "")
		for _, bad := range []string{`{"days":366}`, `{"days":-1}`, `{"label":"` + strings.Repeat("x", 129) + `"}`, `{"days":1,"days":2}`, `[]`} {
			if got := send(w.owner.Handler(), "POST", "/owner/tokens", bad); got.Code != 400 {
				t.Errorf("issue %s = %d, want 400", bad, got.Code)
			}
		}
		// The public listener does not have these routes.
		want(t, w.do("GET", "/owner/tokens", ""), 404, "INVALID_MESSAGE")
	})
}

// TestInviteForSeveral: a code for several cards never becomes a credential that all of them share.
func TestInviteForSeveral(t *testing.T) { // AM-56
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, inviteOnly)
		issued := w.issue(fmt.Sprintf(`{"uses":2,"expires_at":%q}`, wire.FormatTime(time.Now().Add(time.Hour))))
		if issued.Uses != 2 || time.Until(issued.Expires) != time.Hour {
			t.Errorf("issued %+v", issued)
		}
		post := func(id, bearer, invite string) int {
			return w.do("POST", "/v1/agents", string(testCard(id).JSON()), append(withBearer(bearer), wire.HeaderInvite, invite)...).Code
		}
		if got := w.do("POST", "/v1/agents", string(testCard("am_0").JSON()), withBearer(issued.Code)...); got.Code != 403 || !strings.Contains(got.Body.String(), wire.HeaderInvite) {
			t.Errorf("the code as bearer = %d %s", got.Code, got.Body)
		}
		for i, want := range []int{201, 201, 403} {
			if got := post(fmt.Sprintf("am_%d", i), fmt.Sprintf("credential-of-owner-%d", i), issued.Code); got != want {
				t.Errorf("use %d = %d, want %d", i+1, got, want)
			}
		}
		tokens, _, err := w.reg.gate.Tokens(t.Context(), "", 10)
		if err != nil || len(tokens) != 1 || tokens[0].Count != 2 || tokens[0].UsedBy != "am_1" || tokens[0].Left() != 0 {
			t.Errorf("tokens %+v, %v", tokens, err)
		}
		late := w.issue(fmt.Sprintf(`{"uses":2,"expires_at":%q}`, wire.FormatTime(time.Now().Add(time.Hour))))
		time.Sleep(time.Hour)
		if got := post("am_9", alice, late.Code); got != 403 {
			t.Errorf("after its end = %d", got)
		}
		for _, bad := range []string{`{"uses":-1}`, `{"uses":1001}`, `{"expires_at":"1999-01-01T00:00:00Z","uses":1}`, `{"days":366}`} {
			if got := send(w.owner.Handler(), "POST", "/owner/tokens", bad); got.Code != 400 {
				t.Errorf("token %s = %d", bad, got.Code)
			}
		}
	})
}
