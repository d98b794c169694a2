//go:build systems

package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	loader "golang.org/x/tools/go/packages"
)

// TestProgramSize: the linker can drop the methods that nobody calls, because nothing looks methods up by names that are
// known only at run time (decision 82); and the program is not too large to download.
func TestProgramSize(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentmesh")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -dumpdep", "-o", file, "../cmd/agentmesh")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := build.CombinedOutput() // which symbol needs which
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if at := bytes.Index(out, []byte("<ReflectMethod>")); at >= 0 {
		start, end := bytes.LastIndexByte(out[:at], '\n')+1, at+bytes.IndexByte(out[at:], '\n')
		t.Errorf("a function looks methods up by name, so the program has them all: %s", out[start:end])
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 38e6 {
		t.Errorf("the program has %d bytes", info.Size())
	}
}

// TestOtherSystems type-checks the packages and tests of the module, and all that they import, for the other operating
// systems. Unlike a build, that generates no code, which takes a tenth of the time. One architecture for each system is
// enough, because no file of the module depends on the architecture.
func TestOtherSystems(t *testing.T) {
	for _, env := range [][]string{{"GOOS=darwin", "GOARCH=arm64"}, {"GOOS=windows", "GOARCH=amd64"}} {
		list, err := loader.Load(&loader.Config{
			Mode: loader.LoadAllSyntax, Tests: true, BuildFlags: []string{"-tags=slow"}, Dir: "..", Env: append(append(os.Environ(), "CGO_ENABLED=0"), env...),
		}, "./...")
		if err != nil {
			t.Fatal(err)
		}
		loader.Visit(list, nil, func(p *loader.Package) {
			for _, err := range p.Errors {
				t.Errorf("%s: %s: %v", env[0], p.ID, err)
			}
		})
		t.Logf("%s: %d packages", env[0], len(list))
	}
}
