package bridge_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// newFullPolicy returns a policy in which every key is set.
func newFullPolicy() bridge.LinkPolicy {
	var p bridge.LinkPolicy
	fill(reflect.ValueOf(&p).Elem())
	p.Encrypt = "always"
	return p
}

func fill(v reflect.Value) {
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.Struct:
			fill(f)
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Int, reflect.Int64:
			f.SetInt(1)
		}
	}
}

// TestCheckPolicy: a policy key that a kind does not declare is refused, with link, key and fix; a declared key is
// accepted.
func TestCheckPolicy(t *testing.T) {
	all := []string{"encrypt", "filter.types", "filter.from", "filter.keywords", "tools", "broadcast"}
	for _, tt := range []struct {
		name    string
		kind    bridge.Kind
		honored []string
	}{
		{"access alone", bridge.Kind{Name: "fax"}, nil},
		{"a key with others below it", bridge.Kind{Name: "fax", Honors: []string{"filter", "tools"}}, []string{"filter.types", "filter.from", "filter.keywords", "tools"}},
		{"a key below another one", bridge.Kind{Name: "fax", Honors: []string{"filter.from"}}, []string{"filter.from"}},
		{"values of encrypt", bridge.Kind{Name: "fax", Encrypt: []string{"always"}}, []string{"encrypt"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refused := make(map[string]*bridge.PolicyError)
			for _, e := range tt.kind.CheckPolicy(bridge.Link{Name: "home", Kind: "fax", Policy: newFullPolicy()}) {
				refused[strings.TrimPrefix(e.Key, "policy.")] = e
			}
			for _, key := range all {
				e := refused[key]
				if (e == nil) != slices.Contains(tt.honored, key) {
					t.Errorf("policy.%s refused: %v, honored by the kind: %v", key, e, tt.honored)
				}
				if want := "remove policy." + key + " of link home"; e != nil && (!strings.Contains(e.Error(), want) || !strings.Contains(e.Reason(), want)) {
					t.Errorf("error %q, want %q in it", e, want)
				}
			}
			if e := refused["access"]; e != nil {
				t.Errorf("policy.access is refused: %v", e)
			}
		})
	}
}

// TestCheckPolicyEncrypt: a value of policy.encrypt that a kind does not know is refused like an unknown key.
func TestCheckPolicyEncrypt(t *testing.T) {
	k := bridge.Kind{Name: "fax", Encrypt: []string{"always", "never"}}
	link := bridge.Link{Name: "home", Policy: bridge.LinkPolicy{Encrypt: "sometimes"}}
	got := k.CheckPolicy(link)
	if len(got) != 1 || !goldentest.Refuses(t, "value", got[0]) {
		t.Errorf("CheckPolicy() = %v, want the value refused", got)
	}
	link.Policy.Encrypt = "never"
	if got := k.CheckPolicy(link); got != nil {
		t.Errorf("CheckPolicy() = %v, want none", got)
	}
}
