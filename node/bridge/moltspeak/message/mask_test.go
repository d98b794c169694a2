package message

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// readLabels reads the labeled set: types, a tab, the text. "-" marks a text without personal data.
func readLabels(t testing.TB) (texts []string, types [][]string) {
	t.Helper()
	data, err := os.ReadFile("../testdata/pii.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		label, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			t.Fatalf("line %q has no tab", line)
		}
		var want []string
		if label != "-" {
			want = strings.Split(label, ",")
		}
		texts, types = append(texts, text), append(types, want)
	}
	return texts, types
}

// TestScannerFigures measures precision and recall over pairs of a text and a type, on the labeled set (MS-41).
// docs/bridges/moltspeak.md quotes its output.
func TestScannerFigures(t *testing.T) {
	texts, types := readLabels(t)
	if len(texts) < 400 {
		t.Fatalf("the set has %d texts, want at least 400", len(texts))
	}
	right, missed, wrong := 0, 0, 0
	for i, text := range texts {
		found := personal.Types(wire.Text(text))
		for _, w := range types[i] {
			if slices.Contains(found, w) {
				right++
			} else {
				missed++
				t.Logf("missed %s: %s", w, text)
			}
		}
		for _, f := range found {
			if !slices.Contains(types[i], f) {
				wrong++
				t.Logf("wrongly %s: %s", f, text)
			}
		}
	}
	recall, precision := float64(right)/float64(right+missed), float64(right)/float64(right+wrong)
	t.Logf("%d texts, %d labels: recall %.3f, precision %.3f", len(texts), right+missed, recall, precision)
	if recall < 0.95 || precision < 0.9 {
		t.Errorf("recall %.3f, want 0.95; precision %.3f, want 0.9", recall, precision)
	}
}

// TestScanLeaves: only string leaves are scanned, so a deadline is never taken for a phone number (MS-41).
func TestScanLeaves(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`{"deadline":1703283600000,"n":4155550132,"card":4111111111111111}`, ""},
		{`{"a":[{"b":["write to jane@example.com"]}]}`, "email"},
		{`{"jane@example.com":1}`, ""},
		{`{"first_name":"Jane"}`, "name"}, {`{"name":"my-service"}`, ""}, {`{"phone":"5550143"}`, "phone"}, {`{"ssn":"078051120"}`, "ssn"},
		{`{"dateOfBirth":"1990-03-14"}`, "dob"}, {`{"created":"1990-03-14"}`, ""}, {`{"iban":"xx 123456"}`, "financial"},
		{`{"street":"Elm 5"}`, "address"}, {`{"diagnosis":"flu"}`, "health"},
	} {
		if got := strings.Join(personal.Types(parseText(t, tt.in)), ","); got != tt.want {
			t.Errorf("Types(%s) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzScan(f *testing.F) {
	texts, _ := readLabels(f)
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, found := range personal.Scan(text) {
			if found.Start < 0 || found.End <= found.Start || found.End > len(text) || !slices.Contains(personal.DataTypes(), found.Type) {
				t.Errorf("Scan(%q) found %+v", text, found)
			}
		}
		if utf8.ValidString(text) {
			if masked := maskText(text, personal.DataTypes()); !utf8.ValidString(masked) {
				t.Errorf("masked %q to %q", text, masked)
			}
		}
	})
}

// TestScanToTheEnd: candidates that are not personal data hide nothing behind them, and a text with very many findings
// is masked to its end.
func TestScanToTheEnd(t *testing.T) {
	decoys := strings.Repeat("4111 1111 1111 1112, ", 2*personal.MaxFindings) // not a card: the check digit is wrong
	if got := personal.Types(wire.Text(decoys + "4111 1111 1111 1111")); !slices.Contains(got, personal.TypeFinancial) {
		t.Errorf("behind numbers that are not cards: %v", got)
	}
	many := strings.Repeat("jane.doe@example.com, ", 2*personal.MaxFindings)
	if got := personal.Types(wire.Text(many + "She was diagnosed with cancer.")); !slices.Contains(got, personal.TypeHealth) {
		t.Errorf("behind many addresses: %v", got)
	}
	if got := (&PIIMeta{Types: []string{personal.TypeEmail}}).Mask(wire.Text(many)); strings.Contains(string(got.JSON()), "jane") {
		t.Errorf("of %d addresses, some stay: …%s", 2*personal.MaxFindings, string(got.JSON())[len(got.JSON())-40:])
	}
}

// TestMaskManyMembers: a message keeps the order of its members when it is masked, and as many members as a message may
// have take no time. They once kept the node busy for minutes.
func TestMaskManyMembers(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"p":{"mail":"me@example.org"},"v":"0.1","from":{"agent":"a","org":"o","mail":"me@example.org"},"mail":"me@example.org"`)
	for n := range MaxValues - 100 {
		fmt.Fprintf(&b, `,"%x":1`, n)
	}
	start := time.Now()
	m := Message{Tree: parseText(t, b.String()+"}"), From: Agent{Agent: "a", Org: "o"}, PII: &PIIMeta{MaskFields: []string{"mail"}}}
	got := string(m.Mask().JSON())
	want := `{"p":{"mail":"` + Masked + `"},"v":"0.1","from":{"agent":"a","org":"o"},"mail":"` + Masked + `","0":1,`
	if !strings.HasPrefix(got, want) || time.Since(start) > 10*time.Second {
		t.Errorf("after %v the message begins %.200s", time.Since(start), got)
	}
}
