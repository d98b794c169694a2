package docs

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestRecordings: recordings.txt says of each file of test data how it was made, and nobody has edited a recording.
func TestRecordings(t *testing.T) {
	text, err := os.ReadFile("recordings.txt")
	if err != nil {
		t.Fatal(err)
	}
	tree := os.DirFS("..")
	var files []string
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(name, "/testdata/") && path.Dir(name) != "cmd/agentmesh/testdata" && !strings.HasSuffix(name, "/"+goldentest.File) {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]int{} // of a file
	told := true                // the last entry says how its files were made
	for i, line := range strings.Split(string(text), "\n") {
		if how, ok := strings.CutPrefix(line, "\t"); ok {
			told = told || how != ""
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if !told {
			t.Errorf("recordings.txt: the entry before line %d does not say how its files were made", i+1)
		}
		told = false
		f := strings.Fields(line)
		if len(f) < 2 {
			t.Fatalf("recordings.txt:%d: want a pattern and a kind", i+1)
		}
		sum, found := sha256.New(), 0
		for _, name := range files {
			if ok, err := path.Match(f[0], name); err != nil {
				t.Fatal(err)
			} else if !ok {
				continue
			}
			data, err := fs.ReadFile(tree, name)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(sum, "%s %d\n%s", path.Base(name), len(data), data)
			entries[name]++
			found++
		}
		short := fmt.Sprintf("%x", sum.Sum(nil))[:16]
		switch kind := f[1]; {
		case found == 0:
			t.Errorf("recordings.txt:%d: no file is named %s", i+1, f[0])
		case kind == "recorded":
			if len(f) != 3 || f[2] != short {
				t.Errorf("recordings.txt:%d: %s was changed since it was recorded; if it was recorded again, its sum is %s", i+1, f[0], short)
			}
		case kind != "corrected" && kind != "golden" && kind != "written" || len(f) != 2:
			t.Errorf("recordings.txt:%d: want a kind, and a sum for a recording only", i+1)
		}
	}
	for _, name := range files {
		if entries[name] != 1 {
			t.Errorf("recordings.txt has %d entries for %s, want one", entries[name], name)
		}
	}
}
