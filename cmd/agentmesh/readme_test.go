package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

// placeholder matches the notation for ids: with an ellipsis in documents, as a variable in scripts.
var placeholder = regexp.MustCompile(`(am_|ask_|conv_)…|\$[A-Za-z_]+`)

// TestWalkthrough: docs/walkthrough.md shows the same files as its script, and only commands that the script runs.
func TestWalkthrough(t *testing.T) {
	data, err := os.ReadFile("../../docs/walkthrough.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := txtar.ParseFile("testdata/walkthrough.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range script.Files {
		if !strings.Contains(string(data), "\n"+string(f.Data)+"```\n") {
			t.Errorf("docs/walkthrough.md lacks %s, or shows another content than the script", f.Name)
		}
	}
	played := map[string]bool{}
	for line := range strings.Lines(string(script.Comment)) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "agentmesh"); i >= 0 {
			played[placeholder.ReplaceAllString(strings.Join(fields[i:], " "), "*")] = true
		}
	}
	shown := blocks(t, "docs/walkthrough.md", "<!-- walkthrough -->\n```sh")
	if len(shown) < 4 {
		t.Errorf("the walk-through has %d blocks of commands", len(shown))
	}
	for _, block := range shown {
		for line := range strings.Lines(block) {
			command := placeholder.ReplaceAllString(strings.TrimSpace(line), "*")
			if !played[command] {
				t.Errorf("no script runs %q", strings.TrimSpace(line))
			}
		}
	}
}

// runShell runs lines of a document in a shell. It stops at the first error. An HTTP error makes curl fail.
func runShell(t *testing.T, dir string, env []string, lines string) string {
	t.Helper()
	for _, program := range []string{"bash", "curl", "awk", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "curl() { command curl -sS --fail-with-body \"$@\"; echo; }\n"+lines)
	var errOut bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s\n%s", err, lines, out, errOut.Bytes())
	}
	return string(out)
}

// TestReadmeCurl runs the blocks of the README and of docs/debug-a-peer.md in order, against a serve on another port.
// At the end, the conversation is still open (AM-22).
func TestReadmeCurl(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	dir := t.TempDir()
	server, err := startServe(filepath.Join(dir, "data"), nil, env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	var all strings.Builder
	const mark = "<!-- run by TestReadmeCurl -->\n```sh"
	played := slices.Concat(blocks(t, "README.md", mark), blocks(t, "docs/debug-a-peer.md", mark))
	if len(played) != 6 || played[0] != "agentmesh serve\n" {
		t.Fatalf("the documents have %d blocks for this test, the first is %q", len(played), played[0])
	}
	env = append(env, "AGENTMESH_DATA="+filepath.Join(dir, "data"))
	for _, block := range played[1:] {
		block = strings.ReplaceAll(block, "127.0.0.1:3141", server.info.Address)
		if strings.Contains(block, "ask_…") {
			waiting := regexp.MustCompile(`ask_\w+`).FindString(runShell(t, dir, env, "agentmesh approvals --json"))
			block = strings.ReplaceAll(block, "ask_…", waiting)
		}
		all.WriteString(runShell(t, dir, env, block))
	}
	for _, want := range []string{`"agent_id":"am_by-curl"`, "pending_approval", string(server.info.AgentID), `"body":"hello, curl"`, "valid signature"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, all.String())
		}
	}
	putOff := regexp.MustCompile(`"delivering": 0,\s+"queued": 2`)
	waitFor(t, "both answers to wait for another attempt", func() bool {
		return putOff.MatchString(runShell(t, dir, env, "agentmesh status --json"))
	})
	if got := runShell(t, dir, env, "agentmesh conversations --json"); !strings.Contains(got, `"state": "open"`) {
		t.Errorf("in the end the conversation is not open: %s", got)
	}
}

// TestARDDocs runs the blocks of docs/bridges/ard.md in order, against a directory with one agent.
func TestARDDocs(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	dir := t.TempDir()
	server, err := startServe(filepath.Join(dir, "data"), nil, env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	env = append(env, "AGENTMESH_DATA="+filepath.Join(dir, "data"))
	runShell(t, dir, env, "agentmesh register")
	played := blocks(t, "docs/bridges/ard.md", "<!-- run by TestARDDocs -->\n```sh")
	if len(played) != 4 {
		t.Fatalf("the page has %d blocks", len(played))
	}
	for _, block := range played {
		out := runShell(t, dir, env, strings.ReplaceAll(block, "127.0.0.1:3141", server.info.Address))
		if !strings.Contains(out, "urn:air:127.0.0.1:agent:"+string(server.info.AgentID)) {
			t.Errorf("%s\nanswers %s", block, out)
		}
	}
}

// snippet matches a block of shell lines in a document, with the line before it.
var snippet = regexp.MustCompile("(?m)^(.*)\n```sh\n((?s:.*?))```$")

// snippetMark matches the line before a snippet: it names the script or test that runs it, or the reason not to run it.
var snippetMark = regexp.MustCompile(`^<!-- (walkthrough|operations|run by (\S+)|not run: .{10,}) -->$`)

// TestSnippets: every block of commands in the README, in docs and in .github names the test or script that runs it, and the parser
// accepts every call of agentmesh in it.
func TestSnippets(t *testing.T) {
	found := 0
	check := func(name string) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range snippet.FindAllStringSubmatch(string(data), -1) {
			if strings.HasPrefix(m[2], "#!") {
				continue // a file
			}
			found++
			mark := snippetMark.FindStringSubmatch(m[1])
			if filepath.Base(name) == "SKILL.md" { // tested by TestSkillIsPlayed, and has no marks because agents read it
			} else if mark == nil {
				t.Errorf("%s: this block names no test; write <!-- run by TestName --> or <!-- not run: why --> in the line before it:\n%s", name, m[2])
			} else if mark[2] != "" && !playerExists(t, mark[2]) {
				t.Errorf("%s: there is no %s", name, mark[2])
			}
			for line := range strings.Lines(m[2]) {
				for _, command := range agentmeshCalls(line) {
					var cli commands
					words := shellWords(command)[1:]
					if _, err := manual.Parse(newParser(&cli, io.Discard, io.Discard, manual.OmitUnnamed(&cli, words)), words); err != nil {
						t.Errorf("%s: %s: %v", name, command, err)
					}
				}
			}
		}
	}
	for _, name := range documents(t) {
		check(name)
	}
	if found < 15 {
		t.Errorf("%d snippets were found: the test sees too little", found)
	}
}

// playerExists reports whether there is a test or a script of that name.
func playerExists(t *testing.T, name string) bool {
	t.Helper()
	if strings.HasPrefix(name, "testdata/") {
		_, err := os.Stat(name)
		return err == nil
	}
	tests, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(tests, func(file string) bool {
		data, err := os.ReadFile(file)
		return err == nil && bytes.Contains(data, []byte("\nfunc "+name+"("))
	})
}

var (
	shellComment = regexp.MustCompile(`(^|\s)#.*`)
	shellJoin    = regexp.MustCompile(`\s*(\||;|&&|&)\s*`)
	redirection  = regexp.MustCompile(`\s[<>].*`)
)

func agentmeshCalls(line string) []string {
	var out []string
	for _, part := range shellJoin.Split(shellComment.ReplaceAllString(line, ""), -1) {
		part = strings.TrimSpace(redirection.ReplaceAllString(part, ""))
		if strings.HasPrefix(part, "agentmesh ") {
			out = append(out, part)
		}
	}
	return out
}

// TestReadmeNamesTheCommands: the README shows the first commands as lines that a reader can paste, in 600 words at
// most.
func TestReadmeNamesTheCommands(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(data))); n > 600 {
		t.Errorf("the README has %d words", n)
	}
	for _, want := range []string{"\ngo run ./cmd/agentmesh demo\n", "\ngo install ./cmd/agentmesh\n", "\nagentmesh serve\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the README lacks the line %q", strings.TrimSpace(want))
		}
	}
}

var inlineCommand = regexp.MustCompile("`agentmesh ([^`]+)`")

// TestInlineCommands: every command that a document names in its text exists, with the named flags.
func TestInlineCommands(t *testing.T) {
	var cli commands
	root := newParser(&cli, io.Discard, io.Discard).Model.Node
	named := 0
	check := func(name string) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inlineCommand.FindAllStringSubmatch(string(data), -1) {
			named++
			node := root
			for _, word := range shellWords(m[1]) {
				if word == "--" { // ends the flags
					break
				}
				flag, isFlag := strings.CutPrefix(word, "--")
				flag, _, _ = strings.Cut(flag, "=")
				if next := manual.FindSubcommand(node, word); next != nil {
					node = next
				} else if isFlag && !slices.Contains(manual.Complete(node, []string{"--" + flag}, nil), "--"+flag) {
					t.Errorf("%s: %s has no flag --%s: %s", name, commandPath(node), flag, m[0])
				}
			}
			if node == root {
				t.Errorf("%s: there is no such command: %s", name, m[0])
			}
		}
	}
	for _, name := range documents(t) {
		if filepath.Base(name) == "changes.md" { // it names commands that are gone
			continue
		}
		check(name)
	}
	if named < 40 {
		t.Errorf("%d commands are named: the test sees too little", named)
	}
}

func documents(t *testing.T) []string {
	t.Helper()
	names := []string{"../../README.md"}
	for _, dir := range []string{"../../docs", "../../.github"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(name, ".md") {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}
