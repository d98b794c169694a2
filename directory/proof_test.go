package directory

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// record returns the public record of a card.
func (w *world) record(id string) wire.CardRecord {
	w.t.Helper()
	got := w.do("GET", "/v1/agents/"+id+"/record", "")
	var rec wire.CardRecord
	if err := json.Unmarshal(got.Body.Bytes(), &rec); err != nil || got.Code != 200 {
		w.t.Fatalf("record of %s = %d %s (%v)", id, got.Code, got.Body, err)
	}
	return rec
}

func (w *world) keys(id string) wire.KeyHistory {
	w.t.Helper()
	got := w.do("GET", "/v1/agents/"+id+"/keys", "")
	var h wire.KeyHistory
	if err := json.Unmarshal(got.Body.Bytes(), &h); err != nil || got.Code != 200 {
		w.t.Fatalf("keys of %s = %d %s (%v)", id, got.Code, got.Body, err)
	}
	return h
}

func TestKeyProof(t *testing.T) { // AM-62
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		key, now := testKey("am_a"), time.Now()
		card := testCard("am_a")
		tests := []struct {
			name  string
			proof string
			ok    bool
		}{
			{"right", proof(key, "POST", "/v1/agents", testBase, now, card), true},
			{"five minutes late", proof(key, "POST", "/v1/agents", testBase, now.Add(-submission.ProofWindow), card), true},
			{"five minutes early", proof(key, "POST", "/v1/agents", testBase, now.Add(submission.ProofWindow), card), true},
			{"later", proof(key, "POST", "/v1/agents", testBase, now.Add(-submission.ProofWindow-time.Second), card), false},
			{"earlier", proof(key, "POST", "/v1/agents", testBase, now.Add(submission.ProofWindow+time.Second), card), false},
			{"another directory", proof(key, "POST", "/v1/agents", "https://other.example/v1", now, card), false},
			{"another method", proof(key, "PUT", "/v1/agents", testBase, now, card), false},
			{"another path", proof(key, "POST", "/v1/agents/am_a", testBase, now, card), false},
			{"other bytes", proof(key, "POST", "/v1/agents", testBase, now, card.With("name", wire.Text("x"))), false},
			{"another key", proof(testKey("mallory"), "POST", "/v1/agents", testBase, now, card), false},
			{"malformed", "sig=AAAA", false},
			{"no signature", "t=" + wire.FormatTime(now) + ", sig=", false},
			{"a loopback name in the public profile", proof(key, "POST", "/v1/agents", "http://127.0.0.1:3141/v1", now, card), false},
		}
		for _, tt := range tests {
			got := w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, tt.proof)...)
			if tt.ok && got.Code != 201 || !tt.ok && (got.Code != 401 || errorCode(got.Body.Bytes()) != "INVALID_SIGNATURE") {
				t.Errorf("%s: %d %s, want ok %v", tt.name, got.Code, got.Body, tt.ok)
			}
		}
		rec := w.record("am_a")
		if rec.Verification.Key == nil || !rec.Verification.Key.Equal(now) || rec.KeyProof == "" {
			t.Errorf("record = %+v, want the key proven now", rec)
		}
		// The proof covers the JCS form, so white space does not matter.
		spaced := strings.Replace(string(card.JSON()), `{`, "{ \n ", 1)
		got := w.do("POST", "/v1/agents", spaced, append(withBearer(alice), wire.HeaderKeyProof, tests[0].proof)...)
		want(t, got, 201, "")
	})
}

func TestKeyProofInTheLocalProfile(t *testing.T) { // AM-62: any loopback form of the base is accepted
	w := newWorld(t, func(c *Config) { c.Local, c.BaseURL = true, "http://127.0.0.1:3141/v1" })
	card, key := testCard("am_a"), testKey("am_a")
	for base, ok := range map[string]bool{
		"http://127.0.0.1:3141/v1": true, "http://localhost:3141/v1": true, "http://[::1]:3141/v1": true,
		"http://127.0.0.1:4000/v1": false, "http://evil.example:3141/v1": false, "https://localhost:3141/v1": false,
	} {
		got := w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer("x"), wire.HeaderKeyProof, proof(key, "POST", "/v1/agents", base, time.Now(), card))...)
		if (got.Code == 201) != ok {
			t.Errorf("base %s = %d, want ok %v", base, got.Code, ok)
		}
	}
}

func TestVerification(t *testing.T) { // AM-61
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		derived := string(testKey("seed").Public().AgentID())
		card := testCard(derived, text("public_key", testKey("seed").PublicText()))
		w.register(alice, card)
		w.register(alice, testCard("am_opaque"))
		if got := w.record(derived).Verification.ID; got != "derived" {
			t.Errorf("id = %q, want derived", got)
		}
		got := w.do("GET", "/v1/agents/am_opaque", "")
		const none = "key=null; endpoint=null; alive=null"
		if h := got.Header().Get(wire.HeaderVerification); h != none {
			t.Errorf("header = %q, want %q", h, none)
		}
		if strings.Contains(got.Body.String(), "endpoint=null") || strings.Contains(got.Body.String(), "verification") {
			t.Errorf("the verification stands inside the card: %s", got.Body)
		}
		list := w.do("GET", "/v1/agents", "").Body.String()
		for _, part := range []string{
			`"verification":{"` + derived + `":{"id":"derived","key":null,"endpoint":null,"alive":null}`,
			`"am_opaque":{"id":"opaque","key":null,"endpoint":null,"alive":null}`,
		} {
			if !strings.Contains(list, part) {
				t.Errorf("the list lacks %s: %s", part, list)
			}
		}
		signed := proof(testKey("am_opaque"), "PUT", "/v1/agents/am_opaque", testBase, time.Now(), testCard("am_opaque"))
		want(t, w.do("PUT", "/v1/agents/am_opaque", "", append(withBearer(alice), wire.HeaderKeyProof, signed)...), 200, "")
		got = w.do("GET", "/v1/agents/am_opaque", "")
		const proven = "key=2000-01-01T00:00:00.000Z; endpoint=null; alive=null"
		if h := got.Header().Get(wire.HeaderVerification); h != proven {
			t.Errorf("header = %q, want %q", h, proven)
		}
		// A renewal keeps the proof. A changed card loses the proof of the old text, but its key stays proven.
		want(t, w.do("PUT", "/v1/agents/am_opaque", "", withBearer(alice)...), 200, "")
		if rec := w.record("am_opaque"); rec.KeyProof == "" || rec.Verification.Key == nil {
			t.Errorf("after a renewal: %+v", rec)
		}
		want(t, w.do("PUT", "/v1/agents/am_opaque", string(testCard("am_opaque", text("name", "x")).JSON()), withBearer(alice)...), 200, "")
		if rec := w.record("am_opaque"); rec.KeyProof != "" || rec.Verification.Key == nil {
			t.Errorf("after a change: %+v", rec)
		}
	})
}

func TestKeyChange(t *testing.T) { // AM-60
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one, two, three := testKey("am_a"), testKey("two"), testKey("three")
		w.register(alice, testCard("am_a"))
		time.Sleep(time.Hour)

		with := func(key *signing.PrivateKey) wire.Value {
			return testCard("am_a", text("public_key", key.PublicText()))
		}
		put := func(card wire.Value, header ...string) (int, string) {
			got := w.do("PUT", "/v1/agents/am_a", string(card.JSON()), append(withBearer(alice), header...)...)
			return got.Code, errorCode(got.Body.Bytes())
		}
		prove := func(key *signing.PrivateKey, at time.Time, card wire.Value) string {
			return proof(key, "PUT", "/v1/agents/am_a", testBase, at, card)
		}
		now := time.Now()

		if status, code := put(with(two)); status != 401 || code != "INVALID_SIGNATURE" {
			t.Errorf("a new key without a proof = %d %s", status, code)
		}
		if status, _ := put(with(two), wire.HeaderKeyProof, prove(one, now, with(two))); status != 401 {
			t.Errorf("a new key proven by the old one alone = %d", status)
		}
		for name, previous := range map[string]string{
			"by the wrong key":    prove(three, now, with(two)),
			"over other bytes":    prove(one, now, with(one)),
			"at another time":     prove(one, now.Add(-time.Second), with(two)),
			"that makes no sense": "x",
		} {
			status, code := put(with(two), wire.HeaderKeyProof, prove(two, now, with(two)), wire.HeaderPreviousKeyProof, previous)
			if status != 401 || code != "INVALID_SIGNATURE" {
				t.Errorf("a previous proof %s = %d %s", name, status, code)
			}
		}

		// Rotation: both keys sign, and the new key is proven at once.
		if status, code := put(with(two), wire.HeaderKeyProof, prove(two, now, with(two)), wire.HeaderPreviousKeyProof, prove(one, now, with(two))); status != 200 {
			t.Fatalf("rotation = %d %s", status, code)
		}
		if v := w.record("am_a").Verification; v.Key == nil || !v.Key.Equal(now) || v.KeyChangedAt != nil {
			t.Errorf("after the rotation: %+v", v)
		}
		h := w.keys("am_a")
		if len(h.Keys) != 2 || h.Keys[0].PublicKey != one.PublicText() || h.Keys[1].PublicKey != two.PublicText() {
			t.Fatalf("keys = %+v", h)
		}
		if !h.Keys[0].Retired.Equal(now) || !h.Keys[1].Since.Equal(now) || !h.Keys[1].Retired.IsZero() {
			t.Errorf("times of the keys: %+v", h.Keys)
		}
		// A peer that pinned the old key can verify the rotation without trusting the directory.
		for header, key := range map[string]*signing.PrivateKey{h.Keys[1].Proof: two, h.Keys[1].PreviousProof: one} {
			p, ok := wire.ParseKeyProof(header)
			if !ok {
				t.Fatalf("served proof %q", header)
			}
			if err := key.Public().Verify([]byte(h.Keys[1].ProofText), p.Signature, signing.AnyTime(), now); err != nil {
				t.Errorf("served proof: %v", err)
			}
		}

		// Replacement: the new key alone. The card counts as unproven for 72 hours.
		time.Sleep(time.Hour)
		changed := time.Now()
		if status, code := put(with(three), wire.HeaderKeyProof, prove(three, changed, with(three))); status != 200 {
			t.Fatalf("replacement = %d %s", status, code)
		}
		v := w.record("am_a").Verification
		if v.Key != nil || v.KeyChangedAt == nil || !v.KeyChangedAt.Equal(changed) {
			t.Errorf("after the replacement: %+v", v)
		}
		header := func() string { return w.do("GET", "/v1/agents/am_a", "").Header().Get(wire.HeaderVerification) }
		time.Sleep(listing.Distrust - time.Millisecond)
		if got := header(); !strings.HasPrefix(got, "key=null;") {
			t.Errorf("a moment before 72 h: %s", got)
		}
		time.Sleep(time.Millisecond)
		if got := header(); strings.HasPrefix(got, "key=null;") {
			t.Errorf("after 72 h: %s", got)
		}
		if h := w.keys("am_a"); len(h.Keys) != 3 || h.Keys[2].PreviousProof != "" {
			t.Errorf("keys = %+v", h.Keys)
		}
		// The same key in another encoding does not count as a change.
		raw := testCard("am_a", text("public_key", hexKey(t, three)))
		if status, code := put(raw); status != 200 {
			t.Errorf("another spelling of the same key = %d %s", status, code)
		}
	})
}

// hexKey encodes an Ed25519 key as hex in place of base64.
func hexKey(t *testing.T, key *signing.PrivateKey) string {
	t.Helper()
	const hex = "0123456789abcdef"
	out := []byte("ed25519:")
	for _, b := range key.Public().Canonical() {
		out = append(out, hex[b>>4], hex[b&15])
	}
	return string(out)
}

func TestTakingBackWithAnotherKey(t *testing.T) { // AM-60 holds for POST by the owner too
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 204, "")
	card := testCard("am_a", text("public_key", testKey("two").PublicText()))
	want(t, w.do("POST", "/v1/agents", string(card.JSON()), withBearer(alice)...), 401, "INVALID_SIGNATURE")
	signed := proof(testKey("two"), "POST", "/v1/agents", testBase, time.Now(), card)
	want(t, w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, signed)...), 201, "")
	if v := w.record("am_a").Verification; v.KeyChangedAt == nil {
		t.Errorf("a replaced key is not shown: %+v", v)
	}
}

func TestKeyHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		for i := range listing.MaxRetired + 3 {
			time.Sleep(time.Second)
			key := testKey(strings.Repeat("k", i+1))
			card := testCard("am_a", text("public_key", key.PublicText()))
			want(t, w.do("PUT", "/v1/agents/am_a", string(card.JSON()),
				append(withBearer(alice), wire.HeaderKeyProof, proof(key, "PUT", "/v1/agents/am_a", testBase, time.Now(), card))...), 200, "")
		}
		if n := len(w.keys("am_a").Keys); n != listing.MaxRetired+1 {
			t.Errorf("%d keys are kept, want %d", n, listing.MaxRetired+1)
		}
	})
}
