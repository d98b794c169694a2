package guard_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
)

// injection is a text of testdata/injections.jsonl.
type injection struct {
	Lang    string
	Verdict guard.Decision
	Text    string
	Missed  bool // a list of words does not know it
}

func injections(t *testing.T) []injection {
	t.Helper()
	data, err := os.ReadFile("testdata/injections.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var list []injection
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var i injection
		if err := json.Unmarshal(lines.Bytes(), &i); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		list = append(list, i)
	}
	languages, hostile := make(map[string]bool), 0
	for _, i := range list {
		languages[i.Lang] = true
		if i.Verdict == guard.Deny {
			hostile++
		}
	}
	if hostile < 60 || len(languages) < 5 {
		t.Fatalf("%d texts in %d languages", hostile, len(languages))
	}
	return list
}

// some returns the injections for a guard that is a program: all of them with the tag slow.
func some(t *testing.T) []injection {
	list := injections(t)
	for i := len(list) - 1; i >= 0 && !allTexts; i-- {
		if i%24 != 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

// text returns the text with the digest of its question, which no peer knows before.
func (i injection) text(g *guard.Guard) guard.Text {
	text := aText(i.Text)
	return aText(strings.ReplaceAll(i.Text, "DIGEST", g.Key(text)))
}

// TestInjections: no text moves a scripted guard to another verdict. A guard that repeats a text, or answers with it, gives
// no verdict.
func TestInjections(t *testing.T) {
	var output func(document string) string
	webhook, agent := servers(t, func(document string) string { return output(document) })
	for name, h := range map[string]hook.Asker{"webhook": webhook, "a2a": agent} {
		g := newGuard(h)
		for _, i := range injections(t) {
			text := i.text(g)
			message, _ := text.Payload.Get("message")
			for _, decision := range []guard.Decision{guard.Allow, guard.Review, guard.Deny} {
				output = func(string) string { return fmt.Sprintf(`{"digest":%q,"verdict":%q}`, g.Key(text), decision) }
				if v, err := g.Judge(t.Context(), hook.Source{}, text); v.Decision != decision || err != nil {
					t.Errorf("%s: %q: %+v, %v, want %s", name, i.Text, v, err, decision)
				}
			}
			for what, answer := range map[string]func(document string) string{
				"with the question": func(document string) string { return document },
				"with the text":     func(string) string { return message.GetStr("body") },
				"for the reason that the text is": func(string) string {
					reason, _ := json.Marshal(message.GetStr("body"))
					return fmt.Sprintf(`{"digest":%q,"verdict":"allow","reason":%s}`, g.Key(text), reason)
				},
			} {
				output = answer
				if v, err := g.Judge(t.Context(), hook.Source{}, text); v.Decision != guard.Review || err == nil {
					t.Errorf("%s answers %s: %q: %+v, %v", name, what, i.Text, v, err)
				}
			}
		}
	}
}

var example = regexp.MustCompile("(?s)<!-- guard: (\\w+) -->\n```\\w*\n(.*?)```")

// examples writes the guards of docs/hooks.md to files and returns the folder.
func examples(t *testing.T, tool string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the examples start with #!")
	}
	if _, err := exec.LookPath(tool); err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatal(err)
		}
		t.Skipf("%s is not installed", tool)
	}
	text, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	names := map[string]string{"sh": "guard.sh", "words": "guard-words.txt", "python": "guard.py"}
	found := example.FindAllSubmatch(text, -1)
	if len(found) != len(names) {
		t.Fatalf("docs/hooks.md has %d examples", len(found))
	}
	for _, m := range found {
		if err := os.WriteFile(filepath.Join(dir, names[string(m[1])]), m[2], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// environment returns the environment of an example, in which tool is found.
func environment(t *testing.T, tool string, more ...string) []string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"PATH=" + filepath.Dir(path) + ":/usr/bin:/bin", "HOME=" + os.Getenv("HOME")}, more...)
}

// TestWordList runs the sh program of docs/hooks.md on the injections. It denies those whose words it knows, and lets no
// harmless text wait.
func TestWordList(t *testing.T) {
	dir := examples(t, "jq")
	g := newGuard(hook.Exec{Argv: []string{filepath.Join(dir, "guard.sh")}, Env: environment(t, "jq")})
	for _, i := range some(t) {
		want := i.Verdict
		if i.Missed {
			want = guard.Allow
		}
		v, err := g.Judge(t.Context(), hook.Source{}, i.text(g))
		if v.Decision != want || err != nil || want == guard.Deny && v.Reason == "" {
			t.Errorf("%s %q: %+v, %v, want %s", i.Lang, i.Text, v, err, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "guard-words.txt")); err != nil {
		t.Fatal(err)
	}
	if v, err := g.Judge(t.Context(), hook.Source{}, aText("hello")); v.Decision != guard.Review || err == nil {
		t.Errorf("without its list: %+v, %v", v, err)
	}
}

// TestModel runs the Python program of docs/hooks.md on the injections, with a stub as the model. What is not one of three
// words is no verdict.
func TestModel(t *testing.T) {
	dir := examples(t, "python3")
	var said string
	var heard struct {
		Model    string
		Messages []struct{ Role, Content string }
	}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&heard); err != nil {
			t.Error(err)
		}
		answer, _ := json.Marshal(said)
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%s}}]}`, answer)
	}))
	defer model.Close()
	g := newGuard(hook.Exec{
		Argv: []string{filepath.Join(dir, "guard.py")}, Env: environment(t, "python3", "GUARD_URL="+model.URL, "GUARD_MODEL=stub"),
	})
	for _, i := range some(t) {
		text := i.text(g)
		said = " " + strings.ToUpper(string(i.Verdict)) + "\n"
		v, err := g.Judge(t.Context(), hook.Source{}, text)
		if v.Decision != i.Verdict || err != nil {
			t.Errorf("%s %q: %+v, %v, want %s", i.Lang, i.Text, v, err, i.Verdict)
		}
		if len(heard.Messages) != 2 || heard.Model != "stub" {
			t.Errorf("the model heard %+v", heard)
		}
		var message struct {
			Payload struct{ Message struct{ Body string } }
		}
		sent, _ := text.Payload.Get("message")
		if err := json.Unmarshal([]byte(heard.Messages[1].Content), &message); err != nil || message.Payload.Message.Body != sent.GetStr("body") {
			t.Errorf("the model heard %q: %v", heard.Messages[1].Content, err)
		}
	}
	for _, said = range []string{"", "Sure! allow", `{"verdict":"allow"}`} {
		if v, err := g.Judge(t.Context(), hook.Source{}, aText("hello")); v.Decision != guard.Review || err == nil {
			t.Errorf("the model says %q: %+v, %v", said, v, err)
		}
	}
}

// TestSchema: the schema accepts what a guard gets, and agrees with the node about the shape of verdicts.
func TestSchema(t *testing.T) {
	data, err := os.ReadFile("../../docs/hooks.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("hooks.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	matches := func(definition string, text []byte) bool {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		return err == nil && c.MustCompile("hooks.schema.json#/$defs/"+definition).Validate(v) == nil
	}
	g, text := newGuard(nil), aText("hello")
	if question := text.Document(g.Key(text)); !matches("question", question) || matches("question", bytes.Replace(question, []byte("digest"), []byte("hash"), 1)) {
		t.Errorf("the schema does not describe %s", question)
	}
	for _, s := range []string{
		`{"digest":"d","verdict":"allow"}`, `{"digest":"d","verdict":"deny","reason":"no"}`, `{"digest":"d","verdict":"no"}`, `{"verdict":"allow"}`,
		`{"digest":"d","verdict":"allow","score":1}`, `{"digest":"d","verdict":"allow","reason":1}`, `[]`,
	} {
		if _, err := guard.Parse([]byte(s), "d", text.Payload); matches("verdict", []byte(s)) != (err == nil) {
			t.Errorf("%s: the parser says %v, the schema does not", s, err)
		}
	}
}
