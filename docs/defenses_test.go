package docs

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var breakDefenses = flag.String("break", "", "the defenses that TestBrokenDefenses breaks: comma-separated names, or all")

// defense is an entry of defenses.txt: a change that removes a defense, and the test that must then fail.
type defense struct {
	name, file, pkg, test string
	old, new              string // whole lines of file
}

// readDefenses reads defenses.txt, which explains its format at the top.
func readDefenses(t *testing.T) []defense {
	t.Helper()
	data, err := os.ReadFile("defenses.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []defense
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		removed, isRemoved := strings.CutPrefix(line, "-")
		added, isAdded := strings.CutPrefix(line, "+")
		switch last := len(list) - 1; {
		case isRemoved && last >= 0:
			list[last].old += removed + "\n"
		case isAdded && last >= 0:
			list[last].new += added + "\n"
		default:
			f := strings.Fields(line)
			if len(f) != 4 {
				t.Fatalf("defenses.txt:%d: want name, file, package and test", i+1)
			}
			list = append(list, defense{name: f[0], file: f[1], pkg: f[2], test: f[3]})
		}
	}
	return list
}

// apply returns the content of the file without the defense.
func (d defense) apply() ([]byte, error) {
	data, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(d.file)))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(data, []byte("\n"+d.old)); d.old == "" || n != 1 {
		return nil, fmt.Errorf("%s has these lines %d times, want once:\n%s", d.file, n, d.old)
	}
	return bytes.Replace(data, []byte("\n"+d.old), []byte("\n"+d.new), 1), nil
}

// TestDefenses: each entry of the list can be applied and names an existing test.
func TestDefenses(t *testing.T) {
	list := readDefenses(t)
	bridges, seen := 0, map[string]bool{}
	for _, d := range list {
		if seen[d.name] {
			t.Errorf("%s is listed twice", d.name)
		}
		seen[d.name] = true
		if strings.HasPrefix(d.file, "node/bridge/") {
			bridges++
		}
		if _, err := d.apply(); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if !hasTest(t, d.pkg, d.test) {
			t.Errorf("%s: %s has no test %s", d.name, d.pkg, d.test)
		}
	}
	if len(list) < 40 || bridges < 20 {
		t.Errorf("%d entries, %d of them in bridges, want 40 and 20 at least", len(list), bridges)
	}
}

var threatName = regexp.MustCompile("`([A-Za-z0-9_-]+)(\\*?)`")

// TestThreatTable: the last column of the tables in threat-model.md names every entry, and no entry that does not exist,
// and a test only if it has no entry.
func TestThreatTable(t *testing.T) {
	_, tables, _ := strings.Cut(documents(t)["docs/threat-model.md"], "\n## Attacks, defenses and tests\n")
	list, named := readDefenses(t), map[string]bool{}
	for line := range strings.Lines(tables) {
		columns := strings.Split(strings.TrimSpace(line), "|")
		if len(columns) != 6 { // four columns, and nothing on both sides
			continue
		}
		for _, m := range threatName.FindAllStringSubmatch(columns[4], -1) {
			name, isPrefix := m[1], m[2] != ""
			isTest, found := name[0] >= 'A' && name[0] <= 'Z', false
			for _, d := range list {
				if test, _, _ := strings.Cut(d.test, "/"); isTest && test == name {
					t.Errorf("the row of %q names %s: name its entry %s instead", columns[2], name, d.name)
				}
				if d.name == name || isPrefix && strings.HasPrefix(d.name, name) {
					named[d.name], found = true, true
				}
			}
			if !isTest && !found {
				t.Errorf("the row of %q names %s, which defenses.txt does not have", columns[2], m[0])
			}
		}
	}
	for _, d := range list {
		if !named[d.name] {
			t.Errorf("%s: threat-model.md has no row that names it", d.name)
		}
	}
}

// TestReceiveTableInTheCode: architecture.md names, for each line of the receive table, a function, a test and an entry of
// the list that exist and belong together.
func TestReceiveTableInTheCode(t *testing.T) {
	data, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (\\d+) \\| `([a-z/]+)\\.(\\w+)` \\| `(Test\\w+)` \\| `([a-z0-9-]+)` \\|$").FindAllStringSubmatch(string(data), -1)
	if len(rows) != 16 {
		t.Fatalf("%d lines, want 16", len(rows))
	}
	list := readDefenses(t)
	for i, row := range rows {
		pkg, function, test, entry := row[2], row[3], row[4], row[5]
		files, _ := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*.go"))
		isDeclared := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + function + `\(`)
		if !slices.ContainsFunc(files, func(file string) bool { data, _ := os.ReadFile(file); return isDeclared.Match(data) }) {
			t.Errorf("line %s: %s has no function %s", row[1], pkg, function)
		}
		if !slices.ContainsFunc(list, func(d defense) bool { return strings.HasPrefix(d.name, entry) && d.test == test }) || row[1] != strconv.Itoa(i+1) {
			t.Errorf("line %s: no entry %s with %s", row[1], entry, test)
		}
	}
}

func hasTest(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(test, "/")
	return slices.ContainsFunc(files, func(file string) bool {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(data, []byte("\nfunc "+name+"("))
	})
}

// TestBrokenDefenses removes each defense in turn and checks that its test fails. The files stay unchanged: the
// compiler gets another version through an overlay. The test takes minutes; .ci/defenses runs it.
func TestBrokenDefenses(t *testing.T) {
	if *breakDefenses == "" {
		t.Skip("takes minutes: run .ci/defenses")
	}
	names := strings.Split(*breakDefenses, ",")
	for _, d := range readDefenses(t) {
		at := slices.Index(names, d.name)
		if at < 0 && *breakDefenses != "all" {
			continue
		}
		if at >= 0 {
			names = slices.Delete(names, at, at+1)
		}
		start := time.Now()
		verdict := "noticed"
		if err := d.checkNoticed(t); err != nil {
			verdict = "NOT NOTICED"
			t.Errorf("%s: %v", d.name, err)
		}
		fmt.Printf("%-11s  %-28s  %-24s  %s (%.0fs)\n", verdict, d.name, d.pkg, d.test, time.Since(start).Seconds())
	}
	if *breakDefenses != "all" && len(names) > 0 {
		t.Errorf("the list has no %s", strings.Join(names, ", "))
	}
}

// checkNoticed returns an error unless the package compiles without the defense and its test then fails.
func (d defense) checkNoticed(t *testing.T) error {
	t.Helper()
	broken, err := d.apply()
	if err != nil {
		return err
	}
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, filepath.FromSlash(d.file)): file}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, broken, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return err
	}
	var run []string
	for part := range strings.SplitSeq(d.test, "/") {
		run = append(run, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-vet=off", "-tags", "slow", "-count=1", "-timeout", "5m",
		"-overlay", overlay, "-run", strings.Join(run, "/"), "./"+d.pkg)
	cmd.Dir = root
	out, err := cmd.Output()
	if err == nil {
		return fmt.Errorf("%s passes without this defense, or ran nothing", d.test)
	}
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test string }
		if json.Unmarshal(line, &event) == nil && event.Action == "fail" && event.Test == d.test {
			return nil
		}
	}
	return fmt.Errorf("%s did not run: %w\n%s", d.test, err, out[max(0, len(out)-4<<10):])
}
