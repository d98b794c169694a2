package directory

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// members returns a card member with a list of strings.
func members(key string, list ...string) wire.Member {
	return wire.Member{Key: key, Value: wire.Texts(list)}
}

func TestRegisterAndGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		card := testCard("am_sarah",
			text("x_future", "kept"),
			wire.Member{Key: "x_number", Value: wire.Int(7)},
			wire.Member{Key: "metadata", Value: wire.Obj(text("html", "<b>&\u2028</b>"))})
		got := w.do("POST", "/v1/agents", string(card.JSON()), withBearer(alice)...)
		const wantBody = `{"agent_id":"am_sarah","registered_at":"2000-01-01T00:00:00.000Z","expires_at":"2000-01-31T00:00:00.000Z"}`
		if got.Code != http.StatusCreated || strings.TrimSpace(got.Body.String()) != wantBody {
			t.Errorf("POST = %d %s, want 201 %s", got.Code, got.Body, wantBody)
		}
		if cache := got.Header().Get("Cache-Control"); cache != "no-store" { // AM-59
			t.Errorf("Cache-Control of an answer to a bearer = %q", cache)
		}
		back := w.do("GET", "/v1/agents/am_sarah", "")
		if back.Code != http.StatusOK || back.Body.String() != string(card.JSON()) {
			t.Errorf("GET = %d %s\nwant the card as submitted, unknown fields included (AM-4)", back.Code, back.Body)
		}
		if ids, _ := decodeList(t, w.do("GET", "/v1/agents", "")); !cmp.Equal(ids, []string{"am_sarah"}) {
			t.Errorf("list = %v", ids)
		}
	})
}

func TestPrivateListsAreNeverServed(t *testing.T) { // AM-6
	w := newWorld(t)
	card := testCard("am_a", wire.Member{Key: "access_control", Value: wire.Obj(
		text("mode", "allowlist"), members("allowlist", "am_friend"), members("block", "am_foe"))})
	w.register(alice, card)
	for _, path := range []string{"/v1/agents/am_a", "/v1/agents", "/v1/agents/am_a/record", "/v1/agents?q=agent"} {
		body := w.do("GET", path, "").Body.String()
		if strings.Contains(body, "am_friend") || strings.Contains(body, "am_foe") || !strings.Contains(body, `"mode":"allowlist"`) {
			t.Errorf("GET %s = %s, want the mode and no list", path, body)
		}
	}
	signed := proof(testKey("am_b"), "POST", "/v1/agents", testBase, time.Now(), card.With("agent_id", wire.Text("am_b")))
	got := w.do("POST", "/v1/agents", string(card.With("agent_id", wire.Text("am_b")).JSON()), append(withBearer(alice), wire.HeaderKeyProof, signed)...)
	want(t, got, 400, "INVALID_MESSAGE") // dropping them would break the proof
}

func TestCardLimits(t *testing.T) { // AM-4, AM-5, AM-8
	w := newWorld(t)
	pad := func(total int) wire.Value {
		card := testCard("am_pad", text("x", ""))
		return card.With("x", wire.Text(strings.Repeat("x", total-len(card.JSON()))))
	}
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint("cap", i)
	}
	tests := []struct {
		name string
		card wire.Value
		want int
	}{
		{"64 KiB", pad(wire.MaxCard), 201},
		{"64 KiB and a byte", pad(wire.MaxCard + 1), 413},
		{"64 capabilities", testCard("am_c", members("capabilities", many[:64]...)), 201},
		{"65 capabilities", testCard("am_c", members("capabilities", many...)), 400},
		{"empty lists", testCard("am_e", members("capabilities"), members("intents")), 201},
		{"a slash in the id", testCard("am_a/b"), 400},
		{"a Cyrillic a in the id", testCard("am_chr\u0456s"), 400}, // THREATS row 12
		{"no prefix", testCard("chris"), 400},
		{"other protocol", testCard("am_p", text("agentmesh", "0.2.0")), 400},
		{"plain http", testCard("am_h", text("endpoint", "http://a.example/")), 400},
		{"an address", testCard("am_h", text("endpoint", "https://192.0.2.7/")), 400},
		{"loopback", testCard("am_h", text("endpoint", "http://127.0.0.1:3141/agentmesh")), 400},
		{"user info", testCard("am_h", text("endpoint", "https://me@a.example/")), 400},
		{"no key", testCard("am_k", text("public_key", "")), 400},
		{"rubbish for a key", testCard("am_k", text("public_key", "hello")), 400},
		{"the identity point", testCard("am_k", text("public_key", "ed25519:"+"01"+strings.Repeat("00", 31))), 400},
		{"a private key", testCard("am_k", text("public_key", "AGE-SECRET-KEY-1QQQ")), 400},
		{"a post-quantum age key", testCard("am_k", text("public_key", "age1pq1qqqq")), 400},
		{"an age key", testCard("am_k", text("public_key", "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p")), 201},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := w.do("POST", "/v1/agents", string(tt.card.JSON()), withBearer(alice)...)
			code := "INVALID_MESSAGE"
			if tt.want == 201 {
				code = ""
			}
			want(t, got, tt.want, code)
		})
	}
}

func TestWhichErrorWins(t *testing.T) { // AM-51
	w := newWorld(t, func(c *Config) { c.Mode, c.Quotas = Invite, Quotas{PerToken: 1, PerHost: -1, PerHour: -1} })
	code := func() string {
		code, _, err := w.reg.gate.IssueToken(t.Context(), "", 1, time.Now().Add(time.Hour), "cli")
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	invited := func(token string) []string { return append(withBearer(token), wire.HeaderInvite, code()) }
	if got := w.do("POST", "/v1/agents", string(testCard("am_taken").JSON()), invited(bob)...); got.Code != 201 {
		t.Fatal(got.Body)
	}
	if got := w.do("POST", "/v1/agents", string(testCard("am_mine").JSON()), invited(alice)...); got.Code != 201 {
		t.Fatal(got.Body)
	}
	var (
		huge    = string(testCard("am_new", text("x", strings.Repeat("x", wire.MaxCard))).JSON())
		badCard = string(testCard("am_new", text("name", "")).JSON())
		badKey  = string(testCard("am_taken", text("public_key", "hello")).JSON())
		taken   = string(testCard("am_taken").JSON())
		free    = string(testCard("am_new").JSON())
		forged  = "t=" + wire.FormatTime(time.Now()) + ", sig=AAAA"
	)
	tests := []struct {
		name   string
		method string
		path   string
		body   string
		header []string
		status int
		code   string
	}{
		{"no bearer, too large", "POST", "", huge, nil, 401, "UNAUTHORIZED"},
		{"no bearer, wrong type", "POST", "", free, []string{"Content-Type", "text/plain"}, 401, "UNAUTHORIZED"},
		{"15 characters, bad card", "POST", "", badCard, withBearer("fifteen-chars-x"), 401, "UNAUTHORIZED"},
		{"too large, wrong type", "POST", "", huge, append(withBearer(alice), "Content-Type", "text/plain"), 413, "INVALID_MESSAGE"},
		{"wrong type, bad JSON", "POST", "", "{", append(withBearer(alice), "Content-Type", "text/plain"), 415, "INVALID_MESSAGE"},
		{"gzip, bad JSON", "POST", "", "{", append(withBearer(alice), "Content-Encoding", "gzip"), 415, "INVALID_MESSAGE"},
		{"bad JSON, no invite", "POST", "", "{", withBearer("nobody-knows-this"), 400, "INVALID_MESSAGE"},
		{"bad card, no invite", "POST", "", badCard, withBearer("nobody-knows-this"), 400, "INVALID_MESSAGE"},
		{"bad key, no invite, taken", "POST", "", badKey, withBearer("nobody-knows-this"), 400, "INVALID_MESSAGE"},
		{"no invite, forged proof", "POST", "", free, append(withBearer("nobody-knows-this"), wire.HeaderKeyProof, forged), 403, "UNAUTHORIZED"},
		{"forged proof, quota full, taken", "POST", "", taken, append(invited(alice), wire.HeaderKeyProof, forged), 401, "INVALID_SIGNATURE"},
		{"quota full, taken", "POST", "", taken, invited(alice), 429, "RATE_LIMITED"},
		{"quota full, free", "POST", "", free, invited(alice), 429, "RATE_LIMITED"},
		{"taken", "POST", "", taken, invited("carol-credential-3"), 409, "INVALID_MESSAGE"},

		{"PUT: no bearer, unknown", "PUT", "/am_none", huge, nil, 401, "UNAUTHORIZED"},
		{"PUT: unknown, bad body", "PUT", "/am_none", "{", withBearer(alice), 404, "AGENT_UNAVAILABLE"},
		{"PUT: no id at all, bad body", "PUT", "/bogus", "{", withBearer(alice), 404, "AGENT_UNAVAILABLE"},
		{"PUT: foreign, too large", "PUT", "/am_taken", huge, withBearer(alice), 403, "UNAUTHORIZED"},
		{"PUT: foreign, short token", "PUT", "/am_taken", "{", withBearer("x"), 403, "UNAUTHORIZED"},
		{"PUT: own, too large", "PUT", "/am_mine", huge, withBearer(alice), 413, "INVALID_MESSAGE"},
		{"PUT: own, other id", "PUT", "/am_mine", free, withBearer(alice), 400, "INVALID_MESSAGE"},
		{"DELETE: no bearer, unknown", "DELETE", "/am_none", "", nil, 401, "UNAUTHORIZED"},
		{"DELETE: unknown", "DELETE", "/am_none", "", withBearer(alice), 404, "AGENT_UNAVAILABLE"},
		{"DELETE: foreign", "DELETE", "/am_taken", "", withBearer(alice), 403, "UNAUTHORIZED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := w.do(tt.method, "/v1/agents"+tt.path, tt.body, tt.header...)
			want(t, got, tt.status, tt.code)
			if tt.status == 401 && tt.code == "UNAUTHORIZED" && got.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("WWW-Authenticate = %q", got.Header().Get("WWW-Authenticate"))
			}
			if got.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("Cache-Control = %q, want no-store", got.Header().Get("Cache-Control"))
			}
		})
	}
	for _, id := range []string{"am_taken", "am_mine"} {
		if got := w.do("GET", "/v1/agents/"+id, "").Body.String(); got != string(testCard(id).JSON()) {
			t.Errorf("%s changed: %s", id, got)
		}
	}
}

func TestCredentials(t *testing.T) { // AM-56
	w := newWorld(t)
	local := newWorld(t, func(c *Config) { c.Local = true; c.BaseURL = "http://127.0.0.1:3141/v1" })
	for i, tt := range []struct {
		token         string
		public, local int
	}{
		{"x", 401, 201},
		{"fifteen-chars-x", 401, 201},
		{"sixteen-chars-xy", 201, 201},
		{strings.Repeat("x", 256), 201, 201},
		{strings.Repeat("x", 257), 401, 401},
		{"sixteen chars xyz", 401, 401},
		{"sechzehn-zeichen-ä", 401, 401},
	} {
		body := string(testCard(fmt.Sprint("am_", i)).JSON())
		if got := w.do("POST", "/v1/agents", body, withBearer(tt.token)...); got.Code != tt.public {
			t.Errorf("public, %d characters = %d, want %d", len(tt.token), got.Code, tt.public)
		}
		if got := local.do("POST", "/v1/agents", body, withBearer(tt.token)...); got.Code != tt.local {
			t.Errorf("local, %d characters = %d, want %d", len(tt.token), got.Code, tt.local)
		}
	}
}

func TestOnlyTheHashIsKept(t *testing.T) { // THREATS row 13
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	c, err := w.store.Cards().Held(t.Context(), "am_a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if c.Owner != credential.HashOf(alice) {
		t.Error("the owner is not the credential's SHA-256")
	}
	if kept := fmt.Sprintf("%s %s %v %v", c.Body, c.Meta, c.Terms, c.Counts); strings.Contains(kept, alice) {
		t.Errorf("the credential itself is kept: %s", kept)
	}
}

func TestRegisterAgain(t *testing.T) { // table of routes: POST by the same owner
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		time.Sleep(time.Hour)
		got := w.do("POST", "/v1/agents", string(testCard("am_a", text("name", "New name")).JSON()), withBearer(alice)...)
		const renewed = `{"agent_id":"am_a","registered_at":"2000-01-01T00:00:00.000Z","expires_at":"2000-01-31T01:00:00.000Z"}`
		if got.Code != 201 || strings.TrimSpace(got.Body.String()) != renewed {
			t.Errorf("POST again = %d %s, want 201 %s", got.Code, got.Body, renewed)
		}
		want(t, w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...), 409, "INVALID_MESSAGE")
		if ids, _ := decodeList(t, w.do("GET", "/v1/agents?q=new", "")); len(ids) != 1 {
			t.Errorf("the new name is not found: %v", ids)
		}
	})
}

func TestPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		card := testCard("am_a", text("x_future", "kept"))
		w.register(alice, card)
		time.Sleep(time.Hour)
		got := w.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...)
		const renewed = `{"agent_id":"am_a","registered_at":"2000-01-01T00:00:00.000Z","expires_at":"2000-01-31T01:00:00.000Z"}`
		if got.Code != 200 || strings.TrimSpace(got.Body.String()) != renewed {
			t.Errorf("PUT without a body = %d %s, want 200 %s", got.Code, got.Body, renewed)
		}
		if got := w.do("GET", "/v1/agents/am_a", ""); got.Body.String() != string(card.JSON()) {
			t.Errorf("the card changed: %s", got.Body)
		}
		changed := card.With("capabilities", wire.Texts([]string{"cooking"}))
		if got := w.do("PUT", "/v1/agents/am_a", string(changed.JSON()), withBearer(alice)...); got.Code != 200 {
			t.Errorf("PUT = %d %s", got.Code, got.Body)
		}
		if ids, _ := decodeList(t, w.do("GET", "/v1/agents?capability=cooking", "")); len(ids) != 1 {
			t.Errorf("the new capability finds %v", ids)
		}
		if ids, _ := decodeList(t, w.do("GET", "/v1/agents?capability=scheduling", "")); len(ids) != 0 {
			t.Errorf("the old capability finds %v", ids)
		}
	})
}

// TestLifetime: a registration lasts as long as the operator set (AM-55), and a mirror keeps it as long as its source.
func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 90 * 24 * time.Hour
		w, mirror := newWorld(t, func(c *Config) { c.Lifetime = life }), newWorld(t, readOnly)
		w.register(alice, testCard("am_a"))
		mirror.follow(newSource(w, nil))
		for name, w := range map[string]*world{"the directory": w, "the mirror": mirror} {
			if rec, err := w.reg.Record(t.Context(), "am_a"); err != nil || !rec.ExpiresAt.Equal(rec.RegisteredAt.Add(life)) {
				t.Errorf("at %s the card lasts from %v to %v, %v", name, rec.RegisteredAt, rec.ExpiresAt, err)
			}
		}
	})
}

func TestExpiry(t *testing.T) { // AM-55
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		w.register(alice, testCard("am_b"))
		listed := func() int { ids, _ := decodeList(t, w.do("GET", "/v1/agents", "")); return len(ids) }

		time.Sleep(lifetime - time.Second)
		if got := w.do("GET", "/v1/agents/am_a", ""); got.Code != 200 || listed() != 2 {
			t.Errorf("a second before: %d, %d listed", got.Code, listed())
		}
		if got := w.do("GET", "/v1/agents/am_a", "").Header().Get("Cache-Control"); got != "public, max-age=1" {
			t.Errorf("Cache-Control a second before = %q", got)
		}
		time.Sleep(time.Second)
		for _, path := range []string{"", "/record", "/keys"} {
			want(t, w.do("GET", "/v1/agents/am_a"+path, ""), 404, "AGENT_UNAVAILABLE")
		}
		if listed() != 0 {
			t.Error("an expired card is listed")
		}
		// Others do not see it, and cannot take its id (THREATS row 12).
		want(t, w.do("PUT", "/v1/agents/am_a", "", withBearer(bob)...), 404, "AGENT_UNAVAILABLE")
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(bob)...), 404, "AGENT_UNAVAILABLE")
		want(t, w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...), 409, "INVALID_MESSAGE")
		// The owner takes it back either way.
		if got := w.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...); got.Code != 200 || listed() != 1 {
			t.Errorf("PUT by the owner = %d %s, %d listed", got.Code, got.Body, listed())
		}
		if got := w.do("POST", "/v1/agents", string(testCard("am_b").JSON()), withBearer(alice)...); got.Code != 201 || listed() != 2 {
			t.Errorf("POST by the owner = %d %s, %d listed", got.Code, got.Body, listed())
		}
		// Thirty days after the card expired, its id is free.
		time.Sleep(lifetime + reservation - time.Second)
		want(t, w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...), 409, "INVALID_MESSAGE")
		time.Sleep(time.Second)
		if got := w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...); got.Code != 201 {
			t.Errorf("after the reservation = %d %s", got.Code, got.Body)
		}
	})
}

func TestDelete(t *testing.T) { // AM-55
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		if got := w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...); got.Code != 204 || got.Body.Len() != 0 {
			t.Errorf("DELETE = %d %q", got.Code, got.Body)
		}
		want(t, w.do("GET", "/v1/agents/am_a", ""), 404, "AGENT_UNAVAILABLE")
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 404, "AGENT_UNAVAILABLE")
		want(t, w.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...), 404, "AGENT_UNAVAILABLE")
		want(t, w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...), 409, "INVALID_MESSAGE")
		if got := w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(alice)...); got.Code != 201 {
			t.Errorf("POST by the owner = %d %s", got.Code, got.Body)
		}
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 204, "")
		time.Sleep(reservation)
		if got := w.do("POST", "/v1/agents", string(testCard("am_a").JSON()), withBearer(bob)...); got.Code != 201 {
			t.Errorf("after the reservation = %d %s", got.Code, got.Body)
		}
	})
}

func TestWrongCredentialsAreThrottled(t *testing.T) { // AM-56, THREATS row 13
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		for i := range admission.MaxFailures {
			want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(fmt.Sprint("guessed-number-", i))...), 403, "UNAUTHORIZED")
		}
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer("guessed-number-x")...), 429, "RATE_LIMITED")
		want(t, w.do("GET", "/v1/relay", "", withBearer("guessed-number-x")...), 429, "RATE_LIMITED")
		want(t, w.do("PUT", "/v1/agents/am_a", "", append(withBearer("guessed-number-y"), "Remote", "198.51.100.7:9")...), 403, "UNAUTHORIZED")
		want(t, w.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...), 200, "") // from the same address
		want(t, w.do("GET", "/v1/relay", "", withBearer(alice)...), 200, "")
		time.Sleep(time.Minute / admission.MaxFailures)
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer("guessed-number-z")...), 403, "UNAUTHORIZED")
	})
}

// TestRelayCredentialsAreThrottled: the relay counts unknown tokens on all of its routes (AM-56).
func TestRelayCredentialsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		for i := range admission.MaxFailures {
			want(t, w.do("GET", "/v1/relay", "", withBearer(fmt.Sprint("guessed-number-", i))...), 401, "")
		}
		want(t, w.do("GET", "/v1/relay", "", withBearer("guessed-number-x")...), 429, "RATE_LIMITED")
		want(t, w.do("POST", "/v1/relay", "{}", withBearer("guessed-number-x")...), 429, "RATE_LIMITED")
		want(t, w.do("POST", "/v1/relay", "{}", withBearer(alice)...), 400, "")
		want(t, w.do("GET", "/v1/relay", "", append(withBearer("guessed-number-x"), "Remote", "198.51.100.7:9")...), 401, "")
	})
}

// TestFailuresOfUnknownClients: wrong credentials of clients that cannot be distinguished take a second each and bar
// nobody.
func TestFailuresOfUnknownClients(t *testing.T) { // THREATS 33
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{}).Addresses() })
		w.register(alice, testCard("am_a"))
		start := time.Now()
		for i := range 3 * admission.MaxFailures {
			want(t, w.do("DELETE", "/v1/agents/am_a", "", append(withBearer(fmt.Sprint("guessed-number-", i)), "Remote", "127.0.0.1:9")...), 403, "UNAUTHORIZED")
		}
		if took := time.Since(start); took != 3*admission.MaxFailures*time.Second {
			t.Errorf("%d wrong credentials take %v, want a second each", 3*admission.MaxFailures, took)
		}
	})
}

// TestGiantKeyIsRefused: a giant key is refused by its size, before any arithmetic with it (THREATS 27).
func TestGiantKeyIsRefused(t *testing.T) {
	w := newWorld(t)
	register := func(bits uint) *httptest.ResponseRecorder {
		t.Helper()
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		key := packet.NewRSAPublicKey(time.Now(), &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537})
		var armored strings.Builder
		out, err := armor.Encode(&armored, "PGP PUBLIC KEY BLOCK", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(key.Serialize(out), out.Close()); err != nil {
			t.Fatal(err)
		}
		return w.do("POST", "/v1/agents", string(testCard("am_giant", text("public_key", armored.String())).JSON()), withBearer(alice)...)
	}
	const size = "2048 to 4096 bits"
	begun := time.Now()
	got := register(16384)
	want(t, got, 400, "INVALID_MESSAGE")
	if !strings.Contains(got.Body.String(), size) {
		t.Errorf("16384 bits = %s, want %q", got.Body, size)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the refusal took %v", took)
	}
	if got := register(4096); got.Code != 400 || strings.Contains(got.Body.String(), size) { // it lacks the rest of a key
		t.Errorf("4096 bits = %d %s, want another reason", got.Code, got.Body)
	}
	want(t, w.do("GET", "/v1/agents/am_giant", ""), 404, "")
}
