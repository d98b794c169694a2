//go:build paths

package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pathBounds are the sizes of the paths of one message. Files may grow by a tenth. A path is what runs in one
// goroutine below its root function. "owner sends" ends when the outbox has the message, and "delivery" is one attempt
// of the outbox. A climb is a function that a package of a lower layer calls while a function of its own package is
// already on the stack, so a reader of the path has to go back up.
var pathBounds = []struct {
	name, root              string
	packages, files, climbs int
}{
	{"owner sends", module + "/node.OwnerAPI.Send", 19, 91, 3},
	{"delivery", module + "/node.(*Node).attempt", 19, 81, 3},
	{"message in", module + "/node.(*Node).postMessage", 20, 101, 3},
}

// TestPathsOfMessages builds the node with a tracer in each function of node and of the packages below, sends one
// message, and measures which packages and files its paths enter.
func TestPathsOfMessages(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-tags", "paths",
		"-overlay", writeTracers(t, dir), "-run", "^TestPaths$", module+"/node")
	cmd.Env = append(os.Environ(), "AGENTMESH_PATHS="+seen)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pathBounds {
		packages, files, climbs := map[string]int{}, map[string]bool{}, []string{}
		all, noEngine := pathSize{}, pathSize{}
		frames := 0
		for line := range strings.Lines(string(data)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t") // root, package, file, function, caller, frames
			if f[0] != p.root {
				continue
			}
			all.add(f[3], f[2])
			if f[1] != "store/bolt" && f[1] != "store/engine" {
				noEngine.add(f[3], f[2])
			}
			if n, err := strconv.Atoi(f[5]); err == nil {
				frames = max(frames, n)
			}
			if !files[f[2]] {
				files[f[2]] = true
				packages[f[1]]++
			}
			layer, _ := layerOf(f[1])
			if from, _ := layerOf(f[4]); f[4] != "" && from < layer {
				climbs = append(climbs, strings.TrimPrefix(f[3], module+"/")+" from "+f[4])
			}
		}
		slices.Sort(climbs)
		t.Logf("%s: %d packages, %d climbs, %d functions and %d files; without store/bolt and store/engine %d and %d; "+
			"%d frames to Steps.Apply\nfiles of each package: %v\nclimbs:\n  %s", p.name, len(packages), len(climbs),
			len(all.functions), len(all.files), len(noEngine.functions), len(noEngine.files), frames, packages, strings.Join(climbs, "\n  "))
		if len(packages) == 0 {
			t.Errorf("%s: the path is empty", p.name)
		}
		if len(packages) > p.packages || len(files) > p.files*11/10 || len(climbs) > p.climbs {
			t.Errorf("%s: %d packages, %d files and %d climbs; the bounds are %d, %d and %d",
				p.name, len(packages), len(files), len(climbs), p.packages, p.files*11/10, p.climbs)
		}
	}
}

// pathSize is what a reader of a path has to read.
type pathSize struct{ functions, files map[string]bool }

func (s *pathSize) add(function, file string) {
	if s.functions == nil {
		s.functions, s.files = map[string]bool{}, map[string]bool{}
	}
	s.functions[function], s.files[file] = true, true
}

// writeTracers writes copies of all files of the services in which each function first calls the tracer, and returns
// the file for the flag -overlay.
func writeTracers(t *testing.T, dir string) string {
	t.Helper()
	replace, n := map[string]string{}, 0
	put := func(path string, data []byte) {
		n++
		to := filepath.Join(dir, fmt.Sprint(n, ".go"))
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	for _, p := range packages(t) {
		pkg, ok := inner(p.ImportPath)
		if layer, _ := layerOf(pkg); !ok || layer > 6 || strings.HasPrefix(pkg, "directory") || strings.HasPrefix(pkg, "docs") {
			continue
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			put(path, addTracer(t, path, data))
		}
		put(filepath.Join(p.Dir, "pathtracer.go"), fmt.Appendf(nil, "package %s\n\nimport \"%s/pathtracer\"\n\nfunc enterPath() { pathtracer.Enter() }\n", p.Name, module))
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	var roots []string
	for _, p := range pathBounds {
		roots = append(roots, p.root)
	}
	put(filepath.Join(root, "pathtracer", "pathtracer.go"), fmt.Appendf(nil, tracer, module+"/", roots))
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// addTracer adds a call to the body of each function. The lines keep their numbers.
func addTracer(t *testing.T, path string, data []byte) []byte {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var at []int
	ast.Inspect(file, func(n ast.Node) bool {
		var body *ast.BlockStmt
		switch f := n.(type) {
		case *ast.FuncDecl:
			body = f.Body
		case *ast.FuncLit:
			body = f.Body
		}
		if body != nil {
			at = append(at, files.Position(body.Lbrace).Offset+1)
		}
		return true
	})
	slices.Sort(at)
	var out bytes.Buffer
	from := 0
	for _, to := range at {
		out.Write(data[from:to])
		out.WriteString("enterPath();")
		from = to
	}
	out.Write(data[from:])
	return out.Bytes()
}

// tracer is the package that the functions call. It writes each function that runs below a root once, with its package,
// its file, if its package was already on the stack, the other package that called it, and, if it is Steps.Apply of the
// engine, how many frames of the module there are from the root to it, both counted.
const tracer = `package pathtracer

import (
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
)

const module = %q

var (
	roots = %#v
	out   = os.Getenv("AGENTMESH_PATHS")
	mu    sync.Mutex
	seen  = map[string]bool{}
)

// packageOf returns the package of a function, such as node/wire; "" if it is not in the module.
func packageOf(function string) string {
	name, ok := strings.CutPrefix(function, module)
	if !ok {
		return ""
	}
	dir, last := path.Split(name)
	last, _, _ = strings.Cut(last, ".")
	return dir + last
}

func Enter() {
	if out == "" {
		return
	}
	var pcs [512]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var entered, file, pkg, caller string // caller is the nearest other function of the module
	again := false                        // the package is on the stack above another package
	depth := 0                            // frames of the module below the root
	for {
		f, more := frames.Next()
		p := packageOf(f.Function)
		switch {
		case entered == "":
			entered, file, pkg = f.Function, f.File, p
		case p != "" && caller == "":
			caller = p
		case p == pkg && caller != pkg:
			again = true
		}
		for _, root := range roots {
			if f.Function == root {
				if !again {
					caller = ""
				}
				frames := ""
				if strings.HasSuffix(entered, "/store/engine.Steps.Apply") {
					frames = fmt.Sprint(depth + 1)
				}
				write(root + "\t" + pkg + "\t" + file + "\t" + entered + "\t" + caller + "\t" + frames)
				return
			}
		}
		if p != "" {
			depth++
		}
		if !more {
			return
		}
	}
}

func write(line string) {
	mu.Lock()
	defer mu.Unlock()
	if seen[line] {
		return
	}
	seen[line] = true
	f, err := os.OpenFile(out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, line)
	f.Close()
}
`
