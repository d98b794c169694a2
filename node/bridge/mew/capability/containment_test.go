package capability

import (
	"cmp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestContains checks which containments the texts of two patterns prove, and that nothing else counts as contained.
func TestContains(t *testing.T) {
	for _, tt := range []struct {
		p, c string
		want bool
	}{
		{`{"kind":"chat"}`, `{"kind":"chat"}`, true},
		{`{"kind":"chat"}`, `{"kind":"chat","payload":{"text":"x"}}`, true},
		{`{"kind":"chat","payload":{"text":"x"}}`, `{"kind":"chat"}`, false},
		{`{"kind":"mcp/*"}`, `{"kind":"mcp/request"}`, true},
		{`{"kind":"mcp/request"}`, `{"kind":"mcp/*"}`, false},
		{`{"kind":"*"}`, `{"kind":"mcp/*"}`, true},
		{`{"kind":"*"}`, `{"kind":["a","b/**"]}`, true},
		{`{"kind":"*"}`, `{"kind":"system/error"}`, false},
		{`{"kind":"*"}`, `{"kind":"/x/"}`, false},
		{`{"kind":"*"}`, `{"kind":"!x"}`, false},
		{`{"kind":"/x/"}`, `{"kind":"/x/"}`, true},
		{`{"kind":"/^mcp/"}`, `{"kind":"mcp/request"}`, true},
		{`{"kind":"!chat"}`, `{"kind":"mcp/request"}`, true},
		{`{"kind":"!chat"}`, `{"kind":"mcp/*"}`, false},
		{`{"kind":"!chat"}`, `{"kind":"!chat"}`, true},
		{`{"kind":"mcp*"}`, `{"kind":"mcp/*"}`, false},
		{`{"kind":"mcp**"}`, `{"kind":"mcp/*"}`, true},
		{`{"kind":"mcp/*"}`, `{"kind":"mcp/**"}`, false},
		{`{"kind":"mcp/*"}`, `{"kind":"mcp/re*"}`, true},
		{`{"kind":"mcp/*"}`, `{"kind":"mcp/a/*"}`, false},
		{`{"kind":"mcp/re*"}`, `{"kind":"mcp/*"}`, false},
		{`{"kind":"a*b*"}`, `{"kind":"a*b*"}`, true},
		{`{"kind":"a*b*"}`, `{"kind":"axb*"}`, false},
		{`{"kind":"**"}`, `{"kind":"*"}`, true},
		{`{"kind":"a?"}`, `{"kind":"ab"}`, true},
		{`{"kind":["chat","mcp/*"]}`, `{"kind":["mcp/request","chat"]}`, true},
		{`{"kind":["chat","mcp/*"]}`, `{"kind":["mcp/request","stream/open"]}`, false},
		{`{"kind":"chat","to":["a","b"]}`, `{"kind":"chat","to":["a"]}`, true},
		{`{"kind":"chat","to":["a","b"]}`, `{"kind":"chat","to":["a","c"]}`, false},
		{`{"kind":"chat","to":["a","b"]}`, `{"kind":"chat"}`, false},
		{`{"kind":"chat"}`, `{"kind":"chat","to":["a"]}`, true},
		{`{"kind":"x","payload":{"a":"t/*"}}`, `{"kind":"x","payload":{"a":"t/c","b":1}}`, true},
		{`{"kind":"x","payload":{"a":"t/*","b":1}}`, `{"kind":"x","payload":{"a":"t/c"}}`, false},
		{`{"kind":"x","payload":{"a":["t","u*"]}}`, `{"kind":"x","payload":{"a":["t","uv"]}}`, true},
		{`{"kind":"x","payload":{"a":["t","u*"]}}`, `{"kind":"x","payload":{"a":["t","v"]}}`, false},
		{`{"kind":"x","payload":{"a":1}}`, `{"kind":"x","payload":{"a":1.0}}`, true},
		{`{"kind":"x","payload":{"a":1}}`, `{"kind":"x","payload":{"a":"1"}}`, false},
		{`{"kind":"x","payload":{}}`, `{"kind":"x","payload":{"a":1}}`, true},
		{`{"kind":"x","payload":{}}`, `{"kind":"x","payload":"y"}`, false},
		{`{"kind":"x","payload":{"a*":1}}`, `{"kind":"x","payload":{"ab":1}}`, false},
		{`{"kind":"x","payload":{"$.a":"x*"}}`, `{"kind":"x","payload":{"$.a":"xy"}}`, true},
	} {
		p, c := parseCap(t, tt.p), parseCap(t, tt.c)
		if got := p.Contains(&c, NewComparisonBudget()); got != tt.want {
			t.Errorf("%s contains %s = %t, want %t", tt.p, tt.c, got, tt.want)
		}
	}
}

// genText generates string patterns that often match each other's strings.
func genText(t *rapid.T, label string) string {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "*", "**", "?", "ä"}), 0, 4).Draw(t, label)
	s := strings.Join(parts, "")
	switch rapid.IntRange(0, 9).Draw(t, label+" form") {
	case 0:
		return "!" + s
	case 1:
		return "/" + strings.NewReplacer("*", "a*", "?", "b?", "/", "").Replace(s) + "/"
	}
	return s
}

func genShape(t *rapid.T, depth int) wire.Value {
	switch n := rapid.IntRange(0, 7).Draw(t, "shape"); {
	case n <= 3 || depth <= 0:
		return wire.Text(genText(t, "text"))
	case n == 4:
		return wire.Int(int64(rapid.IntRange(0, 2).Draw(t, "int")))
	case n == 5:
		return wire.Arr(genShape(t, depth-1), genShape(t, depth-1))
	}
	var v = wire.Obj()
	for range rapid.IntRange(0, 2).Draw(t, "keys") {
		v = v.With(rapid.SampledFrom([]string{"a", "b", "*", "**", "$.a", "$..b", "a?"}).Draw(t, "key"), genShape(t, depth-1))
	}
	return v
}

func genCapability(t *rapid.T) Capability {
	kind := wire.Text(cmp.Or(genText(t, "kind"), "*"))
	if rapid.Bool().Draw(t, "several kinds") {
		kind = wire.Arr(kind, wire.Text(cmp.Or(genText(t, "kind 2"), "a")))
	}
	v := wire.Obj(wire.Field("kind", kind))
	if rapid.Bool().Draw(t, "with to") {
		v = v.With("to", wire.Texts(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2).Draw(t, "to")))
	}
	if rapid.Bool().Draw(t, "with payload") {
		v = v.With("payload", genShape(t, 2))
	}
	c, err := Parse(v)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func genValue(t *rapid.T, depth int) wire.Value {
	switch n := rapid.IntRange(0, 6).Draw(t, "value"); {
	case n <= 2 || depth <= 0:
		return wire.Text(strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "ä"}), 0, 4).Draw(t, "string"), ""))
	case n == 3:
		return wire.Int(int64(rapid.IntRange(0, 2).Draw(t, "int")))
	case n == 4:
		return wire.Arr(genValue(t, depth-1), genValue(t, depth-1))
	}
	var v = wire.Obj()
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		v = v.With(rapid.SampledFrom([]string{"a", "b", "ab"}).Draw(t, "key"), genValue(t, depth-1))
	}
	return v
}

// TestContainmentIsSound: if p contains c, then p allows every envelope that c allows.
func TestContainmentIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, c := genCapability(t), genCapability(t)
		if !p.Contains(&p, NewComparisonBudget()) && p.value.GetStr("kind") != "" && !p.hasTo {
			t.Fatalf("%s does not contain itself", p.value.JSON())
		}
		if !p.Contains(&c, NewComparisonBudget()) {
			c = p // at least itself, so that most draws test something
		}
		for range 4 {
			kind := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "ä"}), 1, 4).Draw(t, "kind"), "")
			var to []Addressee
			for _, id := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2).Draw(t, "addressed") {
				to = append(to, Addressee{id, id})
			}
			payload := genValue(t, 3)
			if FirstAllowing([]*Capability{&c}, kind, to, payload) != nil && FirstAllowing([]*Capability{&p}, kind, to, payload) == nil {
				t.Fatalf("%s contains %s, but only the latter allows %s to %v with %s", p.value.JSON(), c.value.JSON(), kind, to, payload.JSON())
			}
		}
	})
}
