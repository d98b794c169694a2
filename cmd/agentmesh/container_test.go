package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

type instruction struct{ name, args string }

// readContainerfile parses docs/operations/Containerfile into its stages.
func readContainerfile(t *testing.T) [][]instruction {
	t.Helper()
	data, err := os.ReadFile("../../docs/operations/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	var stages [][]instruction
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		if name == "FROM" {
			stages = append(stages, nil)
		}
		if len(stages) == 0 || strings.HasSuffix(line, `\`) {
			t.Fatalf("this test cannot parse %q", line)
		}
		stages[len(stages)-1] = append(stages[len(stages)-1], instruction{name, args})
	}
	return stages
}

// TestContainerfile checks the container file without a container engine, which the test machines do not have.
func TestContainerfile(t *testing.T) {
	stages := readContainerfile(t)
	if len(stages) != 2 {
		t.Fatalf("%d stages, want 2", len(stages))
	}
	build, image := stages[0], stages[1]
	goMod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(goMod))[1]
	if want := "docker.io/library/golang:" + goVersion + " AS build"; build[0].args != want {
		t.Errorf("built from %q, want %q", build[0].args, want)
	}
	for _, i := range build {
		if i.name != "COPY" {
			continue
		}
		words := strings.Fields(i.args)
		for _, source := range words[:len(words)-1] {
			if _, err := os.Stat(filepath.Join("../..", source)); err != nil {
				t.Errorf("COPY of a missing file: %v", err)
			}
		}
	}
	got := map[string]string{}
	for _, i := range image {
		if i.name == "RUN" {
			t.Errorf("RUN %s in an image without a shell", i.args)
		}
		got[i.name] += i.args + "\n"
	}
	for name, want := range map[string]string{
		"FROM": "scratch\n", "USER": "65532:65532\n", "VOLUME": "/data\n", "EXPOSE": "3141\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if !slices.Contains(build, instruction{"RUN", "install -d -m 0700 /out/data"}) ||
		!strings.Contains(got["COPY"], "--chown=65532:65532 /out/data /data\n") {
		t.Error("the data directory is not made 0700 and given to the user")
	}
	_, health, _ := strings.Cut(strings.TrimSpace(got["HEALTHCHECK"]), " CMD ")
	for what, line := range map[string]string{"HEALTHCHECK": health, "CMD": strings.TrimSpace(got["CMD"]), "ENTRYPOINT": strings.TrimSpace(got["ENTRYPOINT"])} {
		var words []string
		if err := json.Unmarshal([]byte(line), &words); err != nil {
			t.Errorf("%s %s: %v", what, line, err)
			continue
		}
		if what != "CMD" {
			if words[0] != "/usr/local/bin/agentmesh" {
				t.Errorf("%s runs %s", what, words[0])
			}
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		var cli commands
		if _, err := manual.Parse(newParser(&cli, io.Discard, io.Discard), words); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

var environmentFlag = regexp.MustCompile(`-e (AGENTMESH_[A-Z_]+)=(\S+)`)

// TestContainerEnvironment: the environment variables of the image and of the command in docs/operations.md are known,
// and serve accepts the configuration that they make.
func TestContainerEnvironment(t *testing.T) {
	var environ []string
	for _, i := range readContainerfile(t)[1] {
		if i.name == "ENV" {
			environ = append(environ, i.args)
		}
	}
	for _, block := range blocks(t, "docs/operations.md", "```sh") {
		if !strings.Contains(block, "podman run") {
			continue
		}
		for _, m := range environmentFlag.FindAllStringSubmatch(block, -1) {
			environ = append(environ, m[1]+"="+m[2])
		}
	}
	if len(environ) < 4 {
		t.Errorf("the environment is only %q", environ)
	}
	if unknown := config.UnknownEnv(environ); len(unknown) > 0 {
		t.Errorf("%q set nothing", unknown)
	}
	c, err := config.Load(config.Source{Environ: environ})
	if err == nil {
		err = c.Check(daemon.LinkKinds())
	}
	if err != nil || !c.Public() {
		t.Errorf("configuration of %q: public %t, %v", environ, c.Public(), err)
	}
}
