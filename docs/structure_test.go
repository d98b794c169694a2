package docs

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Bounds of a package and of a type. A package or type above a bound has two subjects. The file structure.txt lists
// those that were above a bound when the bounds were introduced, with their size; such an entry may grow by a tenth.
// Lines of comments do not count.
const (
	maxPackageLines  = 5000
	maxMethods       = 60 // of a type, promoted ones counted
	maxNodeMethods   = 40 // exported methods of node.Node
	maxStateFields   = 20 // of a struct that has a mutex, a channel, an atomic or a wait group
	structureEntries = "structure.txt"
)

// measure is a number with a bound.
type measure struct {
	what  string // such as "package node lines"
	n     int
	bound int
}

// TestStructure: no package and no type is above its bound, except the entries of structure.txt. It prints the product
// lines: code without blanks, comments, tests, and packages of test helpers.
func TestStructure(t *testing.T) {
	allowed := readStructure(t)
	total := 0
	for _, m := range measures(t, &total) {
		was, listed := allowed[m.what]
		delete(allowed, m.what)
		switch {
		case m.n <= m.bound && listed:
			t.Errorf("%s is %d, within its bound of %d: take it out of docs/%s", m.what, m.n, m.bound, structureEntries)
		case m.n > m.bound && !listed:
			t.Errorf("%s is %d, its bound is %d: split it", m.what, m.n, m.bound)
		case m.n > was+was/10 && listed:
			t.Errorf("%s is %d, and was %d: it may grow by a tenth", m.what, m.n, was)
		}
	}
	for what := range allowed {
		t.Errorf("docs/%s names %q, which does not exist", structureEntries, what)
	}
	t.Logf("%d product lines", total)
}

// readStructure reads structure.txt, which has lines such as "package node lines 12798".
func readStructure(t *testing.T) map[string]int {
	t.Helper()
	data, err := os.ReadFile(structureEntries)
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		n, err := strconv.Atoi(line[at+1:])
		if err != nil || at < 0 {
			t.Fatalf("docs/%s: %q does not end with a number", structureEntries, line)
		}
		allowed[line[:at]] = n
	}
	return allowed
}

// measures returns all measures, in order, and adds the product lines to total. Packages of test helpers have the same
// bounds, but their lines are not added.
func measures(t *testing.T, total *int) []measure {
	t.Helper()
	var list []measure
	for _, p := range packages(t) {
		pkg, ok := inner(p.ImportPath)
		if !ok || len(p.GoFiles) == 0 {
			continue
		}
		if !strings.HasSuffix(pkg, "test") {
			*total += productLines(t, p)
		}
		types := map[string]*typeShape{}
		lines := 0
		for _, name := range p.GoFiles {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines += countLines(data)
			file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			addTypes(types, file)
		}
		list = append(list, measure{"package " + pkg + " lines", lines, maxPackageLines})
		for _, name := range slices.Sorted(maps.Keys(types)) {
			ty, full := types[name], "type "+pkg+"."+name
			list = append(list, measure{full + " methods", countMethods(types, name, 0), maxMethods})
			if ty.state {
				list = append(list, measure{full + " fields", ty.fields, maxStateFields})
			}
			if pkg == "node" && name == "Node" {
				list = append(list, measure{full + " exported", ty.exported, maxNodeMethods})
			}
		}
	}
	return list
}

// typeShape has the sizes of a type.
type typeShape struct {
	methods, exported, fields int
	state                     bool
	embeds                    []string // embedded types of the same package
}

func addTypes(types map[string]*typeShape, file *ast.File) {
	get := func(name string) *typeShape {
		if types[name] == nil {
			types[name] = &typeShape{}
		}
		return types[name]
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				ty := get(baseName(d.Recv.List[0].Type))
				ty.methods++
				if d.Name.IsExported() {
					ty.exported++
				}
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if ts, ok := spec.(*ast.TypeSpec); ok {
					if st, ok := ts.Type.(*ast.StructType); ok {
						addFields(get(ts.Name.Name), st)
					}
				}
			}
		}
	}
}

func addFields(ty *typeShape, st *ast.StructType) {
	for _, f := range st.Fields.List {
		ty.fields += max(1, len(f.Names))
		if len(f.Names) == 0 {
			ty.embeds = append(ty.embeds, baseName(f.Type))
		}
		ty.state = ty.state || holdsState(f.Type)
	}
}

// holdsState reports whether a field makes its struct one that does work, rather than a value that is passed around.
func holdsState(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ChanType:
		return true
	case *ast.IndexExpr: // atomic.Pointer[T]
		return holdsState(e.X)
	case *ast.SelectorExpr:
		pkg, ok := e.X.(*ast.Ident)
		return ok && (pkg.Name == "sync" || pkg.Name == "atomic")
	}
	return false
}

// baseName returns the name of a type of this package without pointer and type arguments, or "" for other types.
func baseName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return baseName(e.X)
	case *ast.IndexExpr:
		return baseName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func countMethods(types map[string]*typeShape, name string, depth int) int {
	ty := types[name]
	if ty == nil || depth > 5 {
		return 0
	}
	n := ty.methods
	for _, e := range ty.embeds {
		n += countMethods(types, e, depth+1)
	}
	return n
}

// countLines counts the lines of a file that are not a comment alone.
func countLines(src []byte) int {
	n := 0
	for line := range bytes.Lines(src) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("//")) {
			n++
		}
	}
	return n
}

// productLines counts the lines of code of a package, for all systems.
func productLines(t *testing.T, p goPackage) int {
	t.Helper()
	n := 0
	for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		n += codeLines(data)
	}
	return n
}

// codeLines counts the lines with a token other than a comment.
func codeLines(src []byte) int {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		first := file.Line(pos)
		for i := range 1 + strings.Count(lit, "\n") {
			lines[first+i] = true
		}
	}
}

// TestCodeLines: blank lines and comments do not count; each line of a raw string does.
func TestCodeLines(t *testing.T) {
	src := "// a\npackage x\n\n/* b\nc */\nvar s = `one\n\nthree` // d\n"
	if n := codeLines([]byte(src)); n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
	if got := fmt.Sprint(countMethods(map[string]*typeShape{"a": {methods: 2, embeds: []string{"b"}}, "b": {methods: 3}}, "a", 0)); got != "5" {
		t.Errorf("methods with promoted ones: %s, want 5", got)
	}
}
