package docs

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	changeVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(_unreleased)?$`)
	changeName    = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	changeTitle   = regexp.MustCompile(`^(Security|Bugfix|Change|Enhancement): ([A-Z][^\n]*[^.\n])$`)
)

// changeFault returns what is wrong with the text of a change, or "" if it is correct.
func changeFault(text string) string {
	title, body, ok := strings.Cut(text, "\n\n")
	m := changeTitle.FindStringSubmatch(title)
	switch {
	case !ok || m == nil:
		return "the first paragraph must be a type, a colon and a title without a full stop"
	case len([]rune(m[2])) > 72:
		return "the title is longer than 72 characters"
	case len(strings.Fields(body)) < 15:
		return "the text must say what is different and what to do"
	case !strings.HasSuffix(text, ".\n") || strings.HasSuffix(text, "\n\n"):
		return "the text must end with a full stop and one line break"
	}
	return ""
}

// TestChangelog: the text of every change follows docs/changelog/README.md.
func TestChangelog(t *testing.T) {
	root := os.DirFS("changelog")
	found := 0
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || name == "README.md" {
			return err
		}
		if d.IsDir() {
			if !changeVersion.MatchString(name) {
				t.Errorf("docs/changelog/%s is not a version", name)
			}
			return nil
		}
		found++
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if fault := changeFault(string(data)); fault != "" || !changeName.MatchString(path.Base(name)) {
			t.Errorf("docs/changelog/%s: %s", name, fault)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("%d changes were found: this test sees too little", found)
	}
}

func TestChangeFault(t *testing.T) {
	body := "\n\n" + strings.Repeat("word ", 20) + "end.\n"
	for text, good := range map[string]bool{
		"Bugfix: Send again" + body:                           true,
		"Bugfix: Send again." + body:                          false,
		"Bug: Send again" + body:                              false,
		"Bugfix: send again" + body:                           false,
		"Bugfix: " + strings.Repeat("Long ", 20) + "x" + body: false,
		"Bugfix: Send again\n\nToo short.\n":                  false,
		"Bugfix: Send again" + body + "\n":                    false,
		"Bugfix: Send again\n":                                false,
	} {
		if got := changeFault(text); (got == "") != good {
			t.Errorf("changeFault(%q) = %q, want good %t", text, got, good)
		}
	}
}
