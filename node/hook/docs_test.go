package hook_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// validator returns the schema of one definition in docs/hooks.schema.json.
func validator(t *testing.T, definition string) func(text []byte) error {
	t.Helper()
	data, err := os.ReadFile("../../docs/hooks.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertContent()
	if err := c.AddResource("hooks.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("hooks.schema.json#/$defs/" + definition)
	if err != nil {
		t.Fatal(err)
	}
	return func(text []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
}

// TestSchema: the schema accepts what a hook gets, and agrees with the node about answers.
func TestSchema(t *testing.T) {
	call, answer := validator(t, "call"), validator(t, "answer")
	input := hook.Try(t.Context(), execHook(""), aCall(t)).Input
	if err := call(input); err != nil {
		t.Errorf("call %s: %v", input, err)
	}
	if call([]byte(strings.Replace(string(input), `"sender"`, `"from"`, 1))) == nil {
		t.Error("the schema accepts a call without a sender")
	}
	// Of these answers only the size, the sequence or the intent is wrong, which a schema cannot express.
	beyond := map[string]bool{
		"after the end": true, "after a completed task": true, "parts that pile up": true, "artifacts that pile up": true,
		"key of digits": true, "does not fit": true, "flood": true,
	}
	for _, tc := range streamTests {
		if strings.HasPrefix(tc.says, "{\n") {
			tc.says = strings.ReplaceAll(tc.says, "\n", " ")
		}
		valid := true
		for line := range strings.SplitSeq(strings.TrimSpace(tc.says), "\n") {
			valid = valid && answer([]byte(line)) == nil
		}
		if want := tc.fault == "" || beyond[tc.name]; valid != want {
			t.Errorf("%s: the schema accepts it: %v, want %v", tc.name, valid, want)
		}
	}
	for _, bad := range []string{
		`{"error":{"code":"RATE_LIMITED"}}`, `{"task":{"state":"done"}}`, `{"from":"x"}`, `{"artifacts":[{"parts":[]}]}`,
		`{"artifacts":[{"parts":[{"text":"x","url":"https://example.com"}]}]}`, `{"artifacts":[{"parts":[{"raw":"***"}]}]}`,
		`{"artifacts":[{"append":true,"parts":[{"text":"x"}]}]}`, `{"artifacts":[{"parts":[{"text":"x","filename":"a/b"}]}]}`,
	} {
		if answer([]byte(bad)) == nil {
			t.Errorf("the schema accepts %s", bad)
		}
	}
}

var example = regexp.MustCompile("(?s)<!-- run: (\\w+) -->\n```\\w+\n(.*?)```")

// TestExamples runs each program in docs/hooks.md as a hook.
func TestExamples(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the examples start with #!")
	}
	text, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	// The answer or verdict of the node for each program, for the message "one two".
	want := map[string]string{
		"sh":         `{"action":"deliver","message":{"body":"You wrote: one two"}}`,
		"python":     `{"action":"deliver","artifacts":[{"name":"words","parts":[{"filename":"words.txt","media_type":"text/plain","raw":"b25lCnR3bw=="},{"data":{"count":2}}]}],"message":{"body":"2 words"},"task":{"state":"completed","text":"2 words"}}`,
		"javascript": "the message would wait for the owner: a stranger writes about mesh.message",
	}
	program := map[string]string{"sh": "jq", "python": "python3", "javascript": "node"}
	answer := validator(t, "answer")
	found := example.FindAllSubmatch(text, -1)
	if len(found) != len(want) {
		t.Errorf("docs/hooks.md has %d examples, want %d", len(found), len(want))
	}
	for _, m := range found {
		name := string(m[1])
		t.Run(name, func(t *testing.T) {
			tool, err := exec.LookPath(program[name])
			if err != nil {
				if os.Getenv("AGENTMESH_TOOLS") == "required" {
					t.Fatal(err)
				}
				t.Skipf("%s is not installed", program[name])
			}
			file := filepath.Join(t.TempDir(), "hook.mjs")
			if err := os.WriteFile(file, m[2], 0o700); err != nil {
				t.Fatal(err)
			}
			call, err := hook.NewTrialCall("am_sarah", wire.Deliver, hook.TextPayload(wire.Deliver, "one two"))
			if err != nil {
				t.Fatal(err)
			}
			got := hook.Try(t.Context(), hook.Exec{Argv: []string{file}, Env: []string{"PATH=" + filepath.Dir(tool) + ":/usr/bin:/bin", "HOME=" + os.Getenv("HOME")}}, call)
			if said := string(got.Answer); said != want[name] && got.Verdict != want[name] {
				t.Errorf("%s answers %s (%s; %s), want %s", name, said, got.Verdict, got.Stderr, want[name])
			}
			for line := range strings.SplitSeq(strings.TrimSpace(got.Output), "\n") {
				var compact bytes.Buffer
				if json.Compact(&compact, []byte(line)) == nil && answer(compact.Bytes()) != nil {
					t.Errorf("%s writes %s, which is not in the schema", name, line)
				}
			}
		})
	}
}
