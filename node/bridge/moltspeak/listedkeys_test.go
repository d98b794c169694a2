package moltspeak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// serveRegistry returns the URL of a foreign registry: that of another bridge.
func serveRegistry(t *testing.T) string {
	t.Helper()
	r, _ := newTestRig(t, func(c *Config) {
		c.Registry, c.Local = true, true
		c.Agent, c.Key, c.Box = message.Agent{Agent: "registry", Org: "there"}, keyOf("registry@there"), boxOf("registry@there")
	})
	return r.serve().URL
}

const mine = "a-bearer-of-my-choosing"

// addEntry registers an agent in a registry, and returns the status and the body of the answer.
func addEntry(t *testing.T, base, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/api/v1/agents", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+mine)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, got
}

func register(name, endpoint string) string {
	a := self(name)
	return fmt.Sprintf(`{"agent_name":"%s","org":"%s","public_key":"%s","endpoint":"%s"}`, a.Agent, a.Org, a.Key, endpoint)
}

// newRigWithRegistries returns a bridge whose links name these registries.
func newRigWithRegistries(t *testing.T, change func(*Config), urls ...string) (*rig, *fakeNode) {
	return newTestRig(t, func(c *Config) {
		for i, u := range urls {
			c.Links = append(c.Links, bridge.Link{Name: fmt.Sprint("registry", i), Kind: Kind, URL: "https://nowhere.example", RegistryURL: u})
		}
		c.RegistryToken = func(base string) client.Credential { return client.Credential("bearer for " + base) }
		if change != nil {
			change(c)
		}
	})
}

// TestRegistryVouches: registries decide which key a new name has, but never the key of a pinned name (MS-23, MS-56).
// A listed key is trust level 2.
func TestRegistryVouches(t *testing.T) {
	first := serveRegistry(t)
	second := serveRegistry(t)
	r, _ := newRigWithRegistries(t, nil, first, second)
	const known, other, disputed, pinned = "known@x", "other@x", "disputed@x", "pinned@x"
	add := func(base, name, keyName string) {
		t.Helper()
		body := strings.Replace(register(name, "https://x.example"), self(name).Key, self(keyName).Key, 1)
		if status, got := addEntry(t, base, body); status != http.StatusCreated {
			t.Fatalf("%d %s", status, got)
		}
	}
	r.say(pinned, r.draft(pinned, message.OpPing, `{"nonce":1}`))
	add(first, known, known)
	add(second, known, known)
	add(first, disputed, disputed)
	add(second, disputed, other)
	add(first, pinned, other)
	ping := func(name, signer string) message.Code {
		d := r.draft(name, message.OpPing, `{"nonce":1}`)
		d.From.Key = self(signer).Key
		m, _ := r.sendRaw(signer, r.sign(signer, d))
		return message.Code(m.P.GetStr("code"))
	}
	if code := ping(known, other); code != message.CodeAuthFailed {
		t.Errorf("another key than the registries list: %q", code)
	}
	if code := ping(known, known); code != "" {
		t.Errorf("the key that the registries list: %s", code)
	}
	if code := ping(disputed, disputed); code != message.CodeAuthFailed {
		t.Errorf("registries that disagree: %q", code)
	}
	if code := ping(pinned, pinned); code != "" {
		t.Errorf("a pinned key that a registry denies: %s", code)
	}
	if code := ping(other, other); code != "" {
		t.Errorf("a name that nobody lists: %s", code)
	}
	list, err := r.b.pins.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if (p.Name == known) != (p.Vouched != "") {
			t.Errorf("%s is vouched for by %q", p.Name, p.Vouched)
		}
	}
	keyless := r.draft("late@x", message.OpPing, `{"nonce":1}`)
	keyless.From.Key = ""
	if m, _ := r.sendRaw("late@x", r.sign("late@x", keyless)); m.P.GetStr("code") != string(message.CodeAuthFailed) {
		t.Errorf("no key, and nobody lists one: %s", m.P.JSON())
	}
	add(first, "listed@x", "listed@x")
	keyless.From = message.Agent{Agent: "listed", Org: "x"}
	if m, _ := r.sendRaw("listed@x", r.sign("listed@x", keyless)); m.Op != message.OpPong {
		t.Errorf("no key, but a registry lists it: %s", m.P.JSON())
	}
}

// provenCards is a directory whose cards have proven their keys.
type provenCards struct{ cards }

func (p provenCards) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	r, err := p.cards.Record(ctx, id)
	if id != "am_unproven" {
		r.Verification.Key = new(time.Now())
	}
	return r, err
}

// TestCardVouches: a proven card decides the key of its own agent, but not of other names.
func TestCardVouches(t *testing.T) {
	card := func(id, name string) string {
		return fmt.Sprintf(`{"agent_id":"%s","name":"X","metadata":{"moltspeak":"https://x.example/","moltspeak_agent":"%s","moltspeak_key":"%s"}}`, id, name, self("card@x").Key)
	}
	d := provenCards{cards{card("am_own", "am_own@x"), card("am_unproven", "am_unproven@x"), card("am_thief", "victim@x"), card("am_else", "am_victim@x")}}
	wrong := provenCards{cards{strings.ReplaceAll(card("am_own", "am_own@x"), self("card@x").Key, self("wrong@x").Key)}}
	unsure := cards{strings.ReplaceAll(card("am_own", "am_own@x"), self("card@x").Key, self("wrong@x").Key)}
	squatted := strings.ReplaceAll(card("am_own", "am_own@x"), "am_own", string(keyOf("owner").Public().AgentID()))
	d.cards = append(d.cards, squatted)
	r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{cards{}, unsure, d, wrong} }) // the first proven card wins
	for _, tt := range []struct {
		name, signer string
		want         message.Code
		vouched      string
	}{
		{"am_own@x", "stranger@x", message.CodeAuthFailed, ""}, {"am_own@x", "card@x", "", "card"}, {"am_unproven@x", "stranger@x", "", ""},
		{string(keyOf("owner").Public().AgentID()) + "@x", "stranger@x", "", ""}, // derived from another key
		{"victim@x", "stranger@x", "", ""}, {"am_victim@x", "stranger@x", "", ""}, {"am_thief@x", "stranger@x", "", ""},
	} {
		m := r.draft(tt.name, message.OpPing, `{"nonce":1}`)
		m.From.Key = self(tt.signer).Key
		got, _ := r.sendRaw(tt.signer, r.sign(tt.signer, m))
		p, _, err := r.b.pins.get(t.Context(), tt.name, time.Now())
		if message.Code(got.P.GetStr("code")) != tt.want || p.Vouched != tt.vouched || err != nil {
			t.Errorf("%s signed by %s: %s, vouched for by %q, %v", tt.name, tt.signer, got.P.JSON(), p.Vouched, err)
		}
	}
}

// TestRegistryThatLies: a registry that is down or answers nonsense has no effect and is asked seldom.
func TestRegistryThatLies(t *testing.T) {
	var asked atomic.Int64
	var answer atomic.Pointer[func(http.ResponseWriter)]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); (*answer.Load())(w) }))
	defer srv.Close()
	r, _ := newRigWithRegistries(t, nil, srv.URL+"/api/v1/")
	for i, reply := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		func(w http.ResponseWriter) { fmt.Fprint(w, "null") },
		func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat("[", 1000)) },
		func(w http.ResponseWriter) { fmt.Fprint(w, `{"agent":7}`) },
		func(w http.ResponseWriter) { fmt.Fprint(w, `{"agent":{"id":"somebody@else","public_key":"x"}}`) },
		func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat(" ", 2<<20)) },
	} {
		answer.Store(&reply)
		name := fmt.Sprintf("n%d@x", i)
		if code := r.code(name, r.draft(name, message.OpPing, `{"nonce":1}`)); code != "" {
			t.Errorf("answer %d: %s", i, code)
		}
	}
	before, began := asked.Load(), time.Now()
	for i := range 100 {
		name := fmt.Sprintf("m%d@x", i)
		d := r.draft(name, message.OpPing, `{"nonce":1}`)
		d.From.Key = ""
		r.sendRaw(name, r.sign(name, d))
	}
	if n := asked.Load() - before; n > 65+int64(time.Since(began).Seconds()) { // some tokens come back meanwhile
		t.Errorf("100 unsigned messages made the bridge ask the registry %d times", n)
	}
	if code := r.code("signed@x", r.draft("signed@x", message.OpPing, `{"nonce":1}`)); code != "" {
		t.Errorf("unsigned messages use up the quota of signed ones: %s", code)
	}
}

// slowCards is a directory that waits before it answers.
type slowCards struct {
	provenCards
	asked, wait chan bool
}

func (d slowCards) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	d.asked <- true
	<-d.wait
	if ctx.Err() != nil {
		return wire.CardRecord{}, ctx.Err()
	}
	return d.provenCards.Record(ctx, id)
}

func cardOf(name string) string {
	a := self(name)
	return fmt.Sprintf(`{"agent_id":"%s","name":"X","metadata":{"moltspeak_agent":"%s","moltspeak_key":"%s"}}`, a.Agent, name, a.Key)
}

// TestDroppedLookup: a sender that closes its connection during the look-up does not end the look-up.
func TestDroppedLookup(t *testing.T) {
	const victim, thief = "am_victim@x", "thief@x"
	directory := slowCards{provenCards{cards{cardOf(victim)}}, make(chan bool), make(chan bool)}
	r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{directory} })
	d := r.draft(victim, message.OpPing, `{"nonce":1}`)
	d.From.Key = self(thief).Key
	raw := r.sign(thief, d)
	ctx, drop := context.WithCancel(t.Context())
	answered := make(chan Response)
	go func() { answered <- r.b.Receive(ctx, raw, nil, nil) }()
	<-directory.asked
	drop()
	close(directory.wait)
	if got := <-answered; !strings.Contains(string(got.Body), string(message.CodeAuthFailed)) {
		t.Errorf("another key than the card lists: %s", got.Body)
	}
	if _, known, err := r.b.pins.get(t.Context(), victim, time.Now()); known || err != nil {
		t.Errorf("the key of the thief is pinned: %v, %v", known, err)
	}
}

// failingCards is a directory that fails once, and then answers.
type failingCards struct {
	provenCards
	failed atomic.Bool
}

func (f *failingCards) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	if !f.failed.Swap(true) {
		return wire.CardRecord{}, errors.New("down")
	}
	return f.provenCards.Record(ctx, id)
}

// TestFailedLookup: a look-up that fails is not remembered, so the next message finds the listed key.
func TestFailedLookup(t *testing.T) {
	var failed atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !failed.Swap(true) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, `{"agent":{"id":"am_victim@x","public_key":"%s"}}`, self("am_victim@x").Key)
	}))
	defer srv.Close()
	registry, _ := newRigWithRegistries(t, nil, srv.URL)
	directory, _ := newTestRig(t, func(c *Config) {
		c.Directories = []Directory{&failingCards{provenCards: provenCards{cards{cardOf("am_victim@x")}}}}
	})
	for what, r := range map[string]*rig{"registry": registry, "directory": directory} {
		for _, key := range []string{"", self("thief@x").Key} { // without a key, the first message pins none
			d := r.draft("am_victim@x", message.OpPing, `{"nonce":1}`)
			d.From.Key = key
			if m, _ := r.sendRaw("thief@x", r.sign("thief@x", d)); m.P.GetStr("code") != string(message.CodeAuthFailed) {
				t.Errorf("%s: the key %q was accepted: %s", what, key, m.P.JSON())
			}
		}
	}
}

// TestListsItself: a link that names a registry makes the node register there by itself.
func TestListsItself(t *testing.T) {
	base := serveRegistry(t)
	r, _ := newRigWithRegistries(t, func(c *Config) { c.URL = "http://127.0.0.1:1/moltspeak/v0.1" }, base)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.b.Run(ctx) }()
	tick, deadline := time.NewTicker(10*time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for listed := false; !listed; {
		select {
		case <-tick.C:
			got := r.b.registrar.States()
			listed = len(got) == 1 && !got[0].Registered.IsZero()
		case <-deadline:
			t.Fatalf("not listed: %+v", r.b.registrar.States())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAttestations: attestations are read, and give no right (MS-29).
func TestAttestations(t *testing.T) {
	r, n := newTestRig(t, nil)
	hello := `{"protocol_versions":["0.1"],"capabilities":["query",{"capability":"task","attestation":{"type":"org-signed","org":"acme","signature":"ed25519:x","expires":1000}},{"capability":"bare"}]}`
	if m, _ := r.say("bird@air", r.draft("bird@air", message.OpHello, hello)); m.Op != message.OpRespond {
		t.Fatalf("hello: %s", m.P.JSON())
	}
	if r.say("bird@air", r.draft("bird@air", message.OpTask, `{"action":"create","task_id":"t"}`)); !n.got[0].Hold {
		t.Error("an attestation stands for the owner's approval")
	}
	if code := r.code("bird@air", r.draft("bird@air", message.OpTool, `{"action":"invoke","tool":"code.execute","input":{}}`)); code != message.CodeCapability {
		t.Errorf("code: %q", code)
	}
	for _, bad := range []string{`[7]`, `[{}]`, `[{"capability":"x","attestation":{"type":"self"}}]`, `[{"capability":"x","attestation":{"type":"org-signed","org":"a b","signature":"s"}}]`} {
		if code := r.code("bird@air", r.draft("bird@air", message.OpHello, `{"protocol_versions":["0.1"],"capabilities":`+bad+`}`)); code != message.CodeInvalidParam && code != message.CodeMissingField {
			t.Errorf("%s: %q", bad, code)
		}
	}
}

// TestRegisteredKeyIsProven: a message that an agent signed proves its key in our registry (MS-55).
func TestRegisteredKeyIsProven(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	base := r.serve().URL
	score := func(want string) {
		t.Helper()
		resp, err := http.Get(base + "/api/v1/agents/" + dog)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"trust_score":`+want) {
			t.Errorf("%s, %v, want a score of %s", body, err, want)
		}
	}
	addEntry(t, base, register(dog, ""))
	r.sendRaw(cat, r.sign(cat, r.draft(dog, message.OpPing, `{"nonce":1}`)))
	score("0.5")
	r.say(dog, r.draft(dog, message.OpPing, `{"nonce":1}`))
	score("0.7")
}
