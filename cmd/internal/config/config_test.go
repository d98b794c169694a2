package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// kinds are the kinds of links that the program has.
var kinds = []bridge.Kind{mess.LinkKind(), link.LinkKind(), agentrelay.LinkKind(), moltspeak.LinkKind(), a2a.LinkKind()}

func TestConfigLayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentmesh.yaml")
	text := "name: file\ndescription: file\nlimits: {messages_total: 7}\nconversations: {idle: 90m}\nroles: [node]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(Source{
		File: file, Required: true,
		Environ: []string{"AGENTMESH_NAME=old", "AGENTMESH_NAME=environment", "AGENTMESH_DESCRIPTION=environment", "AGENTMESH_ACCESS_ALLOW=am_a,am_b"},
		Settings: []Setting{
			{Key: "name", Value: "flag: with a colon, and a comma", From: "--name"},
			{Key: "hooks", Value: `[{"intent": "mesh.*", "exec": ["./a", "b c"]}]`, From: "--set hooks"},
			{Key: "network.allow_private", Value: "10.0.0.0/8,fd00::/8", From: "--set network.allow_private"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Name, want.Description = "flag: with a colon, and a comma", "environment"
	want.Limits.MessagesTotal = 7
	want.Conversations.Idle = 90 * time.Minute
	want.Roles = []string{RoleNode}
	want.Access.Allow = []string{"am_a", "am_b"}
	want.Hooks = []Hook{{Intent: "mesh.*", Exec: []string{"./a", "b c"}, Replies: true}}
	got.Network, want.Network = Network{}, Network{} // netip has unexported fields; the next test reads them
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

// TestNoValueKeepsDefault: a key without a value changes nothing, so it does not switch a limit off.
func TestNoValueKeepsDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentmesh.yaml")
	text := "limits:\n  # messages_total: 10\nregistration: ~\nconversations: {idle: }\naccess: {mode: null}\nroles:\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(Source{
		File: file, Required: true, Environ: []string{"AGENTMESH_LIMITS_MESSAGES_TOTAL=", "AGENTMESH_WINDOW_PAST=~"},
		Settings: []Setting{{Key: "network.max_connections", Value: "", From: "--set network.max_connections"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	got.Network.AllowPrivate, want.Network.AllowPrivate = nil, nil // netip has unexported fields
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

// TestCalendarZeros: a zero that the calendar would replace with its default is refused. Otherwise, per_day: 0 would
// let the node agree to four events a day.
func TestCalendarZeros(t *testing.T) {
	for _, s := range []string{"horizon=0", "max_duration=0s", "max_duration=25h", "per_day=0"} {
		key, value, _ := strings.Cut("calendar."+s, "=")
		c, err := Load(Source{File: "none", Settings: []Setting{{key, value, "--set " + key}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(kinds); !goldentest.Refuses(t, s, err) {
			t.Errorf("%s: %v, want an error that names %s", s, err, key)
		}
	}
	if c, err := Load(Source{File: "none", Settings: []Setting{{"calendar.notice", "0s", "--set calendar.notice"}}}); err != nil || c.Check(kinds) != nil {
		t.Errorf("calendar.notice=0s: %v, %v", err, c.Check(kinds))
	}
}

// TestZeros: a zero that the node would replace with its default is refused. Otherwise, retention: 0 would keep
// conversations for thirty days.
func TestZeros(t *testing.T) {
	for _, key := range []string{
		"timeouts.hook", "timeouts.hold", "conversations.idle", "conversations.retention",
		"conversations.max_bytes", "window.past", "window.future", "notify.batch",
	} {
		for value, wantErr := range map[string]bool{"0": true, "": false} {
			c, err := Load(Source{File: "none", Settings: []Setting{{key, value, "--set " + key}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Check(kinds); (err != nil) != wantErr || wantErr && !goldentest.Refuses(t, key, err) {
				t.Errorf("%s=%q: %v, want an error: %v", key, value, err, wantErr)
			}
		}
	}
}

// TestPolicyMistakes: a mistake in a rule about who may write, or about what waits for the owner, names its key.
func TestPolicyMistakes(t *testing.T) {
	for _, setting := range []string{
		"access.mode=closed",
		"outgoing.mode=closed",
		"outgoing.seal=maybe",
		"outgoing.approve=com.**",
		`hold=[{intent: "*", hold: maybe}]`,
		`hold=[{intent: "*"}]`,
		`hold=[{intent: "com.*.pay", hold: always}]`,
		`hold=[{intent: "*", hold: never, direction: up}]`,
		`hold=[{intent: "*", hold: never, unless: {length: 1h}}]`,
	} {
		key, value, _ := strings.Cut(setting, "=")
		c, err := Load(Source{File: "none", Settings: []Setting{{key, value, "--set " + key}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(kinds); !goldentest.Refuses(t, setting, err) {
			t.Errorf("%s is accepted, or refused for another reason", setting)
		}
	}
}

// TestOpenGuards: the public profile has every guard on until a setting opens it, and OpenGuards reports each open one
// (AM-82).
func TestOpenGuards(t *testing.T) {
	c := Default()
	if got := c.OpenGuards(); len(got) > 0 {
		t.Errorf("the default opens %q", got)
	}
	c.Registration.Mode = "invite"
	if got := c.OpenGuards(); len(got) != 1 || !strings.Contains(got[0], "registration.mode") {
		t.Errorf("registration.mode in the local profile: %q, want that it has no effect", got)
	}
	c.PublicURL = "https://mesh.example.org"
	if got := c.OpenGuards(); len(got) > 0 {
		t.Errorf("the public default opens %q", got)
	}
	for _, s := range []string{
		"access.mode=open", "limits.messages_new_conversations=0", "limits.messages_conversation=0", "limits.messages_total=0", "limits.a2a_contexts=0",
		"limits.exempt=am_a", "window.past=1h", "network.allow_private=10.0.0.0/8", "network.cors_origins=https://a.example",
		"limits.requests_per_minute=0", "registration.cards_per_token=0", "registration.cards_per_host=0", "registration.per_hour=0",
		"network.max_connections=0", "network.max_connections_per_address=0", "network.trusted_proxies=10.0.0.1/32",
		"limits.exempt=mew:lab", "limits.exempt=agentrelay:free/owl", `hold=[{intent: "*", hold: never}]`,
		`hold=[{intent: mesh.schedule, hold: always, name: short, unless: {peers: [am_3tnsdzcdnzf5yxqbv7xvpjgbvm], length: 1h, per_peer_day: 2}}]`,
		`links=[{name: lab, kind: mew, url: "wss://mew.example", policy: {limits: {messages_per_minute: 0}}}]`,
		`links=[{name: lab, kind: mew, url: "wss://mew.example", policy: {access: open}}]`,
		"a2a.anonymous=true", "moltspeak.registry_auth=none", "agentrelay.registration=open", "mess.registration=open", "store.allow_unsafe=true",
	} {
		key, value, _ := strings.Cut(s, "=")
		c, err := Load(Source{File: "none", Settings: []Setting{
			{"public_url", "https://mesh.example.org", "--public-url"}, {"a2a.serve", "on", "--set"}, {"moltspeak.registry", "on", "--set"},
			{"agentrelay.serve", "on", "--set"}, {"mess.serve", "on", "--set"}, {"store.postgres", "postgres://db/mesh", "--set"}, {key, value, "--set " + key},
		}})
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got := c.OpenGuards(); len(got) != 1 || !strings.HasPrefix(got[0], key+":") {
			t.Errorf("%s opens %q, want one guard named %s", s, got, key)
		}
		if err := c.Check(kinds); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestUnknownKey(t *testing.T) {
	var keys []string
	for _, l := range leaves(reflect.TypeFor[Config]()) {
		keys = append(keys, l.key)
	}
	for _, tc := range []struct{ key, want string }{
		{"listne", `unknown key "listne", did you mean "listen"?`},
		{"access.moed", `unknown key "access.moed", did you mean "access.mode"?`},
		{"limits.message_total", `unknown key "limits.message_total", did you mean "limits.messages_total"?`},
		{"colour", `unknown key "colour"`},
	} {
		if got := unknownKey(tc.key, keys).Error(); got != tc.want {
			t.Errorf("unknownKey(%q) = %q, want %q", tc.key, got, tc.want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "30d": 30 * day} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1h", "d", "-1d", "1.5d", "99999d", "soon", "30"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", text, got)
		}
	}
}

// FuzzConfig: no text makes the loader panic, and every error names the file.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		"", "name: x\n", "access: {mode: open, allow: [am_a]}\n", "hooks:\n  - {intent: '*', exec: [a]}\n", "a: &a [*a]\n", "? [x]\n: y\n",
		"<<: {name: x}\n", "limits: 5\n", "roles: {a: b}\n", "conversations: {idle: 1e9}\n", "network: {allow_private: [10.0.0.0/99]}\n", "- 1\n", "---\n---\n", "\x00", "name: !!binary aGk=\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		err := loadFile(reflect.ValueOf(&c).Elem(), "mesh.yaml", []byte(text))
		if err != nil && !strings.HasPrefix(err.Error(), "mesh.yaml:") {
			t.Errorf("the error %q does not name the file", err)
		}
		if err == nil {
			c.Check(kinds) // must not panic either
		}
	})
}

// TestLinks: Load reads every key of a link, Check refuses unknown kinds, and an error names its line.
func TestLinks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentmesh.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
links:
- name: home
  kind: mew
  url: wss://mew.example/ws
  space: kitchen
  policy:
    tools: [discover]
    limits: {messages_per_minute: 90, open_conversations: 0}
    broadcast: true
    filter: {types: [chat], from: [cat]}
  options: {allow_insecure: "false"}
- {name: shelf, kind: mess, dir: ./threads, options: {}}
`)
	c, err := Load(Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	home := c.Links[0]
	if home.Space != "kitchen" || home.Policy.Filter.From[0] != "cat" ||
		home.Policy.Limits != (bridge.LinkLimits{Messages: 90, Conversations: bridge.NoLimit}) || home.Options["allow_insecure"] != "false" || c.Links[1].Dir != "./threads" {
		t.Errorf("links = %+v", c.Links)
	}
	for _, tt := range []struct{ text, want string }{
		{"links: [{name: a, kind: mess, options: {a: 1, a: 2}}]", "set twice"},
		{"links: [{name: a, kind: mess, options: [a]}]", "keys and values"},
		{"links: [{name: a, kind: mew, policy: {limits: {messages_per_minute: -1}}}]", "0 switches the limit off"},
		{"links:\n- name: a\n  polcy: {}", ":3: unknown key \"links[0].polcy\""},
	} {
		write(tt.text)
		if _, err := Load(Source{File: file}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
	write("limits: {exempt: ['mew:', am_a]}")
	if c, err = Load(Source{File: file}); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(kinds); !goldentest.Refuses(t, "limits.exempt", err) {
		t.Errorf("Check() = %v, want the invalid entry of limits.exempt", err)
	}
	write("links: [{name: a, kind: fax, url: 'https://fax.example'}]")
	c, err = Load(Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(kinds); !goldentest.Refuses(t, "kind", err) {
		t.Errorf("Check() = %v, want the unknown kind", err)
	}
}

// TestLinkPolicyKeys: each kind of link refuses the policy keys that its bridge does not read. The error names the key
// and the fix.
func TestLinkPolicyKeys(t *testing.T) {
	set := map[string]string{
		"policy.access": "access: allowlist", "policy.encrypt": "encrypt: always", "policy.tools": "tools: [discover]",
		"policy.broadcast":    "broadcast: true",
		"policy.filter.types": "filter: {types: [chat]}", "policy.filter.from": "filter: {from: [bob]}", "policy.filter.keywords": "filter: {keywords: [tea]}",
	}
	filter := []string{"policy.filter.types", "policy.filter.from", "policy.filter.keywords"}
	for kind, honored := range map[string][]string{
		"mess":       {"policy.access"},
		"mew":        append([]string{"policy.access", "policy.tools", "policy.broadcast"}, filter...),
		"agentrelay": append([]string{"policy.access", "policy.broadcast"}, filter...),
		"moltspeak":  {"policy.access", "policy.encrypt"},
	} {
		for key, text := range set {
			file := filepath.Join(t.TempDir(), "agentmesh.yaml")
			text := "links: [{name: home, kind: " + kind + ", url: 'wss://x.example', options: {peer: bob@acme}, policy: {" + text + "}}]"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Load(Source{File: file})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Check(kinds)
			if slices.Contains(honored, key) {
				if err != nil {
					t.Errorf("%s: %s: %v, want it accepted", kind, key, err)
				}
				continue
			}
			goldentest.Refuses(t, kind+", "+key, err)
		}
	}
}

// TestMoltSpeakAccessNeedsPeer: policy.access of a MoltSpeak link has no effect until the link names its peer, so Check
// refuses it.
func TestMoltSpeakAccessNeedsPeer(t *testing.T) {
	c := Default()
	c.Links = []bridge.Link{{Name: "far", Kind: "moltspeak", URL: "https://far.example", Policy: bridge.LinkPolicy{Access: "open"}}}
	if err := c.Check(kinds); !goldentest.Refuses(t, "policy.access", err) {
		t.Errorf("Check() = %v, want policy.access refused", err)
	}
}

// TestUnknownEnv checks that a variable counts as known only if the program reads it.
func TestUnknownEnv(t *testing.T) {
	environ := []string{
		"AGENTMESH_DATA=x", "AGENTMESH_CONFIG=x", "AGENTMESH_PASSPHRASE=x", "AGENTMESH_PASSPHRASE_FILE=x", "AGENTMESH_AGENT_SOCKET=x",
		"AGENTMESH_ACCESS_MODE=open", "AGENTMESH_LISEN=x", "AGENTMESH_CORPORA=x", "PATH=x",
	}
	if got := UnknownEnv(environ); !slices.Equal(got, []string{"AGENTMESH_LISEN", "AGENTMESH_CORPORA"}) {
		t.Errorf("UnknownEnv = %q", got)
	}
}

// TestForwardListen: other processes cannot connect to an address that stands for every address of a machine.
func TestForwardListen(t *testing.T) {
	for address, ok := range map[string]bool{
		"10.0.0.5:7201": true, "[fd00::5]:7201": true, "one.internal:7201": true, "": true,
		"0.0.0.0:7201": false, "[::]:7201": false, ":7201": false, "10.0.0.5": false,
	} {
		cfg := Default()
		cfg.Network.ForwardListen = address
		if err := cfg.Check(nil); ok != (err == nil) || !ok && !goldentest.Refuses(t, address, err) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestCORSOrigins: Check refuses an invalid origin, which would end the process at its start.
func TestCORSOrigins(t *testing.T) {
	for origin, ok := range map[string]bool{
		"https://app.example.com": true, "http://127.0.0.1:8080": true,
		"app.example.com": false, "https://app.example.com/": false, "*": false, "": false,
	} {
		cfg := Default()
		cfg.Network.CORSOrigins = []string{origin}
		if err := cfg.Check(nil); ok != (err == nil) || !ok && !goldentest.Refuses(t, "origin "+origin, err) {
			t.Errorf("%q: %v", origin, err)
		}
	}
}
