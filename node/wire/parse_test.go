package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corpora returns a directory of the third-party test data, or skips the test.
func corpora(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA is not set: no third-party test data")
	}
	return filepath.Join(root, name)
}

func TestParseReads(t *testing.T) {
	tests := []struct {
		name, in string
		want     string // as AppendJSON writes it; "" means the same as in
	}{
		{"null", `null`, ""},
		{"booleans", `[true,false]`, ""},
		{"space everywhere", " \t\r\n{ \"a\" : [ 1 , 2 ] } \n", `{"a":[1,2]}`},
		{"empty containers", `[{},[],""]`, ""},
		{"number tokens are kept", `[1.0,1e2,1E+2,-0,0.10,-0.0e-0]`, ""},
		{"largest safe integers", `[9007199254740991,-9007199254740991]`, ""},
		{"largest safe integers in other forms", `[9007199254740991.0,-9.007199254740991e15,9007199254740991000e-3,0.9007199254740991E16]`, ""},
		{"a fraction below 2^53", `[9007199254740990.5,1234567890123456.7]`, ""},
		{"underflow is a number", `1e-400`, ""},
		{"member order is kept", `{"b":1,"a":2}`, ""},
		{"keys differ by case", `{"to":1,"TO":2,"To":3}`, ""},
		{"kelvin sign is not k", "{\"k\":1,\"\u212a\":2}", ""},
		{"short escapes", `"\"\\\/\b\f\n\r\t"`, `"\"\\/\b\f\n\r\t"`},
		{"unicode escapes", `"\u0041\u00e9\u20ac\u0000\u001f"`, `"Aé€\u0000\u001f"`},
		{"escaped pair", `"\ud83d\ude00"`, `"😀"`},
		{"escaped key", `{"\u0061":1}`, `{"a":1}`},
		{"DEL and line separators stay", "\"\x7f\u2028\u2029<>&\"", ""},
		{"noncharacters", "\"\uffff\U0010ffff\"", ""},
		{"proto as a value", `{"a":"__proto__"}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatalf("Parse(%q) = %v", tt.in, err)
			}
			want := tt.want
			if want == "" {
				want = tt.in
			}
			if got := string(v.JSON()); got != want {
				t.Errorf("Parse(%q).JSON() = %s, want %s", tt.in, got, want)
			}
		})
	}
}

// TestParseRefuses checks AM-12 and THREATS row 1.
func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, in, reason string }{
		{"empty", ``, "unexpected end"},
		{"only space", ` `, "unexpected end"},
		{"byte order mark", "\ufeff{}", "byte order mark"},
		{"UTF-16", "{\x00}\x00", "expected a key"},
		{"NUL", "\x00", "not a JSON value"},
		{"trailing value", `{} {}`, "text after the value"},
		{"trailing comma in object", `{"a":1,}`, "expected a key"},
		{"trailing comma in array", `[1,]`, "not a JSON value"},
		{"comment", `{/**/}`, "expected a key"},
		{"single quotes", `{'a':1}`, "expected a key"},
		{"duplicate key", `{"to":"am_a","to":"am_b"}`, "duplicate key"},
		{"nested duplicate key", `{"p":[{"x":{"a":1,"b":2,"a":3}}]}`, "duplicate key"},
		{"duplicate by escape", `{"a":1,"\u0061":2}`, "duplicate key"},
		{"duplicate of the empty key", `{"":1,"":2}`, "duplicate key"},
		{"proto", `{"__proto__":{}}`, "key __proto__"},
		{"proto by escape", `{"a":{"\u005f_proto__":1}}`, "key __proto__"},
		{"2^53", `9007199254740992`, "number beyond 2^53-1"},
		{"minus 2^53", `[-9007199254740992]`, "number beyond 2^53-1"},
		{"2^53 with a fraction", `9007199254740992.0`, "number beyond 2^53-1"},
		{"2^53+1 with a fraction", `{"amount":9007199254740993.0}`, "number beyond 2^53-1"},
		{"2^53 with an exponent", `9.007199254740992e15`, "number beyond 2^53-1"},
		{"minus 2^53 with a negative exponent", `-9007199254740992000E-3`, "number beyond 2^53-1"},
		{"rounds to 2^53", `9007199254740991.5`, "number beyond 2^53-1"},
		{"large with an exponent", `1e21`, "number beyond 2^53-1"},
		{"long integer", `123456789012345678901234567890`, "number beyond 2^53-1"},
		{"1e400", `1e400`, "number beyond 2^53-1"},
		{"minus 1e400", `-1e400`, "number beyond 2^53-1"},
		{"overflow by digits", "1" + strings.Repeat("0", 400) + ".0", "number beyond 2^53-1"},
		{"leading zero", `01`, "text after the value"},
		{"plus", `+1`, "not a JSON value"},
		{"bare point", `1.`, "bad number"},
		{"bare exponent", `1e`, "bad number"},
		{"bare minus", `-`, "bad number"},
		{"NaN", `NaN`, "not a JSON value"},
		{"truncated literal", `tru`, "not a JSON value"},
		{"lone high surrogate escaped", `"\ud800"`, "lone surrogate"},
		{"lone low surrogate escaped", `"\udc00"`, "lone surrogate"},
		{"high surrogate and a letter", `"\ud800\u0041"`, "lone surrogate"},
		{"two high surrogates", `"\ud800\ud800"`, "lone surrogate"},
		{"lone surrogate raw", "\"\xed\xa0\x80\"", "invalid UTF-8"},
		{"pair of raw surrogates (CESU-8)", "\"\xed\xa0\xbd\xed\xb8\x80\"", "invalid UTF-8"},
		{"lone surrogate in a key", `{"\udfff":1}`, "lone surrogate"},
		{"overlong slash", "\"\xc0\xaf\"", "invalid UTF-8"},
		{"cut rune", "\"\xe2\x82\"", "invalid UTF-8"},
		{"cut rune before an escape", "\"\xe2\x82\\n\"", "invalid UTF-8"},
		{"beyond U+10FFFF", "\"\xf4\x90\x80\x80\"", "invalid UTF-8"},
		{"raw line feed", "\"a\nb\"", "control character in a string"},
		{"raw control after an escape", "\"\\n\x01\"", "control character in a string"},
		{"unknown escape", `"\x41"`, "bad escape"},
		{"short unicode escape", `"\u00e"`, "bad escape"},
		{"unterminated string", `"abc`, "unexpected end"},
		{"unterminated escape", `"\`, "unexpected end"},
		{"unterminated object", `{"a":1`, "expected a comma or the end of the array or object"},
		{"missing colon", `{"a" 1}`, "expected a colon"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Parse([]byte(tt.in))
			syntax, ok := errors.AsType[*SyntaxError](err)
			if !ok {
				t.Fatalf("Parse(%q) = %s, %v, want a *SyntaxError", tt.in, v.JSON(), err)
			}
			if syntax.Reason != tt.reason {
				t.Errorf("Parse(%q): reason %q, want %q", tt.in, syntax.Reason, tt.reason)
			}
			if syntax.Offset < 0 || syntax.Offset > len(tt.in) {
				t.Errorf("Parse(%q): offset %d is outside the text", tt.in, syntax.Offset)
			}
		})
	}
}

func TestParseLimits(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	values := func(n int) string { return "[" + strings.Repeat("1,", n-2) + "1]" }
	tests := []struct {
		name, in string
		ok       bool
	}{
		{"depth 32", nested(32), true},
		{"depth 33", nested(33), false},
		{"object depth 32", objects(32), true},
		{"object depth 33", objects(33), false},
		{"depth counts again after closing", "[" + nested(31) + "," + nested(31) + "]", true},
		{"10000 values", values(10000), true},
		{"10001 values", values(10001), false},
		{"100000 brackets", strings.Repeat("[", 100000), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse([]byte(tt.in)); (err == nil) != tt.ok {
				t.Errorf("Parse = %v, want ok %v", err, tt.ok)
			}
		})
	}
	if _, err := ParseLimits([]byte(nested(40)), 40, 40); err != nil {
		t.Errorf("ParseLimits(40, 40) = %v", err)
	}
	if _, err := ParseLimits([]byte(nested(40)), 40, 39); err == nil {
		t.Error("ParseLimits(40, 39) accepted 40 values")
	}
}

// TestParseWide goes through every size at which the reader changes how it keeps members. On both sides of each size,
// duplicates must be found and members must keep their order.
func TestParseWide(t *testing.T) {
	for n := 1; n <= 70; n++ {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"k%d":[%d,{"a":%d}]`, i, i, i))
		}
		text := "{" + strings.Join(members, ",") + "}"
		v, err := Parse([]byte(text))
		if err != nil {
			t.Fatalf("%d members: %v", n, err)
		}
		if got := string(v.JSON()); got != text {
			t.Fatalf("%d members: read %s, want %s", n, got, text)
		}
		for _, i := range []int{0, n / 2, n - 1} {
			twice := "{" + strings.Join(members, ",") + fmt.Sprintf(`,"k%d":null}`, i)
			if _, err := Parse([]byte(twice)); err == nil {
				t.Fatalf("%d members: a second k%d was accepted", n, i)
			}
		}
	}
}

func TestParseObject(t *testing.T) {
	for _, in := range []string{`[]`, `"a"`, `1`, `null`, `true`} {
		if _, err := ParseObject([]byte(in)); err == nil {
			t.Errorf("ParseObject(%s) accepted a value that is not an object", in)
		}
	}
	if v, err := ParseObject([]byte(`{"a":1}`)); err != nil || v.Len() != 1 {
		t.Errorf("ParseObject = %v, %v", v, err)
	}
}

// TestErrorsQuoteNothing checks that errors contain no text of the input (AM-27).
func TestErrorsQuoteNothing(t *testing.T) {
	for _, in := range []string{`{"SECRET":1,"SECRET":2}`, `SECRET`, `{"a":"SECRET`, `[1 SECRET]`, `"\uSECRET"`} {
		_, err := Parse([]byte(in))
		if err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("Parse(%s) = %v", in, err)
		}
	}
}

// TestJSONTestSuite reads nst/JSONTestSuite: all n_ files must be refused, and all y_ files accepted, except those with
// a duplicate key or a number beyond 2^53-1, which AM-12 refuses. The i_ files are left to the implementation, but must not cause a panic.
func TestJSONTestSuite(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpora(t, "jsontestsuite"), "test_*", "*.json"))
	if err != nil || len(files) < 300 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	ours := map[string]bool{
		"y_object_duplicated_key.json": true, "y_object_duplicated_key_and_value.json": true, "y_object_extreme_numbers.json": true,
		"y_number.json": true, "y_number_real_capital_e.json": true, "y_number_real_exponent.json": true, "y_number_real_fraction_exponent.json": true,
	}
	accepted, refused := 0, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		v, err := Parse(data)
		switch {
		case strings.HasPrefix(name, "y_") && !ours[name]:
			accepted++
			if err != nil {
				t.Errorf("%s: refused: %v", name, err)
			} else if again, err := Parse(v.JSON()); err != nil || string(again.JSON()) != string(v.JSON()) {
				t.Errorf("%s: does not survive writing: %v", name, err)
			}
		case strings.HasPrefix(name, "n_"), ours[name]:
			refused++
			if err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}
	if accepted < 85 || refused < 185 {
		t.Errorf("looked at %d y_ and %d n_ files: the corpus is not what it was", accepted, refused)
	}
}

// TestUTF8Tests reads flenniken/utf8tests, with lines of the form "number:valid hex:bytes", "number:valid:text" and
// "number:invalid hex:bytes:…". The reader must agree with each line about text inside a string.
func TestUTF8Tests(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(corpora(t, "utf8tests"), "utf8tests.txt"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[bool]int{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(fields) < 3 || fields[0] == "" || fields[0][0] == '#' {
			continue
		}
		text := []byte(fields[2])
		if strings.HasSuffix(fields[1], "hex") {
			if text, err = hex.DecodeString(strings.ReplaceAll(fields[2], " ", "")); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) {
			continue // JSON itself refuses these bytes, or reads them otherwise
		}
		valid := strings.HasPrefix(strings.TrimSpace(fields[1]), "valid")
		seen[valid]++
		_, err := Parse([]byte(`"` + string(text) + `"`))
		if (err == nil) != valid {
			t.Errorf("%s: Parse = %v, want valid %v", fields[0], err, valid)
		}
		if _, err := Parse([]byte(`{"` + string(text) + `\n":1}`)); (err == nil) != valid {
			t.Errorf("%s: in a key before an escape: Parse = %v, want valid %v", fields[0], err, valid)
		}
	}
	if seen[true] < 30 || seen[false] < 60 {
		t.Errorf("looked at %d valid and %d invalid lines: the corpus is not what it was", seen[true], seen[false])
	}
}

// TestParseForeign checks that a text that is passed on keeps the tokens of numbers that a JSON implementation need not
// read exactly.
func TestParseForeign(t *testing.T) {
	const text = `{"n":[12345678901234567890123,-0,1e400,0.10,1E+2]}`
	v, err := ParseForeign([]byte(text), 4, 10)
	if err != nil || string(v.JSON()) != text {
		t.Errorf("ParseForeign = %s, %v, want it back", v.JSON(), err)
	}
	for _, bad := range []string{`01`, `1.`, `.5`, `1e`, `--1`, `{"a":1,"a":2}`, `[[[[[1]]]]]`, "\"\xff\"", `[1,2,3,4,5,6,7,8,9,10]`} {
		if v, err := ParseForeign([]byte(bad), 4, 10); err == nil {
			t.Errorf("ParseForeign(%s) = %s, want an error", bad, v.JSON())
		}
	}
}
