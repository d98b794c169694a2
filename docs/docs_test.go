// Package docs has the documents of the project, and tests that keep the documents and the structure of the code
// correct.
//
// The rules for imports, package comments and file lengths are tested here. The tests of cmd/agentmesh generate and
// compare what a document quotes from the code: commands, configuration and errors.
package docs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agentmesh/agentmesh"

// layers are the import rules: a package imports only packages of a lower layer. A "*" in a pattern matches one element
// of a path, and the first matching pattern counts. Add each new package here with its layer.
var layers = []struct {
	pattern string
	layer   int
}{
	{"node/wire", 0},
	{"node/subprocess", 0},
	{"node/goldentest", 0},
	{"node/zone", 0},
	{"node/atomicfile", 0},
	{"docs/openclaw", 0}, // a text that the program embeds
	{"docs/operations", 0},
	{"cmd/internal/exit", 1},
	{"cmd/internal/gc", 1},
	{"cmd/internal/terminal", 2},

	{"signing", 1},
	{"store", 1},
	{"store/work", 2},
	{"store/*", 1},
	{"acl/rate", 1},
	{"node/httpapi/certs", 1},
	{"node/yamltree", 1},

	{"acl", 2},
	{"acl/credential", 2},
	{"conversations", 2},
	{"node/httpapi", 2},
	{"node/client", 2},
	{"node/websocket", 2},
	{"node/bridge/agentrelay/frame", 2},
	{"node/bridge/mess/thread", 2},
	{"node/bridge/mew/capability", 2},
	{"node/bridge/mew/envelope", 2},
	{"node/bridge/moltspeak/message", 2},
	{"node/bridge/moltspeak/personal", 2},
	{"node/bridge/a2a/message", 2},

	{"node/bridge/a2a/door", 3},
	{"node/bridge/a2a/remote", 3},

	{"node/calendar", 3},
	{"node/notify", 3},
	{"node/owner", 3},
	{"node/owner/phone", 4},

	{"node/bridge", 4},
	{"node/hook", 4},
	{"node/guard", 5},
	{"node/mailreader", 4},
	{"node/events", 4},
	{"node/waiting", 1},
	{"node/untrusted", 1},
	{"node/registration", 4},
	{"node/owner/web", 4},
	{"node/owner/mcp", 4},
	{"node/owner/contact", 4},
	{"directory/admission", 4},
	{"directory/listing", 3},
	{"directory/cursor", 2},
	{"directory/mailbox", 5},
	{"directory/moderation", 4},
	{"directory/probe", 4},
	{"directory/discovery", 4},
	{"directory/site", 4},
	{"directory/submission", 4},
	{"directory/words", 4},
	{"directory/cached", 4},
	{"directory/history", 4},
	{"directory/operator", 7},
	{"directory/a2arelay", 5},

	{"node/meshtest", 7},
	{"store/postgres/pgtest", 7},
	{"node/bridge/bridgetest", 7},
	{"node/bridge/a2a/door/doortest", 7},
	{"node/bridge/mess/thread/threadtest", 7},
	{"node/bridge/mew/mewtest", 7},
	{"node/httpapi/apitest", 7},
	{"node/httpapi/browsertest", 7},
	{"cmd/internal/config", 7},
	{"cmd/internal/datadir", 7},
	{"cmd/internal/engine", 8},
	{"cmd/internal/daemon", 8},
	{"cmd/internal/database", 8},
	{"cmd/internal/demo", 8},
	{"cmd/internal/doctor", 8},
	{"cmd/internal/manual", 8},
	{"cmd/internal/quickstart", 8},
	{"cmd/internal/welcome", 8},

	{"node/rules", 5},
	{"node/bridge/*/*", 5}, // the parts of a bridge; the codecs are in layer 2

	{"directory", 6},
	{"node", 6},
	{"node/bridge/*", 6},

	{"cmd/*", 9},
	{"docs", 9},
}

// sameLayer lists the allowed imports between packages of one layer.
var sameLayer = map[string][]string{
	"store":                   {"node/waiting"},
	"store/bolt":              {"store", "store/cardindex", "store/engine", "store/local"},
	"store/cardindex":         {"store"},
	"store/engine":            {"store", "store/cardindex"},
	"store/postgres":          {"node/waiting", "store", "store/cardindex", "store/engine", "store/local"},
	"store/local":             {"store"},
	"store/storetest":         {"store"},
	"directory/a2arelay":      {"directory/mailbox"}, // calls are mail
	"node/meshtest":           {"node/httpapi/apitest"},
	"cmd/internal/daemon":     {"cmd/internal/engine"},                        // opens the database
	"cmd/internal/database":   {"cmd/internal/daemon", "cmd/internal/engine"}, // its options; copies databases
	"cmd/internal/demo":       {"cmd/internal/daemon"},                        // calls the processes that it started
	"cmd/internal/doctor":     {"cmd/internal/daemon", "cmd/internal/engine"}, // calls the running process, and describes its database
	"cmd/internal/welcome":    {"cmd/internal/daemon"},                        // describes it
	"cmd/internal/quickstart": {"cmd/internal/daemon"},                        // makes its data
	"node/bridge/mew/mewtest": {"node/httpapi/apitest"},
	"node/bridge/bridgetest":  {"node/meshtest"},
	"node/owner":              {"node/notify"}, // the status has the state of notifications
	"node/bridge":             {"node/hook"},   // bridges pass on what hooks report
}

// choosesEngine lists the packages that may import an engine of the store.
var choosesEngine = []string{"cmd/internal/engine", "cmd/internal/datadir", "node/meshtest", "node/bridge/bridgetest", "node/bridge/mew/mewtest"}

// outside lists who may import a module from outside, and why no other package may. A path includes all packages below
// it.
var outside = []struct {
	path   string
	only   []string // patterns
	reason string
}{
	{"go.etcd.io/bbolt", []string{"store/bolt"}, "another engine must be able to replace it"},
	{"github.com/jackc/pgx", []string{"store/postgres", "store/postgres/*"}, "another engine must be able to replace it"},
	{"filippo.io/age", []string{"signing"}, "keys and encryption belong to one package"},
	{"filippo.io/edwards25519", []string{"signing"}, "keys and encryption belong to one package"},
	{"github.com/ProtonMail/go-crypto", []string{"signing"}, "keys and encryption belong to one package"},
	{"golang.org/x/crypto/nacl", []string{"signing"}, "keys and encryption belong to one package"},
	{"github.com/oasisprotocol/curve25519-voi", []string{"signing"}, "one function verifies with it, and tests compare it with crypto/ed25519"},
	{
		"github.com/labstack/echo/v4",
		[]string{"node/httpapi", "node/httpapi/apitest", "directory", "directory/a2arelay", "directory/cached", "directory/discovery", "directory/mailbox", "directory/operator", "directory/site", "node", "node/owner", "node/owner/phone", "node/owner/web", "node/bridge", "node/bridge/*", "node/bridge/*/*", "cmd/*", "cmd/internal/daemon"},
		"packages without echo make it cheap to change the router",
	},
	{"github.com/modelcontextprotocol/go-sdk", []string{"node/owner/mcp"}, "the protocol changes every few months, so one package knows it"},
	{"golang.org/x/crypto/acme", []string{"node/httpapi/certs"}, "one package calls authorities and limits how often"},
	{"github.com/gobwas/ws", []string{"node/websocket"}, "all bridges share one type of connection with one queue"},
	{"github.com/getkin/kin-openapi", []string{"node/httpapi/apitest"}, "it is for tests only"},
	{
		"github.com/VictoriaMetrics/metrics",
		[]string{"node/httpapi", "cmd/*", "cmd/internal/daemon"},
		"label sets stay fixed if one package creates them",
	},
}

// goPackage is the output of go list for a package.
type goPackage struct {
	ImportPath     string
	Dir            string
	Name           string
	Doc            string
	GoFiles        []string
	IgnoredGoFiles []string // of other systems and tags, tests included
	Imports        []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,IgnoredGoFiles,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatalf("go list: %v", err)
		}
		list = append(list, p)
	}
	return list
}

// inner returns the path of a package inside the module.
func inner(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

func layerOf(pkg string) (int, bool) {
	for _, l := range layers {
		if ok, _ := path.Match(l.pattern, pkg); ok {
			return l.layer, true
		}
	}
	return 0, false
}

// bridgeOf returns the bridge that a package belongs to, "" for any other package. The parts of one bridge may import
// each other in one layer.
func bridgeOf(pkg string) string {
	rest, ok := strings.CutPrefix(pkg, "node/bridge/")
	bridge, _, part := strings.Cut(rest, "/")
	if !ok || !part {
		return ""
	}
	return bridge
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, pkg)
		return ok
	})
}

// importFault returns why pkg may not import imp, or "" if it may.
func importFault(pkg, imp string) string {
	from, ok := layerOf(pkg)
	if !ok {
		return "the package has no layer: add it to the table in docs/docs_test.go and in docs/architecture.md"
	}
	if in, ok := inner(imp); ok {
		to, known := layerOf(in)
		switch {
		case !known:
			return "" // reported for the package itself
		case (in == "store/bolt" || in == "store/postgres") && !matchesAny(choosesEngine, pkg):
			return "only " + strings.Join(choosesEngine, ", ") + " may choose an engine: all other packages use package store"
		case to < from || slices.Contains(sameLayer[pkg], in) || to == from && bridgeOf(pkg) != "" && bridgeOf(pkg) == bridgeOf(in):
			return ""
		case to == from && from == 6:
			return "services do not import each other: use an interface of a lower layer, which cmd implements"
		}
		return "a package may import only packages of a lower layer"
	}
	if pkg == "node/wire" && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		return "node/wire may import only the standard library"
	}
	for _, o := range outside {
		if (imp == o.path || strings.HasPrefix(imp, o.path+"/")) && !matchesAny(o.only, pkg) {
			return "only " + strings.Join(o.only, ", ") + " may import it: " + o.reason
		}
	}
	return ""
}

// TestImportLaw: every import follows the rules.
func TestImportLaw(t *testing.T) {
	for _, p := range packages(t) {
		pkg, ok := inner(p.ImportPath)
		if !ok {
			t.Errorf("%s: the root of the module must not have a package", p.ImportPath)
			continue
		}
		for _, imp := range append(p.Imports, "unsafe") {
			if reason := importFault(pkg, imp); reason != "" {
				t.Errorf("%s imports %s: %s", pkg, imp, reason)
			}
		}
	}
}

// TestImportFault: the rules refuse wrong imports and allow the others.
func TestImportFault(t *testing.T) {
	for _, tc := range []struct {
		pkg, imp string
		refused  bool
	}{
		{"node", module + "/directory", true},
		{"node", module + "/store/bolt", true},
		{"node/bridge/mess", module + "/node", true},
		{"signing", module + "/store", true},
		{"acl", module + "/conversations", true},
		{"node/wire", "golang.org/x/text/width", true},
		{"node", "go.etcd.io/bbolt", true},
		{"acl", "github.com/labstack/echo/v4/middleware", true},
		{"newpackage", "fmt", true},
		{"node/bridge/mew/link", module + "/node/bridge/mess/link", true},
		{"node/bridge/mew/link", module + "/node/bridge/mew", true},
		{"node", module + "/node/bridge", false},
		{"store/bolt", module + "/store", false},
		{"cmd/agentmesh", module + "/store/bolt", true},
		{"cmd/internal/engine", module + "/store/bolt", false},
		{"cmd/internal/config", module + "/cmd/internal/daemon", true},
		{"node/bridge/mess", module + "/node/bridge", false},
		{"node/bridge/mew/link", module + "/node/bridge/mew/view", false},
		{"node/bridge/moltspeak/agent", module + "/node/bridge/moltspeak/quota", false},
		{"node/bridge/agentrelay/link", module + "/node/bridge/moltspeak/quota", true},
		{"node/bridge/agentrelay/link", module + "/node/bridge/mess", true},
		{"signing", "filippo.io/age/armor", false},
	} {
		if got := importFault(tc.pkg, tc.imp); (got != "") != tc.refused {
			t.Errorf("importFault(%s, %s) = %q, want refused %t", tc.pkg, tc.imp, got, tc.refused)
		}
	}
}

// TestPackageComments: every package has a comment that explains its purpose.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		comment := packageComment(t, p)
		if len(strings.Fields(comment)) < 8 {
			t.Errorf("%s has no package comment that explains its purpose", p.ImportPath)
		}
		if p.Name != "main" && !strings.HasPrefix(comment, "Package "+p.Name+" ") {
			t.Errorf("%s: the package comment begins with %q, want %q", p.ImportPath, firstLine(comment), "Package "+p.Name+" …")
		}
	}
}

// TestNoAPI: the packages that somebody from outside finds first say that they are not an API.
func TestNoAPI(t *testing.T) {
	said := 0
	for _, p := range packages(t) {
		pkg, _ := inner(p.ImportPath)
		if len(p.GoFiles) == 0 || pkg == "docs" || strings.Contains(pkg, "/") && pkg != "node/wire" && pkg != "node/client" {
			continue
		}
		if said++; !strings.Contains(strings.Join(strings.Fields(packageComment(t, p)), " "), "not an API for other modules") {
			t.Errorf("%s does not say that it is not an API for other modules", pkg)
		}
	}
	if said < 8 {
		t.Errorf("%d packages were read: this test sees too little", said)
	}
}

func packageComment(t *testing.T, p goPackage) string {
	t.Helper()
	var b strings.Builder
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc != nil {
			b.WriteString(f.Doc.Text())
		}
	}
	return b.String()
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// maxLines is the limit of a Go file. A longer file has more than one subject.
const maxLines = 600

// TestFileLength: no Go file has more than maxLines lines.
func TestFileLength(t *testing.T) {
	eachFile(t, func(name string, data []byte) {
		if n := bytes.Count(data, []byte("\n")); strings.HasSuffix(name, ".go") && n > maxLines {
			t.Errorf("%s has %d lines, at most %d", name, n, maxLines)
		}
	})
}

// TestNoWorkplacePaths: no file depends on the machine on which it was written.
func TestNoWorkplacePaths(t *testing.T) {
	bad := []string{"/wo" + "rk/", "/ro" + "ot/", "shared/" + "corpora", "proxy." + "golang.org", "far" + "m-"}
	eachFile(t, func(name string, data []byte) {
		if name == ".ci/run" {
			return // finds the third-party data beside the checkout
		}
		data = bytes.ReplaceAll(data, []byte("store/wo"+"rk/"), nil) // a package
		for _, s := range bad {
			if before, _, ok := bytes.Cut(data, []byte(s)); ok {
				t.Errorf("%s:%d names %q", name, 1+bytes.Count(before, []byte("\n")), s)
			}
		}
	})
}

func TestNoUnfinishedWork(t *testing.T) {
	bad := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X:"}
	eachFile(t, func(name string, data []byte) {
		if !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".md") {
			return
		}
		scan := bufio.NewScanner(bytes.NewReader(data))
		for n := 1; scan.Scan(); n++ {
			for _, s := range bad {
				if strings.Contains(scan.Text(), s) {
					t.Errorf("%s:%d: %s", name, n, strings.TrimSpace(scan.Text()))
				}
			}
		}
	})
}

// eachFile calls f for every text file of the project.
func eachFile(t *testing.T, f func(name string, data []byte)) {
	t.Helper()
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == ".git" || name == ".ci/out" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || name == ".git" { // a file in a linked worktree
			return nil
		}
		data, err := fs.ReadFile(root, name)
		if err != nil || bytes.IndexByte(data, 0) >= 0 {
			return err
		}
		f(name, data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
