package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents returns the README and the Markdown files in this directory and in .github, by their path from the root of
// the module.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	eachFile(t, func(name string, data []byte) {
		if strings.HasSuffix(name, ".md") && (name == "README.md" || strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, ".github/")) {
			texts[name] = string(data)
		}
	})
	if len(texts) < 10 {
		t.Fatalf("%d documents were found: the test sees too little", len(texts))
	}
	return texts
}

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	testName = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z0-9]\\w*)`")
)

// allTests returns the names of all test functions.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	exists := map[string]bool{}
	eachFile(t, func(name string, data []byte) {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range testFunc.FindAllSubmatch(data, -1) {
				exists[string(m[1])] = true
			}
		}
	})
	return exists
}

// TestNamedTestsExist: every test that a document names exists.
func TestNamedTestsExist(t *testing.T) {
	exists, named := allTests(t), 0
	for doc, text := range documents(t) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if named++; !exists[m[1]] {
				t.Errorf("%s names the test %s, which does not exist", doc, m[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("%d tests are named: this test sees too little", named)
	}
}

var sourceName = regexp.MustCompile("`([a-z][a-z0-9_/]*/[a-z0-9_]+\\.go)`")

// TestNamedFilesExist: every source file that a document names exists.
func TestNamedFilesExist(t *testing.T) {
	for doc, text := range documents(t) {
		for _, m := range sourceName.FindAllStringSubmatch(text, -1) {
			if _, err := fs.Stat(os.DirFS(".."), m[1]); err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile("(?m)^#+ (.*)$")
	noSlug  = regexp.MustCompile(`[^\pL\pN _-]`)
)

// TestLinks: every link from one document to another has a target, and the heading that it names.
func TestLinks(t *testing.T) {
	texts := documents(t)
	headings := map[string]bool{} // document#heading
	for doc, text := range texts {
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			headings[doc+"#"+strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
	}
	for doc, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := doc
			if m[1] != "" {
				target = path.Join(path.Dir(doc), m[1])
			}
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
			if m[2] != "" && strings.HasSuffix(target, ".md") && !headings[target+"#"+m[2]] {
				t.Errorf("%s links to %s, which has no heading %s", doc, target, m[2])
			}
		}
	}
}

var (
	keyRow  = regexp.MustCompile("(?m)^\\| `([a-z_]+(?:\\.[a-z_]+)?)` \\|")
	keyName = regexp.MustCompile("`((?:access|card|conversations|limits|log|network|notify|outgoing|owner_api|registration|timeouts|window)\\.[a-z_]+)`")
)

// TestNamedKeysExist: every configuration key that a document names is in docs/config.md.
func TestNamedKeysExist(t *testing.T) {
	texts := documents(t)
	exists := map[string]bool{}
	for _, m := range keyRow.FindAllStringSubmatch(texts["docs/config.md"], -1) {
		exists[m[1]] = true
	}
	named := 0
	delete(texts, "docs/changes.md") // it names keys that are gone
	for doc, text := range texts {
		for _, m := range keyName.FindAllStringSubmatch(text, -1) {
			if m[1] == "card.json" { // not a key but a file
				continue
			}
			if named++; !exists[m[1]] {
				t.Errorf("%s names the key %s, which docs/config.md does not have", doc, m[1])
			}
		}
	}
	if named < 20 {
		t.Errorf("%d keys are named: this test sees too little", named)
	}
}

// ruleNumber matches the number of a rule of a protocol note.
var ruleNumber = regexp.MustCompile(`\b(?:AM|MEW|MS|MESS|AR|A2A|OC|MCP|DISC)-\d`)

// TestNoRulesInTexts: no text of the program cites the number of a rule, because the people who read help, errors and
// logs do not have the notes.
func TestNoRulesInTexts(t *testing.T) {
	texts := 0
	eachFile(t, func(name string, data []byte) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return
		}
		var s scanner.Scanner
		fset := token.NewFileSet()
		s.Init(fset.AddFile(name, -1, len(data)), data, nil, 0)
		for pos, tok, text := s.Scan(); tok != token.EOF; pos, tok, text = s.Scan() {
			if tok != token.STRING {
				continue
			}
			if texts++; ruleNumber.MatchString(text) {
				t.Errorf("%s: the text cites a rule: %s", fset.Position(pos), text)
			}
		}
	})
	if texts < 10_000 {
		t.Errorf("%d texts were read: this test sees too little", texts)
	}
}

var glossaryRow = regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \|$`)

// TestGlossary: each word has one row and one meaning.
func TestGlossary(t *testing.T) {
	meanings, words := map[string]string{}, 0
	for _, m := range glossaryRow.FindAllStringSubmatch(documents(t)["docs/glossary.md"], -1) {
		word, meaning := m[1], m[2]
		if word == "word" {
			continue
		}
		if words++; meanings[word] != "" {
			t.Errorf("the glossary has %q twice: %q and %q", word, meanings[word], meaning)
		}
		meanings[word] = meaning
	}
	if words < 50 {
		t.Errorf("the glossary has %d words: this test sees too little", words)
	}
}

var (
	threatCited = regexp.MustCompile(`THREATS (?:rows? )?(\d+)(?:, (\d+))?`)
	threatRow   = regexp.MustCompile(`(?m)^\| (\d+) \|`)
)

// TestCitedThreatsExist: every row of the threat model that the code cites exists.
func TestCitedThreatsExist(t *testing.T) {
	exists := map[string]bool{"": true}
	for _, m := range threatRow.FindAllStringSubmatch(documents(t)["docs/threat-model.md"], -1) {
		exists[m[1]] = true
	}
	cited := 0
	eachFile(t, func(name string, data []byte) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		for _, m := range threatCited.FindAllStringSubmatch(string(data), -1) {
			if cited++; !exists[m[1]] || !exists[m[2]] {
				t.Errorf("%s cites %q, which docs/threat-model.md does not have", name, m[0])
			}
		}
	})
	if cited < 30 {
		t.Errorf("threats are cited %d times: this test sees too little", cited)
	}
}
