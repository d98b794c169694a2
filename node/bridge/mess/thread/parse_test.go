package thread

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// Corpora returns a folder of third-party test data. It skips the test if AGENTMESH_CORPORA is not set.
func Corpora(t *testing.T, elem ...string) string {
	t.Helper()
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with test data")
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

func MustParse(t testing.TB, text string) Block {
	t.Helper()
	b, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%.200q): %v", text, err)
	}
	return b
}

// TestSpellings: the spellings of one block give the same tree, and a stream of documents is one block (MESS-2).
func TestSpellings(t *testing.T) {
	want := string(MustParse(t, `[{"v":"1.0.0"},{"request":{"intent":"look","priority":"urgent"}}]`).Tree().JSON())
	for _, text := range []string{
		`{"MESS":[{"v":"1.0.0"},{"request":{"intent":"look","priority":"urgent"}}]}`,
		"MESS:\n- v: 1.0.0\n- request: {intent: look, priority: urgent}\n",
		"- v: 1.0.0\n- request:\n    intent: look\n    priority: urgent\n",
		"MESS:\n- v: 1.0.0\n---\nMESS:\n- request:\n    intent: look\n    priority: urgent\n",
		"{MESS: [{v: 1.0.0}, {request: {intent: look, priority: urgent}}]}",
		"# comment\n--- #c\nMESS:\n- v: 1.0.0\n--- #c\n- request: {intent: look, priority: urgent}\n",
	} {
		if got := string(MustParse(t, text).Tree().JSON()); got != want {
			t.Errorf("Parse(%q) = %s, want %s", text, got, want)
		}
	}
}

// TestSpecBlocks: every example of the specification parses, and our YAML and JSON of it read back equal
// (MESS-17).
func TestSpecBlocks(t *testing.T) {
	data, err := os.ReadFile("testdata/spec-blocks.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := txtar.Parse(data).Files
	if len(files) < 40 {
		t.Fatalf("%d blocks", len(files))
	}
	for _, f := range files {
		b := MustParse(t, string(f.Data))
		for _, again := range [][]byte{b.YAML(), b.JSON(), b.Tree().JSON()} {
			if got := MustParse(t, string(again)); string(got.JSON()) != string(b.JSON()) {
				t.Errorf("block %s came back as %s, want %s", f.Name, got.JSON(), b.JSON())
			}
		}
	}
}

// lineless documents are refused as a whole, without a line.
var lineless = map[string]bool{"JSON NUL": true}

func TestHostileDocuments(t *testing.T) {
	for name, text := range threadtest.Hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Parse([]byte(text))
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if len(err.Error()) > 300 {
				t.Errorf("the refusal has %d bytes", len(err.Error()))
			}
			if !lineless[name] && !strings.Contains(err.Error(), "line ") {
				t.Errorf("no line is named: %v", err)
			}
			used := after.TotalAlloc - before.TotalAlloc
			t.Logf("%v, %d KiB: %v", took.Round(10*time.Microsecond), used>>10, err)
			// 100 ms on a quiet machine; the bound is a hundred times that, for busy machines and the race detector.
			if took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if used > 64<<20 {
				t.Errorf("it took %d MiB", used>>20)
			}
		})
	}
}

// TestRefusalsSayWhere: a refusal names the place: the line of invalid YAML or of an exceeded limit, the entry of an
// invalid block.
func TestRefusalsSayWhere(t *testing.T) {
	for _, text := range []string{
		"a: 1\nb: 2\na: 3\n",
		"a: &x 1\n",
		"MESS:\n- request:\n    intent: [\n",
		"MESS:\n- {v: 1.0.0, request: {}}\n",
		"MESS:\n- v: 1.0.0\n- request\n",
		"MESS:\n- v: 1.0.0\n---\nMESS:\n- {}\n",
		"MESS: 3\n",
		"other: []\n",
		"",
		"[]",
		"{\"MESS\":[\n{\"v\":\"1.0.0\"},\n]}",
		"MESS:\n- request:\n    intent: |\n      a\n---\nb\n",
	} {
		_, err := Parse([]byte(text))
		goldentest.Refuses(t, fmt.Sprintf("%q", text), err)
	}
}

// TestRefusalReasons: in a block that is otherwise valid, each of these values is refused for its own reason.
func TestRefusalReasons(t *testing.T) {
	in := func(z string) []byte { return []byte("MESS:\n- request:\n    intent: x\n    z: " + z + "\n") }
	for z, refused := range map[string]bool{
		"1":                    false,
		"{__proto: 1}":         false,
		"{__proto__: {b: 1}}":  true,
		`[{"__proto__": 1}]`:   true,
		`{"\x5f_proto__": 1}`:  true,
		"{a: 1, a: 2}":         true,
		`{a: 1, "\x61": 2}`:    true,
		"{a: &x 1}":            true,
		"{&x a: 1}":            true,
		"[*x]":                 true,
		"{<<: {b: 1}}":         true,
		"{[a]: 1}":             true,
		"!!binary aGk=":        true,
		"! 1":                  true,
		"!!int foo":            true,
		"9007199254740992":     true,
		"9007199254740993.0":   true,
		"9.007199254740993e15": true,
		"{" + strings.ReplaceAll(threadtest.Keys(1001), "\n", ", ") + "}": true,
		"[" + strings.Repeat("1,", 10_000) + "]":                          true,
		strings.Repeat("[", 29) + strings.Repeat("]", 29):                 true,
		"{" + strings.Repeat("k", 513) + ": 1}":                           true,
	} {
		_, err := Parse(in(z))
		if (err != nil) != refused || refused && !goldentest.Refuses(t, fmt.Sprintf("%.40q", z), err) {
			t.Errorf("z: %.80s: %v, refused must be %t", z, err, refused)
		}
	}
}

// TestNaughtyStrings: unusual strings survive as the intent of a block that we write, through YAML and JSON.
func TestNaughtyStrings(t *testing.T) {
	data, err := os.ReadFile(Corpora(t, "blns", "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := wire.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	for e := range list.Elems() {
		b := Block{{Type: "request", Body: wire.Obj(wire.Field("intent", e), wire.Field("context", wire.Arr(e, e)))}}
		for _, text := range [][]byte{b.YAML(), b.JSON()} {
			again, err := Parse(text)
			if err != nil || string(again.JSON()) != string(b.JSON()) {
				t.Errorf("%s is written as %q and reads as %v, %v", e.JSON(), text, again, err)
			}
		}
		if len(e.JSON()) > 2 && len(e.JSON()) < 100 {
			s, _ := e.Str()
			key := yamltree.Append(nil, wire.Obj(wire.Field(s, wire.Int(1))))
			if docs, err := parseYAML(key, Limits); s != "__proto__" && (err != nil || docs[0].Members()[0].Key != s) {
				t.Errorf("key %q is written as %q: %v, %v", s, key, docs, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range threadtest.Hostile() {
		if len(text) < 4096 {
			f.Add([]byte(text))
		}
	}
	f.Add([]byte("MESS:\n- v: 1.0.0\n- request:\n    intent: look\n    context: [a, {image: \"https://x.example/a\"}]\n"))
	f.Add([]byte(`{"MESS":[{"status":{"re":"a","code":"claimed"}}]}`))
	f.Add([]byte("- note: |2-\r\n   a\u2028b\r  c\u0085\n- 'it''s': \"\\x41\\u2029\\\n  z\"\n"))
	f.Add([]byte("%YAML 1.2\n--- # c\n- v: 1.10\n--- !!seq\n- note: >+\n   folded\n\n\n...\n"))
	f.Add([]byte("- request: {intent: \"\\ud83d\\ude00\", priority: urgent, requires: [a: {level: -0.0}, 1e5], needed_by: 2026-01-01T00:00:00+14:00}\n- query: {type: status, filter: {status: in-progress, since: \"2026-01-01T00:00:00Z\"}}\n"))
	f.Add([]byte("[{config: {executor: {id: a, capabilities: [], availability: schedule, schedule: '*/5 8-22 L * 1#2', timezone: Asia/Kathmandu}}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			return
		}
		_ = b.Check(time.Unix(1e9, 0))
		for _, text := range [][]byte{b.YAML(), b.JSON()} {
			again, err := Parse(text)
			if err != nil {
				t.Fatalf("what we wrote is refused: %v\n%q", err, text)
			}
			if string(again.JSON()) != string(b.JSON()) {
				t.Fatalf("wrote %q, read %s, want %s", text, again.JSON(), b.JSON())
			}
		}
	})
}
