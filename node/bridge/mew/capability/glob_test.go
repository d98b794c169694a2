package capability

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// matchNaively defines the meaning of a glob, without regard to its cost.
func matchNaively(pattern, s []rune) bool {
	if len(pattern) == 0 {
		return len(s) == 0
	}
	switch pattern[0] {
	case '*':
		rest, crosses := pattern[1:], false
		for len(rest) > 0 && rest[0] == '*' {
			rest, crosses = rest[1:], true
		}
		for i := 0; ; i++ {
			if matchNaively(rest, s[i:]) {
				return true
			}
			if i == len(s) || s[i] == '/' && !crosses {
				return false
			}
		}
	case '?':
		return len(s) > 0 && s[0] != '/' && matchNaively(pattern[1:], s[1:])
	}
	return len(s) > 0 && s[0] == pattern[0] && matchNaively(pattern[1:], s[1:])
}

func TestGlobAgreesWithItsMeaning(t *testing.T) {
	letters := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "ä"}), 0, 8)
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "ä", "*", "**", "?"}), 1, 7).Draw(t, "pattern"), "")
		if !isGlob(pattern) {
			pattern += "*"
		}
		s := strings.Join(letters.Draw(t, "string"), "")
		if got, want := newGlob(pattern).match(s, newBudget()), matchNaively([]rune(pattern), []rune(s)); got != want {
			t.Fatalf("%q matches %q: %t, want %t", pattern, s, got, want)
		}
	})
}

// TestGlobLong: a pattern with one star matches a file name of any length within the Budget.
func TestGlobLong(t *testing.T) {
	s := "read_" + strings.Repeat("x", 64<<10) + ".txt"
	for pattern, want := range map[string]bool{"read_*": true, "*.txt": true, "read_*.txt": true, "write_*": false, "read_*.md": false} {
		if got := newGlob(pattern).match(s, newBudget()); got != want {
			t.Errorf("%q on 64 KiB: %t, want %t", pattern, got, want)
		}
	}
}
