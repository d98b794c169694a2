package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newBossConfig returns a space with a manager, who may grant some things, and workers with few rights.
func newBossConfig(t testing.TB) SpaceConfig {
	return SpaceConfig{ID: "lab", Participants: []Participant{
		{Name: "manager", Tokens: []string{"manager-token"}, Capabilities: mewtest.Caps(t, "chat", "capability/*", "space/*",
			`{"kind":"mcp/request","payload":{"method":"tools/*"}}`, `{"kind":"chat","to":["worker","other"]}`)},
		{Name: "worker", Tokens: []string{"worker-token"}, Capabilities: mewtest.Caps(t, "chat", "capability/grant", "capability/grant-ack")},
		{Name: "other", Tokens: []string{"other-token"}, Capabilities: mewtest.Caps(t, "chat")},
	}}
}

func grantTo(id, recipient string, capabilities ...string) string {
	return fmt.Sprintf(`{"id":%q,"kind":"capability/grant","payload":{"recipient":%q,"capabilities":[%s]}}`, id, recipient, strings.Join(capabilities, ","))
}

const callRead = `{"kind":"mcp/request","payload":{"method":"tools/call"}}`

// TestGrantAndRevoke: a grant acts from the next envelope on. The recipient gets a welcome, and everybody gets the
// grant as it was sent. The same holds for a revocation (MEW-21, MEW-25).
func TestGrantAndRevoke(t *testing.T) {
	r := start(t, newBossConfig(t))
	manager, worker := r.Join("manager-token"), r.Join("worker-token")
	try := `{"id":"try","kind":"mcp/request","payload":{"method":"tools/call"}}`
	worker.Send(try)
	worker.Want("system/error")
	manager.Send(grantTo("g1", "worker", callRead))
	if g := worker.Want("capability/grant"); g.GetStr("id") != "g1" {
		t.Errorf("got %s", g.JSON())
	}
	if w := worker.Want("system/welcome"); !strings.Contains(string(mewtest.Payload(w, "you").JSON()), callRead) {
		t.Errorf("the welcome says %s", w.JSON())
	}
	worker.Send(try, `{"kind":"capability/grant-ack","correlation_id":"g1","payload":{"status":"accepted"}}`)
	worker.Want("mcp/request")
	manager.Until("mcp/request")
	if ack := manager.Want("capability/grant-ack"); string(mewtest.Get(ack, "correlation_id").JSON()) != `["g1"]` {
		t.Errorf("correlation_id is not an array: %s", ack.JSON())
	}
	manager.Send(`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g1"}}`)
	worker.Until("system/welcome")
	worker.Send(try)
	worker.Want("system/error")
}

// TestGrantSubset: a participant cannot give what it does not hold, whatever the shape of the pattern, and nothing of a
// refused grant is stored (MEW-24).
func TestGrantSubset(t *testing.T) {
	r := start(t, newBossConfig(t))
	manager, worker := r.Join("manager-token"), r.Join("worker-token")
	before := worker.Held()
	for _, c := range []string{
		`{"kind":"mcp/request"}`, `{"kind":"mcp/*"}`, `{"kind":"*"}`, `{"kind":"mcp/request","payload":{"method":"*"}}`,
		`{"kind":"mcp/request","payload":{"method":"tools/**"}}`, `{"kind":"mcp/request","payload":{"method":"/tools/"}}`,
		`{"kind":["chat","mcp/proposal"]}`, `{"kind":"stream/request"}`, `{"kind":"mcp/request","payload":{"$.method":"tools/call"}}`,
	} {
		manager.Send(grantTo("g", "worker", callRead, c))
		if e := manager.Until("system/error"); mewtest.Text(mewtest.Payload(e, "error")) != "capability_violation" {
			t.Errorf("granting %s: %s", c, e.JSON())
		}
	}
	if after := worker.Held(); after != before {
		t.Errorf("the worker holds %s after refused grants, before %s", after, before)
	}
	manager.Send(grantTo("g", "worker", callRead, `{"kind":"chat","to":["worker"]}`, `{"kind":"mcp/request","payload":{"method":["tools/a","tools/b*"]}}`))
	manager.Until("capability/grant")
	for _, bad := range []string{
		`{"kind":"capability/grant","payload":{"recipient":"nobody","capabilities":["chat"]}}`,
		`{"kind":"capability/grant","payload":{"recipient":"worker","capabilities":[]}}`,
		`{"kind":"capability/grant","payload":{"recipient":"worker","capabilities":[1]}}`,
		`{"kind":"capability/grant","payload":{"recipient":"worker"}}`,
		`{"kind":"capability/grant","payload":{"capabilities":["chat"]}}`,
		`{"kind":"capability/revoke","payload":{"recipient":"worker"}}`,
		`{"kind":"capability/revoke","payload":{"recipient":"nobody","grant_id":"g"}}`,
	} {
		manager.Send(bad)
		manager.Until("system/error")
	}
}

// TestRevocationChain: when a capability ends, the capabilities that rested on it end too (MEW-25). A revocation by
// pattern takes everything that the pattern contains, also static capabilities, until they are granted again (MEW-26).
func TestRevocationChain(t *testing.T) {
	r := start(t, newBossConfig(t))
	manager, worker, other := r.Join("manager-token"), r.Join("worker-token"), r.Join("other-token")
	manager.Send(grantTo("g1", "worker", callRead))
	worker.Until("system/welcome")
	worker.Send(grantTo("g2", "other", callRead))
	other.Until("system/welcome")
	manager.Send(`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g1"}}`)
	if w := other.Until("system/welcome"); strings.Contains(string(mewtest.Payload(w, "you").JSON()), "tools/call") {
		t.Errorf("the other still holds %s", w.JSON())
	}
	manager.Send(`{"kind":"capability/revoke","payload":{"recipient":"worker","capabilities":[{"kind":"cha*"},{"kind":"capability/grant","payload":{}}]}}`)
	w := worker.Until("system/welcome")
	for got := mewtest.Text(mewtest.Payload(w, "you", "id")); got != "worker"; {
		t.Fatal(got)
	}
	worker.Until("capability/revoke")
	if got := worker.Held(); got != `[{"kind":"capability/grant"},{"kind":"capability/grant-ack"}]` {
		t.Errorf("the worker holds %s: want the contained capabilities gone and the wider ones kept", got)
	}
	worker.Send(`{"kind":"chat","payload":{"text":"x"}}`)
	worker.Until("system/error")
	manager.Send(grantTo("g3", "worker", `{"kind":"chat"}`))
	worker.Until("capability/grant")
	worker.Send(`{"kind":"chat","payload":{"text":"x"}}`)
	worker.Until("chat")
}

// TestRestart: grants, masks, invited participants and bars survive disconnect and restart (MEW-23, MEW-29).
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startWith(t, dir, Config{Spaces: []SpaceConfig{newBossConfig(t)}})
	manager := r.Join("manager-token")
	manager.Send(grantTo("g1", "worker", callRead), // the worker is not connected
		`{"kind":"capability/revoke","payload":{"recipient":"other","capabilities":["chat"]}}`,
		`{"id":"i","kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["chat"]}}`)
	token := mewtest.Text(mewtest.Payload(manager.Until("space/invite-ack"), "token"))
	guest := r.Join(token)
	guest.Quit()
	manager.Send(`{"kind":"space/kick","payload":{"participant_id":"other"}}`)
	manager.Until("space/kick")
	r.Stop()

	r = startWith(t, dir, Config{Spaces: []SpaceConfig{newBossConfig(t)}})
	if got := r.Join("worker-token").Held(); !strings.Contains(got, callRead) {
		t.Errorf("after the restart the worker holds %s", got)
	}
	guest = r.Join(token)
	guest.Send(`{"kind":"chat","payload":{"text":"back"}}`)
	guest.Until("chat")
	if status, _ := r.Post("other", "other-token", `{"kind":"chat"}`); status != 403 {
		t.Errorf("a kicked participant is let in after the restart: %d", status)
	}
	// The id of the grant is still valid after the restart.
	manager = r.Join("manager-token")
	manager.Send(`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g1"}}`)
	manager.Until("capability/revoke")
	if got := r.Join("worker-token").Held(); strings.Contains(got, "tools/call") {
		t.Errorf("the worker still holds %s", got)
	}
}

// TestNoEscalation: no sequence of grants, invites, revocations and kicks gives a participant of a hosted space a right
// that the configured participants did not have.
func TestNoEscalation(t *testing.T) {
	kinds := []string{"a", "b", "a/*", "a/x", "a/**", "*", "!a", "/a/", "capability/grant", "space/invite", "capability/*", "**"}
	methods := []string{"", "m", "m/*", "m/x", "*", "!m", "/m/"}
	r := start(t, SpaceConfig{ID: "other"})
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		draw := func(label string) capability.Capability {
			v := wire.Obj(wire.TextField("kind", rapid.SampledFrom(kinds).Draw(t, label)))
			if m := rapid.SampledFrom(methods).Draw(t, label+" method"); m != "" {
				v = v.With("payload", wire.Obj(wire.TextField("method", m)))
			}
			if rapid.IntRange(0, 4).Draw(t, label+" to") == 0 {
				v = v.With("to", wire.Texts([]string{rapid.SampledFrom([]string{"p0", "p1"}).Draw(t, label+" who")}))
			}
			c, err := capability.Parse(v)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		var roots []capability.Capability
		sc := SpaceConfig{ID: fmt.Sprintf("round-%d", round)}
		for i := range 3 {
			own := []capability.Capability{mustCapability(`{"kind":"capability/grant"}`), mustCapability(`{"kind":"space/invite"}`), mustCapability(`{"kind":"capability/revoke"}`)}
			own = append(own, draw("own"))
			sc.Participants = append(sc.Participants, Participant{Name: fmt.Sprintf("p%d", i), Capabilities: own})
			roots = append(roots, own...)
		}
		s, err := r.G.newSpace(sc)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			s.mu.Lock()
			var names []string
			for name := range s.members.byName {
				if name != OwnerName {
					names = append(names, name)
				}
			}
			s.mu.Unlock()
			slices.Sort(names)
			by := s.members.byName[rapid.SampledFrom(names).Draw(t, "by")]
			whom := rapid.SampledFrom(append(names, fmt.Sprintf("n%d", len(names)))).Draw(t, "whom")
			given := draw("given")
			kind, key, list := "capability/grant", "recipient", "capabilities"
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				kind, key, list = "space/invite", "participant_id", "initial_capabilities"
			case 1:
				kind = "capability/revoke"
			}
			e := wire.Obj(wire.TextField("kind", kind), wire.Field("payload", wire.Obj(wire.TextField(key, whom), wire.Field(list, wire.Arr(given.Value())))))
			s.receive(by, e.JSON(), "http")
		}
		probe := []string{"a", "b", "a/x", "a/x/y", "c", "capability/grant", "space/kick"}
		for _, m := range s.members.byName {
			if m == s.members.owner {
				continue
			}
			for _, kind := range probe {
				for _, method := range []string{"m", "m/x", "m/x/y", "n"} {
					for _, to := range [][]capability.Addressee{nil, {{Name: "p0", ID: "p0"}}, {{Name: "p1", ID: "p1"}}} {
						payload := wire.Obj(wire.TextField("method", method))
						if capability.FirstAllowing(m.caps, kind, to, payload) != nil && !slices.ContainsFunc(roots, func(c capability.Capability) bool {
							return capability.FirstAllowing([]*capability.Capability{&c}, kind, to, payload) != nil
						}) {
							t.Fatalf("%s may %s to %v with %s, which no root may: %s", m.name, kind, to, method, m.shown.JSON())
						}
					}
				}
			}
		}
	})
}

// TestAudit: every operation on the space is one entry of the audit log: who, whom, what and result. Refusals are
// counted. The log contains no token and no text of a participant (MEW-31, MEW-36).
func TestAudit(t *testing.T) {
	const callReadOfOther = `{"kind":"mcp/request","to":["other"],"payload":{"method":"tools/call"}}` // narrower than callRead
	r := start(t, newBossConfig(t))
	manager := r.Join("manager-token")
	manager.Send(grantTo("g1", "worker", callRead),
		`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g1","reason":"a secret reason"}}`,
		grantTo("g2", "worker", callRead),
		`{"kind":"capability/revoke","payload":{"recipient":"worker","capabilities":[`+callReadOfOther+`]}}`,
		`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g2","capabilities":[`+callReadOfOther+`]}}`,
		`{"kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["chat"],"reason":"a secret reason"}}`)
	token := mewtest.Text(mewtest.Payload(manager.Until("space/invite-ack"), "token"))
	for _, kind := range []string{"pause", "shutdown"} {
		if _, err := r.G.Space("lab").Say(t.Context(), []byte(`{"kind":"participant/`+kind+`","to":["worker"],"payload":{"reason":"a secret reason"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	manager.Send(`{"kind":"space/kick","payload":{"participant_id":"guest"}}`)
	manager.Until("space/kick")
	for range 3 {
		r.Post("other", "other-token", `{"kind":"space/kick","payload":{"participant_id":"manager"}}`)
	}
	audit := r.G.cfg.Audit
	list, _, err := audit.List(t.Context(), acl.AuditFilter{Kind: "mew"}, 0, 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range append(list, audit.Recent(10)...) {
		if e.Kind != "mew" || e.At.IsZero() {
			t.Errorf("entry %+v", e)
		}
		got = append(got, fmt.Sprintf("%s %s %d", e.Subject, e.Note, e.Count))
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, token) || strings.Contains(text, "secret") {
			t.Errorf("the entry contains too much: %s", text)
		}
	}
	want := []string{
		"mew-space:lab/manager capability/grant worker: granted 0",
		"mew-space:lab/manager capability/revoke worker: revoked 1, with 0 that rested on them 0",
		"mew-space:lab/manager capability/grant worker: granted 0",
		"mew-space:lab/manager capability/revoke worker: revoked 0, with 0 that rested on them, 1 wider kept 0",
		"mew-space:lab/manager capability/revoke worker: revoked 1, with 0 that rested on them 0",
		"mew-space:lab/manager space/invite guest: created 0",
		"mew-space:lab/owner participant/pause worker: paused 0",
		"mew-space:lab/owner participant/shutdown worker: shut down 0",
		"mew-space:lab/manager space/kick guest: kicked 0",
		"mew-space:lab/other capability_violation: refused 3",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestComparisonIsBounded: comparing capabilities has a bound of its own, because alternatives multiply, and the space
// is locked meanwhile.
func TestComparisonIsBounded(t *testing.T) {
	list := func(n int, format string) string {
		var out []string
		for i := range n {
			out = append(out, strings.ReplaceAll(format, "#", fmt.Sprint(i)))
		}
		return strings.Join(out, ",")
	}
	for _, tt := range []struct{ name, held, given string }{
		{"alternatives", `{"kind":"x","payload":{"t":[` + list(699, `"b*"`) + `,"a*"]}}`, // contains the given one, except for its last alternative
			`{"kind":"x","payload":{"t":[` + list(700, `"ax"`) + `,1]}}`},
		{"keys", `{"kind":"x","payload":[` + list(400, `{"z":1}`) + `]}`, `{"kind":"x","payload":{` + list(400, `"k#":1`) + `}}`},
		{"addressees", `{"kind":"x","to":[` + list(600, `"#"`) + `]}`, `{"kind":"x","to":[` + list(300, `"599"`) + `,"x"]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sc := SpaceConfig{ID: "lab", Participants: []Participant{{Name: "a", Capabilities: mewtest.Caps(t, "capability/*")}, {Name: "b"}}}
			for range 250 {
				sc.Participants[0].Capabilities = append(sc.Participants[0].Capabilities, mewtest.Cap(t, tt.held))
			}
			sc.Participants[0].Capabilities = append(sc.Participants[0].Capabilities, mewtest.Cap(t, "x")) // contains all
			s := newQuietSpace(t, sc)
			took := time.Hour // shortest of several runs, because other processes compete with the tests
			for range 20 {
				start := time.Now()
				_, fault := s.receive(s.members.byName["a"], []byte(grantTo("g", "b", list(5, tt.given))), "http")
				took = min(took, time.Since(start))
				if fault == nil || fault.Reason != "VALIDATION_ERROR" {
					t.Fatalf("the grant was not refused as too complex, after %v", took)
				}
				if took <= grantBound {
					break
				}
			}
			if took > grantBound {
				t.Errorf("a refusal took %v", took)
			}
		})
	}
}
