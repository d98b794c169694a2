package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var functionLink = regexp.MustCompile(`\]\(([^)#]+\.go)#([\w.]+)\)`)

// TestFunctionLinks: each link of a document to a function, such as (../node/send.go#Node.Send), names a function of that
// file.
func TestFunctionLinks(t *testing.T) {
	functions := map[string]map[string]bool{} // by file
	for doc, text := range documents(t) {
		for _, m := range functionLink.FindAllStringSubmatch(text, -1) {
			file := path.Join(path.Dir(doc), m[1])
			if functions[file] == nil {
				functions[file] = functionsOf(t, file)
			}
			if !functions[file][m[2]] {
				t.Errorf("%s links to %s, which %s does not have", doc, m[2], file)
			}
		}
	}
}

// functionsOf returns the functions of a file as name, and its methods as type.name.
func functionsOf(t *testing.T, name string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", filepath.FromSlash(name)), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
			found[baseName(f.Recv.List[0].Type)+"."+f.Name.Name] = true
		} else if ok {
			found[f.Name.Name] = true
		}
	}
	return found
}

// TestTour: the tour stays short and goes on linking to functions.
func TestTour(t *testing.T) {
	tour := documents(t)["docs/tour.md"]
	if words, links := len(strings.Fields(tour)), len(functionLink.FindAllString(tour, -1)); words > 1500 || links < 30 {
		t.Errorf("the tour has %d words and %d links to functions, want at most 1500 and at least 30", words, links)
	}
}
