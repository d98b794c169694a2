// Package goldentest compares what the program says to people with a file, so that a sentence stands in one place and may
// change with one command. It is for tests only.
package goldentest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Update is set by -update: tests then write their golden files and the generated documents instead of comparing them.
var Update = flag.Bool("update", false, "write golden files and generated documents")

// File has the texts of the tests of a package, each below a line with the test and its step.
const File = "testdata/said.golden"

var (
	mu     sync.Mutex   // guards the file, for parallel tests with -update
	dir, _ = os.Getwd() // the directory of the package, also for tests that change to another one
)

var randomID = regexp.MustCompile(`\b(ask|conv|in|msg)_[0-9a-z]{20,}`)

// Says reports whether [File] has this text for this test and step. If not, the test fails. A random id is written as
// ask_ID.
func Says(t testing.TB, step, got string) bool {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	texts, err := read()
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Join(strings.Fields(t.Name()+": "+step), " ")
	got = strings.TrimSpace(randomID.ReplaceAllString(strings.ReplaceAll(got, "\n= ", "\n = "), "${1}_ID"))
	if *Update {
		texts[name] = got
		if err := write(texts); err != nil {
			t.Fatal(err)
		}
	}
	if want, ok := texts[name]; !ok || got != want {
		t.Errorf("%s says\n%s\n%s has\n%s\n-update writes it", name, got, File, want)
		return false
	}
	return true
}

// Refuses is [Says] for an error, which must not be nil.
func Refuses(t testing.TB, step string, err error) bool {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", step)
		return false
	}
	return Says(t, step, err.Error())
}

var (
	notice = regexp.MustCompile(`(?s)<p [^>]*(?:role="(?:status|alert)"|class="empty")[^>]*>(.*?)</p>`)
	tag    = regexp.MustCompile(`<[^>]*>`)
	moment = regexp.MustCompile(`\d{1,2} \w{3} \d{4}, \d\d:\d\d(:\d\d)?`)
)

// Page is [Says] for what a page tells its reader: that something was done, failed, or that there is nothing. A time is
// written as TIME.
func Page(t testing.TB, step, page string) bool {
	t.Helper()
	var texts []string
	for _, m := range notice.FindAllStringSubmatch(page, -1) {
		texts = append(texts, strings.Join(strings.Fields(tag.ReplaceAllString(m[1], "")), " "))
	}
	if len(texts) == 0 {
		t.Errorf("%s: the page tells nothing:\n%s", step, page)
		return false
	}
	return Says(t, step, moment.ReplaceAllString(strings.Join(texts, "\n"), "TIME"))
}

func read() (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	texts := map[string]string{}
	for part := range strings.SplitSeq("\n"+string(data), "\n= ") {
		if name, text, ok := strings.Cut(part, "\n"); ok && name != "" {
			texts[name] = strings.TrimSpace(text)
		}
	}
	return texts, nil
}

func write(texts map[string]string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&b, "= %s\n%s\n", name, texts[name])
	}
	path := filepath.Join(dir, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
