package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// bridgeRule matches a rule of the protocol of a bridge, such as MEW-37, MEW-L3 or A2A-D1.
	bridgeRule  = regexp.MustCompile(`\b(A2A|AR|MESS|MEW|MS)-([A-Z]?)(\d+)\b`)
	bridgeRange = regexp.MustCompile(`\b((?:A2A|AR|MESS|MEW|MS)-[A-Z]?)(\d+) to (?:A2A|AR|MESS|MEW|MS)-[A-Z]?(\d+)\b`)
	// citesRules matches the comment lines of the code that cite rules.
	citesRules = regexp.MustCompile(`//.*`)
)

// TestConformance: the files in conformance/ list every rule that a comment of the code cites, say something about each,
// and name tests that exist.
func TestConformance(t *testing.T) {
	files, err := filepath.Glob("conformance/*.txt")
	if err != nil || len(files) != 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	tests, listed, named := allTests(t), map[string]bool{}, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			for _, m := range testName.FindAllStringSubmatch(line, -1) {
				if named++; !tests[m[1]] {
					t.Errorf("%s:%d names the test %s, which does not exist", file, i+1, m[1])
				}
			}
			if line == "" || line[0] == '#' {
				continue
			}
			rules, state, ok := strings.Cut(line, "\t")
			if !ok || strings.TrimSpace(state) == "" {
				t.Errorf("%s:%d says nothing about its rules", file, i+1)
			}
			for _, m := range bridgeRange.FindAllStringSubmatch(rules, -1) {
				first, _ := strconv.Atoi(m[2])
				last, _ := strconv.Atoi(m[3])
				for n := first; n <= last; n++ {
					listed[m[1]+strconv.Itoa(n)] = true
				}
			}
			for _, m := range bridgeRule.FindAllString(line, -1) {
				listed[m] = true
			}
		}
	}
	cited := 0
	eachFile(t, func(name string, data []byte) {
		if !strings.HasSuffix(name, ".go") || name == "docs/conformance_test.go" {
			return
		}
		for _, comment := range citesRules.FindAllString(string(data), -1) {
			for _, rule := range bridgeRule.FindAllString(comment, -1) {
				if cited++; !listed[rule] {
					t.Errorf("%s cites %s, which docs/conformance does not list", name, rule)
				}
			}
		}
	})
	if cited < 100 || named < 300 {
		t.Errorf("%d rules are cited and %d tests named: this test sees too little", cited, named)
	}
}
