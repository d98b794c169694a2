//go:build systems

package docs

import (
	"os"
	"testing"

	loader "golang.org/x/tools/go/packages"
)

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
