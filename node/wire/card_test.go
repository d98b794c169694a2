package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// goodCard is the example of §3.
const goodCard = `{"agentmesh":"0.1.0","agent_id":"am_7f3a2b1c9d4e","name":"Chris's Assistant","description":"Personal agent for Chris.",` +
	`"owner":{"name":"Chris","contact":"chris@example.com"},"endpoint":"https://chris-agent.example.com/agentmesh",` +
	`"public_key":"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p","capabilities":["scheduling","communication"],` +
	`"intents":["mesh.schedule","mesh.message"],"availability":{"timezone":"America/Los_Angeles"},"metadata":{"version":"2026.2.17"},"x_unknown":[1.0]}`

func TestParseCard(t *testing.T) {
	v := mustParse(t, goodCard)
	c, err := ParseCard(v, CardRules{})
	if err != nil {
		t.Fatal(err)
	}
	if c.ID != "am_7f3a2b1c9d4e" || c.Name != "Chris's Assistant" || c.OwnerName != "Chris" ||
		c.Endpoint != "https://chris-agent.example.com/agentmesh" || !slices.Equal(c.Capabilities, []string{"scheduling", "communication"}) ||
		!slices.Equal(c.Intents, []Intent{Schedule, Deliver}) || c.AccessMode != "" || c.Metadata.GetStr("version") != "2026.2.17" {
		t.Errorf("ParseCard = %+v", c)
	}
	if string(c.Tree.JSON()) != goodCard {
		t.Errorf("unknown fields are lost: %s", c.Tree.JSON())
	}
	if !c.Supports(Schedule) || c.Supports("mesh.SCHEDULE") || c.Supports("") {
		t.Error("Supports is wrong")
	}

	for _, key := range []string{"agentmesh", "agent_id", "name", "endpoint", "public_key", "capabilities", "intents"} {
		for name, bad := range map[string]Value{"missing": v.Without(key), "null": v.With(key, Value{}), "number": v.With(key, Int(1)),
			"object": v.With(key, Obj()), "empty": v.With(key, Text(""))} {
			_, err := ParseCard(bad, CardRules{})
			if field, ok := errors.AsType[*FieldError](err); !ok || field.Field != key {
				t.Errorf("%s %s: ParseCard = %v, want a *FieldError about it", key, name, err)
			}
		}
	}
	for _, key := range []string{"description", "owner", "availability", "metadata", "access_control"} {
		for name, ok := range map[string]bool{"missing": true, "null": true, "number": false} {
			changed := map[string]Value{"missing": v.Without(key), "null": v.With(key, Value{}), "number": v.With(key, Int(1))}[name]
			if _, err := ParseCard(changed, CardRules{}); (err == nil) != ok {
				t.Errorf("%s %s: ParseCard = %v, want ok %v", key, name, err, ok)
			}
		}
	}
}

// TestCardLimits checks AM-4.
func TestCardLimits(t *testing.T) {
	v := mustParse(t, goodCard)
	list := func(n, length int) Value {
		entries := make([]string, n)
		for i := range entries {
			entries[i] = strings.Repeat("a", max(length-4, 0)) + fmt.Sprintf("%04d", i)[4-min(length, 4):]
		}
		return Texts(entries)
	}
	tests := []struct {
		name, key string
		val       Value
		ok        bool
	}{
		{"name 256 characters", "name", Text(strings.Repeat("é", 256)), true},
		{"name 257 characters", "name", Text(strings.Repeat("é", 257)), false},
		{"description 1024", "description", Text(strings.Repeat("é", 1024)), true},
		{"description 1025", "description", Text(strings.Repeat("é", 1025)), false},
		{"description empty", "description", Text(""), true},
		{"no capabilities", "capabilities", Arr(), true},
		{"64 capabilities", "capabilities", list(64, 128), true},
		{"65 capabilities", "capabilities", list(65, 8), false},
		{"capability of 128", "capabilities", list(1, 128), true},
		{"capability of 129", "capabilities", list(1, 129), false},
		{"empty capability", "capabilities", Texts([]string{""}), false},
		{"capability no string", "capabilities", Arr(Int(1)), false},
		{"64 intents", "intents", list(64, 128), true},
		{"65 intents", "intents", list(65, 8), false},
		{"intent with a space", "intents", Texts([]string{"mesh message"}), false},
		{"key of 32 KiB", "public_key", Text(strings.Repeat("k", 32<<10)), true},
		{"key of 32 KiB and 1", "public_key", Text(strings.Repeat("k", 32<<10+1)), false},
		{"id of 129", "agent_id", Text("am_" + strings.Repeat("a", 129)), false},
		{"owner without a name", "owner", Obj(), false},
		{"owner with a wrong contact", "owner", Obj(Member{"name", Text("x")}, Member{"contact", Int(1)}), false},
		{"mode open", "access_control", Obj(Member{"mode", Text("open")}), true},
		{"mode absent", "access_control", Obj(), true},
		{"mode null", "access_control", Obj(Member{"mode", Value{}}), true},
		{"mode unknown", "access_control", Obj(Member{"mode", Text("closed")}), false},
		{"mode empty", "access_control", Obj(Member{"mode", Text("")}), false},
		{"metadata of any JSON", "metadata", Obj(Member{"a", Arr(Int(1), Value{})}), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseCard(v.With(tt.key, tt.val), CardRules{})
			if (err == nil) != tt.ok {
				t.Fatalf("ParseCard = %v, want ok %v", err, tt.ok)
			}
			if field, isField := errors.AsType[*FieldError](err); err != nil && (!isField || !strings.HasPrefix(field.Field, tt.key)) {
				t.Errorf("ParseCard = %v, want a *FieldError about %s", err, tt.key)
			}
		})
	}
}

// TestEndpoint checks AM-5.
func TestEndpoint(t *testing.T) {
	loopback := CardRules{AllowHTTP: func(host string) bool { return host == "127.0.0.1" || host == "localhost" || host == "::1" }}
	tests := []struct {
		endpoint      string
		public, local bool
	}{
		{"https://a.example/agentmesh", true, true},
		{"https://a.example:8443/x?y=z", true, true},
		{"https://xn--bcher-kva.example/", true, true},
		{"https://a.example./", true, true},
		{"https://3com.example/", true, true},
		{"https://a.example/" + strings.Repeat("x", 2048-18), true, true},
		{"https://a.example/" + strings.Repeat("x", 2049-18), false, false},
		{"http://a.example/", false, false},
		{"http://127.0.0.1:3141/agentmesh", false, true},
		{"http://localhost:3141/agentmesh", false, true},
		{"http://[::1]:3141/", false, true},
		{"https://127.0.0.1/", false, true},
		{"https://10.0.0.1/", false, false},
		{"https://8.8.8.8/", false, false},
		{"https://8.8.8.8./", false, false},
		{"https://[2001:db8::1]/", false, false},
		{"https://[fe80::1%25eth0]/", false, false},
		{"https://[::ffff:127.0.0.1]/", false, false},
		{"https://127.1/", false, false},
		{"https://2130706433/", false, false},
		{"https://0x7f000001/", false, false},
		{"https://0x7f.0.0.0x1/", false, false},
		{"https://0177.0.0.1/", false, false},
		{"https://../", false, false},
		{"https://a.example:0/", false, false},
		{"https://a.example:65536/", false, false},
		{"https://a.example:http/", false, false},
		{"https://user@a.example/", false, false},
		{"https://user:pass@a.example/", false, false},
		{"https://@a.example/", false, false},
		{"https://a.example/#top", false, false},
		{"https://a.example/#", false, false},
		{"https:///path", false, false},
		{"https://:443/", false, false},
		{"https:a.example", false, false},
		{"//a.example/", false, false},
		{"/agentmesh", false, false},
		{"a.example", false, false},
		{"", false, false},
		{"ftp://a.example/", false, false},
		{"HTTPS://a.example/", false, false},
		{"Http://127.0.0.1/", false, false},
		{"file:///etc/passwd", false, false},
		{"javascript:alert(1)", false, false},
		{"https://a.example/a b", false, false},
		{" https://a.example/", false, false},
		{"https://a.example/\n", false, false},
		{"https://a.example\\@b.example/", false, false},
		{"https://a.example%2f@b.example/", false, false},
		{"https://a example/", false, false},
		{"https://a.example/%zz", false, false},
	}
	v := mustParse(t, goodCard)
	for _, tt := range tests {
		card := v.With("endpoint", Text(tt.endpoint))
		if _, err := ParseCard(card, CardRules{}); (err == nil) != tt.public {
			t.Errorf("%q: strict reader: %v, want ok %v", tt.endpoint, err, tt.public)
		}
		if _, err := ParseCard(card, loopback); (err == nil) != tt.local {
			t.Errorf("%q: loopback allowed: %v, want ok %v", tt.endpoint, err, tt.local)
		}
	}
}

// TestPrivateLists checks AM-6.
func TestPrivateLists(t *testing.T) {
	v := mustParse(t, goodCard)
	for _, tt := range []struct {
		access  string
		private bool
		want    string
	}{
		{`{"mode":"open"}`, false, `{"mode":"open"}`},
		{`{"mode":"allowlist","allowlist":["am_a"]}`, true, `{"mode":"allowlist"}`},
		{`{"mode":"open","block":[]}`, true, `{"mode":"open"}`},
		{`{"block":null,"allowlist":1}`, true, `{}`},
	} {
		c, err := ParseCard(v.With("access_control", mustParse(t, tt.access)), CardRules{})
		if err != nil {
			t.Fatal(err)
		}
		if c.HasPrivateLists() != tt.private {
			t.Errorf("%s: HasPrivateLists = %v", tt.access, c.HasPrivateLists())
		}
		if got := must(c.WithoutPrivateLists().Get("access_control")).JSON(); string(got) != tt.want {
			t.Errorf("%s: published as %s, want %s", tt.access, got, tt.want)
		}
	}
	c, err := ParseCard(v, CardRules{})
	if err != nil || c.HasPrivateLists() || string(c.WithoutPrivateLists().JSON()) != goodCard {
		t.Errorf("a card without access_control changed: %v", err)
	}
}
