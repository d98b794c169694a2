package signing

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"

	"github.com/agentmesh/agentmesh/node/wire"
)

// corpora returns a folder of the third-party test data, or skips the test.
func corpora(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA is not set: no third-party test data")
	}
	return filepath.Join(root, name)
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// mustParse reads every JSON number, because the canonical forms are checked for those that AM-12 refuses, too.
func mustParse(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(text), wire.MaxDepth, wire.MaxValues)
	if err != nil {
		t.Fatalf("Parse(%s) = %v", text, err)
	}
	return v
}

// TestForms checks AM-14 and the cases of rules 12–16. Each row has one text for each of the five forms; "" means the
// same text as the form before it.
func TestForms(t *testing.T) {
	tests := []struct {
		name, in                    string
		jcs, plain, es, ascii, html string
	}{
		{"all alike", ` { "b" : [ 1 , true , null ] , "a" : "x" } `, `{"a":"x","b":[1,true,null]}`, "", "", "", ""},
		{"empty", `{"z":{},"y":[],"x":""}`, `{"x":"","y":[],"z":{}}`, "", "", "", ""},
		{"sorted at every depth", `[{"b":{"d":1,"c":2},"a":3}]`, `[{"a":3,"b":{"c":2,"d":1}}]`, "", "", "", ""},
		{"nested signature stays", `{"p":{"signature":"s","a":1}}`, `{"p":{"a":1,"signature":"s"}}`, "", "", "", ""},
		{"keys by exact case", `{"to":1,"TO":2,"To":3}`, `{"TO":2,"To":3,"to":1}`, "", "", "", ""},
		{"whole-number float", `[1.0,10.50,1e2,1E2,100]`, `[1,10.5,100,100,100]`, `[1.0,10.50,1e2,1E2,100]`, `[1,10.5,100,100,100]`, `[1.0,10.50,1e2,1E2,100]`, ""},
		{"minus zero", `[-0,-0.0,0]`, `[0,0,0]`, `[-0,-0.0,0]`, `[0,0,0]`, `[-0,-0.0,0]`, ""},
		{"integer-like keys", `{"2":1,"10":2,"a":3,"1":4,"01":5}`, `{"01":5,"1":4,"10":2,"2":1,"a":3}`, "",
			`{"1":4,"2":1,"10":2,"01":5,"a":3}`, `{"01":5,"1":4,"10":2,"2":1,"a":3}`, ""},
		{"array index ends at 2^32-2", `{"4294967295":1,"4294967294":2,"9":3,"-1":4,"":5}`,
			`{"":5,"-1":4,"4294967294":2,"4294967295":1,"9":3}`, "", `{"9":3,"4294967294":2,"":5,"-1":4,"4294967295":1}`,
			`{"":5,"-1":4,"4294967294":2,"4294967295":1,"9":3}`, ""},
		{"keys beyond the BMP", "{\"\ue000\":1,\"\U00010000\":2,\"\uffff\":3,\"é\":4}",
			"{\"é\":4,\"\U00010000\":2,\"\ue000\":1,\"\uffff\":3}", "{\"é\":4,\"\ue000\":1,\"\uffff\":3,\"\U00010000\":2}",
			"{\"é\":4,\"\U00010000\":2,\"\ue000\":1,\"\uffff\":3}",
			`{"\u00e9":4,"\ue000":1,"\uffff":3,"\ud800\udc00":2}`, "{\"é\":4,\"\ue000\":1,\"\uffff\":3,\"\U00010000\":2}"},
		{"beyond ASCII", `"Grüße 😀"`, `"Grüße 😀"`, "", "", `"Gr\u00fc\u00dfe \ud83d\ude00"`, `"Grüße 😀"`},
		{"DEL", `"\u007f"`, "\"\x7f\"", "", "", `"\u007f"`, "\"\x7f\""},
		{"html", "\"<a> & b\u2028\u2029\"", "\"<a> & b\u2028\u2029\"", "", "", `"<a> & b\u2028\u2029"`, `"\u003ca\u003e \u0026 b\u2028\u2029"`},
		{"html in a key", `{"<":1}`, `{"<":1}`, "", "", "", `{"\u003c":1}`},
		{"escapes", `"\u0000\b\t\n\u000b\f\r\u001f\"\\\/"`, `"\u0000\b\t\n\u000b\f\r\u001f\"\\/"`, "", "", "", ""},
		{"escapes among others", "\"\\n<\\t>\u00e9\\\"\"", `"\n<\t>é\""`, "", "", `"\n<\t>\u00e9\""`, `"\n\u003c\t\u003eé\""`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := mustParse(t, tt.in)
			want := ""
			for i, text := range []string{tt.jcs, tt.plain, tt.es, tt.ascii, tt.html} {
				if text != "" {
					want = text
				}
				f := Forms()[i]
				if got := string(Canonical(v, f)); got != want {
					t.Errorf("%s = %s\nwant %s", f, got, want)
				}
			}
		})
	}
}

func TestFormNames(t *testing.T) {
	var names []string
	for _, f := range Forms() {
		names = append(names, f.String())
	}
	if got := strings.Join(names, " "); got != "jcs plain es ascii html" {
		t.Errorf("forms in order: %s", got)
	}
}

// TestFormsReadBack checks that every form reads back to the same tree, so accepting a form loses nothing (AM-14).
func TestFormsReadBack(t *testing.T) {
	for _, in := range []string{benchMessage, `{"10":"<\u2028é😀\u007f","2":[1.5,-0.0,1e-9],"a":{"b":null}}`} {
		v := mustParse(t, in)
		for _, f := range Forms() {
			back := mustParse(t, string(Canonical(v, f)))
			if !bytes.Equal(Canonical(back, JCS), Canonical(v, JCS)) {
				t.Errorf("%s does not read back to the same tree: %s", f, Canonical(v, f))
			}
		}
	}
}

// TestManyKeys checks objects that are too large to be sorted without an allocation.
func TestManyKeys(t *testing.T) {
	var in, want []string
	for i := range 40 {
		in = append(in, `"k`+strconv.Itoa(99-i)+`":0`)
		want = append(want, `"k`+strconv.Itoa(60+i)+`":0`)
	}
	got := string(Canonical(mustParse(t, "{"+strings.Join(in, ",")+"}"), JCS))
	if got != "{"+strings.Join(want, ",")+"}" {
		t.Errorf("Canonical = %s", got)
	}
}

// TestNumberTokens checks the samples of RFC 8785 appendix B and the limits at which its rules change.
func TestNumberTokens(t *testing.T) {
	tests := []struct{ token, want string }{
		{"0", "0"}, {"-0", "0"}, {"0e5", "0"}, {"-0.0e-0", "0"}, {"1e-400", "0"},
		{"5e-324", "5e-324"}, {"4.9406564584124654e-324", "5e-324"}, {"2e-324", "0"}, {"3e-324", "5e-324"},
		{"1.7976931348623157e308", "1.7976931348623157e+308"},
		{"2.2250738585072014e-308", "2.2250738585072014e-308"}, {"2.225073858507201e-308", "2.225073858507201e-308"},
		{"9007199254740991", "9007199254740991"}, {"-9007199254740991", "-9007199254740991"},
		{"9007199254740992.0", "9007199254740992"}, {"9007199254740993.0", "9007199254740992"},
		{"295147905179352830000.0", "295147905179352830000"},
		{"999999999999999.0", "999999999999999"}, {"999999999999999", "999999999999999"}, {"1000000000000000", "1000000000000000"},
		{"1e20", "100000000000000000000"}, {"999999999999999900000.0", "999999999999999900000"},
		{"999999999999999999999.0", "1e+21"}, {"1e21", "1e+21"}, {"1e23", "1e+23"}, {"9.999999999999997e22", "9.999999999999997e+22"},
		{"9.999999999999997e-7", "9.999999999999997e-7"}, {"0.000001", "0.000001"}, {"0.0000010", "0.000001"}, {"1e-6", "0.000001"}, {"1e-7", "1e-7"},
		{"1E-10", "1e-10"}, {"1.5e100", "1.5e+100"},
		{"333333333.33333329", "333333333.3333333"}, {"333333333.3333332", "333333333.3333332"}, {"333333333.33333325", "333333333.33333325"},
		{"1424953923781206.25", "1424953923781206.2"}, {"-0.0000033333333333333333", "-0.0000033333333333333333"},
		{"4.50", "4.5"}, {"2e-3", "0.002"}, {"1E30", "1e+30"}, {"100", "100"}, {"-1.0", "-1"}, {"0.1", "0.1"},
	}
	for _, tt := range tests {
		for _, f := range []Form{JCS, ES} {
			if got := string(Canonical(mustParse(t, tt.token), f)); got != tt.want {
				t.Errorf("%s %s = %s, want %s", f, tt.token, got, tt.want)
			}
		}
		for _, f := range []Form{Plain, ASCII, HTML} {
			if got := string(Canonical(mustParse(t, tt.token), f)); got != tt.token {
				t.Errorf("%s %s = %s, want the token as written", f, tt.token, got)
			}
		}
	}
}

// TestFloatEdges compares the doubles next to every power of two and of ten with the output of an oracle, the
// ECMAScript algorithm of the author of RFC 8785.
func TestFloatEdges(t *testing.T) {
	var edges []float64
	for e := -1074; e <= 1023; e++ {
		edges = append(edges, math.Ldexp(1, e))
	}
	for e := -324; e <= 308; e++ {
		f, _ := strconv.ParseFloat("1e"+strconv.Itoa(e), 64)
		edges = append(edges, f)
	}
	edges = append(edges, 0, math.SmallestNonzeroFloat64, math.MaxFloat64, 1<<53-1, 1<<53, 1<<53+2, 0.1, 1.0/3)
	for _, edge := range edges {
		for _, f := range []float64{math.Nextafter(edge, math.Inf(-1)), edge, math.Nextafter(edge, math.Inf(1)), -edge} {
			if math.IsInf(f, 0) {
				continue
			}
			want, err := jcs.NumberToJSON(f)
			if err != nil {
				t.Fatal(err)
			}
			token := strconv.FormatFloat(f, 'e', -1, 64)
			if got := string(Canonical(mustParse(t, token), JCS)); got != want {
				t.Errorf("%s = %s, want %s", token, got, want)
			}
		}
	}
}

// TestCyberphone checks the input, output and outhex files and the 10 000 numbers that the author of RFC 8785
// published.
func TestCyberphone(t *testing.T) {
	dir := corpora(t, "jcs-cyberphone")
	inputs, err := filepath.Glob(filepath.Join(dir, "testdata", "input", "*.json"))
	if err != nil || len(inputs) != 6 {
		t.Fatalf("found %d inputs, %v", len(inputs), err)
	}
	for _, input := range inputs {
		name := filepath.Base(input)
		got := Canonical(mustParse(t, string(readFile(t, input))), JCS)
		if want := readFile(t, filepath.Join(dir, "testdata", "output", name)); !bytes.Equal(got, want) {
			t.Errorf("%s = %s\nwant %s", name, got, want)
		}
		outhex := strings.Join(strings.Fields(string(readFile(t, filepath.Join(dir, "testdata", "outhex", strings.TrimSuffix(name, "json")+"txt")))), "")
		if hex.EncodeToString(got) != outhex {
			t.Errorf("%s = %x, want %s", name, got, outhex)
		}
	}

	lines := 0
	s := bufio.NewScanner(bytes.NewReader(readFile(t, filepath.Join(dir, "es6_numbers_10k.txt"))))
	for ; s.Scan(); lines++ {
		bits, want, _ := strings.Cut(s.Text(), ",")
		n, err := strconv.ParseUint(bits, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		token := strconv.FormatFloat(math.Float64frombits(n), 'e', -1, 64)
		if got := string(Canonical(mustParse(t, token), JCS)); got != want {
			t.Errorf("%s (%s) = %s, want %s", bits, token, got, want)
		}
	}
	if lines != 10000 {
		t.Errorf("read %d numbers", lines)
	}
}

// TestPeers verifies signatures of other implementations, from testdata/peers.json. The file was generated once with
// node v20 (keys sorted at every depth and JSON.stringify, like the reference implementation), python3 (json.dumps,
// with and without ensure_ascii) and go1.26 (json.Marshal of a map). Node signed all texts with the Ed25519 key of 32
// bytes of 7.
func TestPeers(t *testing.T) {
	var file struct {
		PublicKey string `json:"public_key"`
		Vectors   []struct{ Name, Form, By, Message, Canonical, Signature string }
	}
	if err := json.Unmarshal(readFile(t, filepath.Join("testdata", "peers.json")), &file); err != nil {
		t.Fatal(err)
	}
	key, err := ParsePublicKey(file.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	matched := map[Form]int{}
	for _, vec := range file.Vectors {
		t.Run(vec.Form+" "+vec.Name, func(t *testing.T) {
			v := mustParse(t, vec.Message)
			got, err := key.VerifyValue(v, vec.Signature, Window{}, time.Now())
			if err != nil || string(got.Canonical) != vec.Canonical {
				t.Fatalf("signed by %s: VerifyValue = %v; form %s is %s", vec.By, err, got.Form, got.Canonical)
			}
			matched[got.Form]++
			for _, f := range Forms() {
				if f.String() == vec.Form && string(Canonical(v, f)) != vec.Canonical {
					t.Errorf("%s = %s, want %s", f, Canonical(v, f), vec.Canonical)
				}
			}
			changed := v.With("to", wire.Text("am_other"))
			if _, err := key.VerifyValue(changed, vec.Signature, Window{}, time.Now()); err == nil {
				t.Error("another recipient verifies too")
			}
		})
	}
	for _, f := range Forms() {
		if matched[f] == 0 {
			t.Errorf("no vector needed the form %s", f)
		}
	}
}

// FuzzCanonicalAgainstOracle checks every text that the strict reader accepts: the JCS form equals that of
// gowebpki/jcs, every form reads back to the same tree, and JCS is idempotent.
func FuzzCanonicalAgainstOracle(f *testing.F) {
	for _, s := range []string{benchMessage, `[1.0,-0,1e21,1e-7,9007199254740991,0.1]`, "{\"\ue000\":1,\"\U00010000\":2,\"é\":{\"b\":1,\"a\":2}}",
		`{"10":1,"2":2,"":3,"\u0000":4,"\ud83d\ude00":5}`, `"<>&\u2028\u007f\b\f"`, `[]`, `null`, `[333333333.33333329,4.50,2e-3,5e-324]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := wire.Parse(data)
		if err != nil {
			return
		}
		got := Canonical(v, JCS)
		if k := v.Kind(); k == wire.Object || k == wire.Array { // the oracle accepts only objects and arrays
			want, err := jcs.Transform(data)
			if err != nil {
				t.Fatalf("the oracle refuses %q: %v", data, err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("JCS of %q = %q, the oracle says %q", data, got, want)
			}
		}
		for _, form := range Forms() {
			text := Canonical(v, form)
			back, err := wire.Parse(text)
			if err != nil {
				if form == JCS || form == ES {
					continue // 1e20 is written out and is then beyond 2^53−1
				}
				t.Fatalf("%s of %q = %q is refused: %v", form, data, text, err)
			}
			if again := Canonical(back, JCS); !bytes.Equal(again, got) {
				t.Fatalf("%s of %q reads back as %q, not %q", form, data, again, got)
			}
		}
	})
}
