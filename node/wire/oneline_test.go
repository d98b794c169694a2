package wire

import (
	"strings"
	"testing"
)

func TestOneLine(t *testing.T) {
	for _, c := range []struct {
		name, in string
		limit    int
		want     string
	}{
		{"plain", "Coffee with Ann", 40, "Coffee with Ann"},
		{"white space", "  a \t\n\r b  ", 40, "a b"},
		{"terminal", "\x1b[31mred\x1b[0m\a", 40, "[31mred[0m"},
		{"c1 and bidi", "a\u009b1mb\u202ec\u2066d\u200be", 40, "a1mbcde"},
		{"bad UTF-8", "a\xffb", 40, "ab"},
		{"other scripts", "昼食 Обед", 40, "昼食 Обед"},
		{"cap counts characters", "ääääää", 3, "äää…"},
		{"empty", "\x00\x1b", 40, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := OneLine(c.in, c.limit); got != c.want {
				t.Errorf("OneLine(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\x1b[2Jb", 10)
	f.Add("0 00", 2) // the blank between two words counts as well
	f.Add("\u202e\xf0\x28", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(1, limit%1000)
		got := OneLine(s, limit)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e }) {
			t.Errorf("OneLine(%q) = %q", s, got)
		}
		if n := len([]rune(got)); n > limit+1 {
			t.Errorf("OneLine(%q, %d) has %d characters", s, limit, n)
		}
	})
}
