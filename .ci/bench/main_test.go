package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestMain runs a control server if the test binary was started as one: [startControl] and [startA2A] start their own program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "control" || os.Args[1] == "a2a") {
		main()
		return
	}
	os.Exit(m.Run())
}

func meshbench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err := run(t.Context(), args, streams{in: strings.NewReader(""), out: &out}, &errOut)
	return out.String(), err
}

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string // of the error
	}{
		{"no worker", []string{"figures", "-c", "0"}, "must be 1"},
		{"no round", []string{"figures", "-r", "0"}, "must be 1"},
		{"no time", []string{"figures", "-d", "0s"}, "--duration and --idle"},
		{"unknown part", []string{"figures", "--only", "weather"}, "must be one of"},
		{"too few cards", []string{"figures", "--cards", "1"}, "--cards 100"},
		{"no program", []string{"figures", "--agentmesh", filepath.Join(t.TempDir(), "none"), "--only", "process"}, "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := meshbench(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("meshbench %s = %v, want an error with %q", strings.Join(tc.args, " "), err, tc.want)
			}
		})
	}
}

func agentmeshProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agentmesh")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./cmd/agentmesh")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build agentmesh: %v\n%s", err, out)
	}
	return program
}

// TestEverything: every part of the table and both comparisons work with the current program, and print plausible
// figures. Speed is not checked, because a test machine is not made for measurements.
func TestEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	program := agentmeshProgram(t)
	t.Run("mew", func(t *testing.T) {
		out, err := meshbench(t, "mew", "--agentmesh", program, "-d", "100ms", "-r", "2", "-n", "3", "-w", "4,1", "--rate", "600", "--no-relay")
		if err != nil {
			t.Fatal(err)
		}
		lines := regexp.MustCompile(`log lines +([0-9]+) of ([0-9]+)`).FindStringSubmatch(out)
		if lines == nil || lines[1] != lines[2] || lines[1] == "0" {
			t.Errorf("%q, want every line of the logs", lines)
		}
		if !regexp.MustCompile(`one receiver stopped.* [0-9.]+×\n`).MatchString(out) {
			t.Errorf("no figure of a stopped receiver in\n%s", out)
		}
	})
	t.Run("agentrelay", func(t *testing.T) {
		out, err := meshbench(t, "agentrelay", "--agentmesh", program, "-d", "100ms", "-r", "2", "-n", "3", "-w", "4,1", "--no-relay")
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`\n3 receivers, 4 outstanding +[1-9][0-9]* `).MatchString(out) || !regexp.MustCompile(`one receiver stopped.* [0-9.]+×\n`).MatchString(out) {
			t.Errorf("no figures in\n%s", out)
		}
	})
	t.Run("curves", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "curves.svg")
		out, err := meshbench(t, "curves", "--agentmesh", program, "--sizes", "100,10000", "-d", "50ms", file)
		if err != nil {
			t.Fatal(err)
		}
		picture, err := os.ReadFile(file)
		if err != nil || xml.Unmarshal(picture, new(any)) != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
		// Four costs of conversations, and five of cards, at two sizes each.
		if lines, points := strings.Count(out, "\n"), bytes.Count(picture, []byte("<circle")); lines != 18 || points != 18 || !bytes.Contains(picture, []byte(">10k</text>")) {
			t.Errorf("%d lines and %d points\n%s\n%s", lines, points, out, picture)
		}
	})
	t.Run("figures", func(t *testing.T) {
		out, err := meshbench(t, "figures", "--agentmesh", program, "-d", "40ms", "-r", "1", "-c", "2", "--cards", "600", "--threads", "50", "--conversations", "100", "--mailboxes", "50", "--idle", "50ms", "--json")
		if err != nil {
			t.Fatal(err)
		}
		var table struct{ Figures []figure }
		if err := json.Unmarshal([]byte(out), &table); err != nil {
			t.Fatal(err)
		}
		judged, failed := 0, regexp.MustCompile(`\b[1-9][0-9]* errors|status `)
		for _, f := range table.Figures {
			if f.Goal != nil {
				judged++
			}
			if f.Value <= 0 && !strings.HasPrefix(f.Name, "idle") && !strings.HasPrefix(f.Name, "heap") && !strings.HasPrefix(f.Name, "relay") &&
				!strings.HasPrefix(f.Name, "resident") && // differences
				!strings.Contains(f.Name, "server CPU") { // which is counted in ticks of 10 ms
				t.Errorf("%s is %v %s", f.Name, f.Value, f.Unit)
			}
			if failed.MatchString(f.Note) {
				t.Errorf("%s: %s", f.Name, f.Note)
			}
		}
		if want := 38; judged != want {
			t.Errorf("%d figures have a target, want %d", judged, want)
		}
	})
}

func TestNoProgressWithoutTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := newProgress(f)
	p.say("round %d", 1)
	p.end()
	if info, err := f.Stat(); err != nil || info.Size() > 0 {
		t.Errorf("a file that is not a terminal got %d bytes, %v", info.Size(), err)
	}
	var shown bytes.Buffer
	p = &progress{w: &shown}
	p.say("round %d", 1)
	p.end()
	if !strings.Contains(shown.String(), "round 1") || !strings.HasSuffix(shown.String(), clearLine) {
		t.Errorf("progress = %q", shown.String())
	}
}

// TestDocumentedCommands: the program accepts every command line of README.md.
func TestDocumentedCommands(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "bin/meshbench ")
		if !ok {
			continue
		}
		n++
		if _, err := kong.Must(new(commands)).Parse(strings.Fields(args)); err != nil {
			t.Errorf("meshbench %s: %v", args, err)
		}
	}
	if n < 5 {
		t.Errorf("%d command lines are documented: this test sees too little", n)
	}
}
