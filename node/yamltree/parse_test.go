package yamltree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// options are those of a MESS document.
var options = Options{Limits: Limits{Bytes: 2 << 20, Depth: 28, Nodes: 10_000, Keys: 1_000, KeyBytes: 512, Marks: 40_000}}

// TestScalars: unquoted scalars become what MESS-62 says.
func TestScalars(t *testing.T) {
	for in, want := range map[string]string{
		"2026-01-31": `"2026-01-31"`, "2026-01-31T17:00:00-08:00": `"2026-01-31T17:00:00-08:00"`, "2001-12-14 21:59:43.10 -5": `"2001-12-14 21:59:43.10 -5"`,
		"12": `12`, "-3": `-3`, "1.50": `1.50`, ".5": `0.5`, "5.": `5.0`, "1e3": `1e3`, "-.5e1": `-0.5e1`, "5.e1": `5.0e1`,
		"0x1F": `"0x1F"`, "0o17": `"0o17"`, "017": `"017"`, "0b1": `"0b1"`, "1_000": `"1_000"`, "+5": `"+5"`, ".inf": `".inf"`, ".nan": `".nan"`,
		"12:30:45": `"12:30:45"`, ".": `"."`, "-": `[null]`, "e5": `"e5"`, ".e5": `".e5"`, "-.": `"-."`,
		"yes": `"yes"`, "true": `true`, "~": `null`, "null": `null`, `"12"`: `"12"`, "'true'": `"true"`, "!!str 12": `"12"`, "!!int 12": `12`, "!!float 1": `1`,
		"9007199254740991": `9007199254740991`,
	} {
		docs, err := Parse([]byte("a: "+in+"\n"), options)
		if in == "-" {
			docs, err = Parse([]byte("a:\n-\n"), options)
		}
		if err != nil || string(docs[0].JSON()) != `{"a":`+want+`}` {
			t.Errorf("a: %s = %v, %v, want %s", in, docs, err, want)
		}
	}
}

// TestNumbers: with the option Numbers, a scalar that YAML reads as a number becomes a number.
func TestNumbers(t *testing.T) {
	numbers := options
	numbers.Numbers = true
	for in, want := range map[string]string{
		"12": `12`, "1.50": `1.50`, "0x1F": `31`, "0o17": `15`, "1_000": `1000`, "+5": `5`, ".5": `0.5`, "9007199254740993": `9007199254740993`,
		`"0x1F"`: `"0x1F"`, "!!str 12": `"12"`, "yes": `"yes"`, "2026-01-31": `"2026-01-31"`, "1.2.3": `"1.2.3"`,
	} {
		docs, err := Parse([]byte("a: "+in+"\n"), numbers)
		if err != nil || string(docs[0].JSON()) != `{"a":`+want+`}` {
			t.Errorf("a: %s = %v, %v, want %s", in, docs, err, want)
		}
	}
	if docs, err := Parse([]byte("a: .inf\n"), numbers); err == nil {
		t.Errorf("an infinity is read as %s", docs[0].JSON())
	}
}

// TestRefusals: each of these is refused for its own reason, and the refusal names the line.
func TestRefusals(t *testing.T) {
	var many strings.Builder
	for i := range options.Keys + 1 {
		fmt.Fprintf(&many, "k%d: 1, ", i)
	}
	for z, refused := range map[string]bool{
		"1":                                      false,
		"{__proto: 1}":                           false,
		"{__proto__: {b: 1}}":                    true,
		`[{"__proto__": 1}]`:                     true,
		`{"\x5f_proto__": 1}`:                    true,
		"{a: 1, a: 2}":                           true,
		"{a: &x 1}":                              true,
		"{&x a: 1}":                              true,
		"[*x]":                                   true,
		"{<<: {b: 1}}":                           true,
		"{[a]: 1}":                               true,
		"!!binary aGk=":                          true,
		"! 1":                                    true,
		"!!int foo":                              true,
		"9007199254740992":                       true,
		"{" + many.String() + "}":                true,
		"[" + strings.Repeat("1,", 10_000) + "]": true,
		strings.Repeat("[", 29) + strings.Repeat("]", 29): true,
		"{" + strings.Repeat("k", 513) + ": 1}":           true,
		strings.Repeat("x", options.Bytes):                true,
		"\xff":                                            true,
		"b\x00\n":                                         true,
	} {
		_, err := Parse([]byte("a: 1\nz: "+z+"\n"), options)
		if (err != nil) != refused || refused && !goldentest.Refuses(t, fmt.Sprintf("%.40q", z), err) {
			t.Errorf("z: %.80s: %v, refused must be %t", z, err, refused)
		}
	}
}

// TestPrescanCounts: prescan refuses documents that would keep the parser busy.
func TestPrescanCounts(t *testing.T) {
	for name, text := range map[string]string{
		"returns":          strings.Repeat("#\r", 45000),
		"line separators":  strings.Repeat("a: b\u2028", 45000),
		"next lines":       strings.Repeat("#\u0085", 45000),
		"directives":       strings.Repeat("%TAG !a! x\n", 101) + "--- a\n",
		"directives by CR": strings.Repeat("%TAG !a! x\r", 39000) + "--- a\n",
	} {
		if err := prescan([]byte(text), options.Limits); err == nil {
			t.Errorf("%s reach the parser", name)
		}
	}
	for name, text := range map[string]string{
		"30,000 lines of Windows": strings.Repeat("#\r\n", 30_000), "twenty directives": strings.Repeat("%a\n", 20), "percents": strings.Repeat("50% ", 50_000),
	} {
		if err := prescan([]byte(text), options.Limits); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestYAMLTestSuite: the public suite of YAML cases is read as it says, or refused.
func TestYAMLTestSuite(t *testing.T) {
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with test data")
	}
	root = filepath.Join(root, "yaml-test-suite")
	accepted, cases := 0, 0
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "in.yaml" {
			return err
		}
		cases++
		in, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		docs, refused := Parse(in, options)
		_, invalid := os.Stat(filepath.Join(filepath.Dir(path), "error"))
		if refused != nil || invalid == nil {
			return nil
		}
		wantText, err := os.ReadFile(filepath.Join(filepath.Dir(path), "in.json"))
		if err != nil {
			return nil // an error case that this reader tolerates, or one without a JSON form: nothing to compare
		}
		want, err := wire.Parse(wantText)
		if err != nil || len(docs) != 1 {
			return nil // several documents, or JSON that [wire.Parse] refuses
		}
		accepted++
		if !isAlike(docs[0].Value, want) {
			t.Errorf("%s = %s, want %s", filepath.Base(filepath.Dir(path)), docs[0].JSON(), want.JSON())
		}
		if again, err := Parse(Append(nil, docs[0].Value), options); err != nil || len(again) > 1 || len(again) == 1 && string(again[0].JSON()) != string(docs[0].JSON()) {
			t.Errorf("%s is written as\n%s\nwhich reads as %v, %v", filepath.Base(filepath.Dir(path)), Append(nil, docs[0].Value), again, err)
		}
		return nil
	})
	if err != nil || cases < 300 || accepted < 100 {
		t.Fatalf("%d cases, %d accepted, %v", cases, accepted, err)
	}
}

// isAlike compares trees. A text of a equals a number of b if this reader does not read the number as one, although
// YAML does.
func isAlike(a, b wire.Value) bool {
	if text, ok := a.Str(); ok && b.Kind() == wire.Number {
		return !plainNumber.MatchString(text)
	}
	if a.Kind() == wire.Number && b.Kind() == wire.Number {
		return normal(a) == normal(b)
	}
	if a.Kind() != b.Kind() || a.Len() != b.Len() {
		return false
	}
	switch a.Kind() {
	case wire.Array:
		for i := range a.Len() {
			if !isAlike(a.At(i), b.At(i)) {
				return false
			}
		}
		return true
	case wire.Object:
		for _, m := range a.Members() {
			other, ok := b.Get(m.Key)
			if !ok || !isAlike(m.Value, other) {
				return false
			}
		}
		return true
	}
	return bytes.Equal(a.JSON(), b.JSON())
}

func normal(v wire.Value) string {
	token, _ := v.Num()
	var f float64
	fmt.Sscan(token, &f)
	return fmt.Sprint(f)
}
