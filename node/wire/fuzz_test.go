package wire

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func seedFuzz(f *testing.F) {
	for _, s := range []string{goodMessage, goodCard, `null`, `[1.0,-0,1e2,9007199254740991]`, `{"a":{"a":[{}]},"\u0061b":"\ud83d\ude00"}`,
		`{"a":1,"a":2}`, `"\ud800"`, "\ufeff{}", `{"__proto__":1}`, `{"k0":0,"k1":1,"k2":2,"k3":3,"k4":4,"k5":5,"k6":6,"k7":7,"k8":8,"k9":9,"ka":1,"kb":1,"kc":1,"kd":1,"ke":1,"kf":1,"kg":1,"kf":1}`} {
		f.Add([]byte(s))
	}
	root := os.Getenv("AGENTMESH_CORPORA")
	// None if the variable is not set.
	files, _ := filepath.Glob(filepath.Join(root, "jsontestsuite", "test_parsing", "*.json"))
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && len(data) < 4096 {
			f.Add(data)
		}
	}
}

// FuzzParse checks that the reader never panics, that it accepts only JSON that the standard library accepts too, and
// that writing and reading again changes nothing.
func FuzzParse(f *testing.F) {
	seedFuzz(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		if err != nil {
			if _, ok := errors.AsType[*SyntaxError](err); !ok {
				t.Fatalf("Parse = %T", err)
			}
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			t.Fatalf("accepted %q", data)
		}
		once := v.JSON()
		again, err := Parse(once)
		if err != nil {
			t.Fatalf("wrote %q, which is refused: %v", once, err)
		}
		if twice := again.JSON(); string(twice) != string(once) {
			t.Fatalf("wrote %q, then %q", once, twice)
		}
	})
}

// FuzzParseMessage checks that a message that passes line 4 has the form that the rest of the program relies on.
func FuzzParseMessage(f *testing.F) {
	seedFuzz(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		if err != nil {
			return
		}
		m, err := ParseMessage(v)
		if err != nil {
			if _, ok := errors.AsType[*FieldError](err); !ok {
				t.Fatalf("ParseMessage = %T", err)
			}
			return
		}
		if !m.ID.Valid() || !m.Conversation.Valid() || !m.From.Valid() || !m.To.Valid() || !m.Intent.Valid() || m.Time.IsZero() ||
			m.Signature == "" || m.Payload.Kind() != Object || m.Tree.Kind() != Object {
			t.Fatalf("accepted %+v", m)
		}
		CheckPayload(m.Intent, m.Payload)
	})
}

// FuzzParseCard checks the same for cards.
func FuzzParseCard(f *testing.F) {
	seedFuzz(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		if err != nil {
			return
		}
		c, err := ParseCard(v, CardRules{})
		if err != nil {
			if _, ok := errors.AsType[*FieldError](err); !ok {
				t.Fatalf("ParseCard = %T", err)
			}
			return
		}
		if !c.ID.Valid() || c.Name == "" || len(c.Capabilities) > 64 || len(c.Intents) > 64 || !strings.HasPrefix(c.Endpoint, "https://") {
			t.Fatalf("accepted %+v", c)
		}
		if c.HasPrivateLists() {
			stripped := c
			stripped.Tree = c.WithoutPrivateLists()
			if stripped.HasPrivateLists() {
				t.Fatalf("lists survive in %s", stripped.Tree.JSON())
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct{ name, text string }{{"message", goodMessage}, {"card", goodCard}} {
		b.Run(bench.name, func(b *testing.B) {
			data := []byte(bench.text)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
