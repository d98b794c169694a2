package words

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestIndexWords(t *testing.T) {
	tests := []struct {
		text string
		want []string
	}{
		{"", nil},
		{"  ?! 🙂 --", nil},
		{"Chris, the Agent", []string{"chris", "the", "agent"}},
		{"the the THE", []string{"the"}},
		{"can't stop", []string{"can't", "stop", "can", "t"}},
		{"can’t", []string{"can't", "can", "t"}},
		{"ÀÉÎõü", []string{"aeiou"}},
		{"Łódź Ørsted", []string{"lodz", "orsted"}},
		{"ﬁancé", []string{"fiance"}},
		{"ＦＵＬＬ　ｗｉｄｔｈ", []string{"full", "width"}},
		{"İstanbul", []string{"istanbul"}},
		{"ΣΊΣΥΦΟΣ", []string{"σισυφοσ"}},
		{"soft\u00adhyphen", []string{"softhyphen"}},
		{"東京都", []string{"東京", "京都", "東", "京", "都"}},
		{"カタカナ", []string{"カタ", "タカ", "カナ", "カ", "タ", "ナ"}},
		{"Go言語x", []string{"go", "言語", "x", "言", "語"}},
		{"도쿄 타워", []string{"도쿄", "타워"}},
		{"हिन्दी", []string{"हिन्दी"}},
		{"3.14 1,000", []string{"3.14", "1,000", "3", "14", "1", "000"}},
		{strings.Repeat("x", 100), []string{strings.Repeat("x", maxWord)}},
	}
	for _, tt := range tests {
		if got := Index(tt.text, 1000); !cmp.Equal(got, tt.want) {
			t.Errorf("Index(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
	if got := Index("a b c", 2); len(got) != 2 {
		t.Errorf("a limit of 2 gives %q", got)
	}
}

func TestQueryWords(t *testing.T) {
	tests := []struct {
		q      string
		whole  []string
		prefix string
		n      int
	}{
		{"", nil, "", 0},
		{"!", nil, "", 0},
		{"Sarah", []string{}, "sarah", 1},
		{"sarah ch", []string{"sarah"}, "ch", 2},
		{"東京都", []string{"東京"}, "京都", 1},
		{"東京都 x", []string{"東京", "京都"}, "x", 2},
	}
	for _, tt := range tests {
		whole, prefix, n := Query(tt.q)
		if !cmp.Equal(whole, tt.whole) || prefix != tt.prefix || n != tt.n {
			t.Errorf("Query(%q) = %q, %q, %d; want %q, %q, %d", tt.q, whole, prefix, n, tt.whole, tt.prefix, tt.n)
		}
	}
}

// FuzzWords checks the tokenizer: a text is found by its own words, and no word is empty, malformed or too long for the
// store.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"Sarah's Assistant", "東京 tower", "ﷺ", "e\u0301\u0301", "a\u200db", "\U0001F468\u200d\U0001F469", "สวัสดี", "İI", "1.2.3", strings.Repeat("é", 60)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) || len(s) > 4096 {
			return
		}
		have := Index(s, 1<<20)
		for _, w := range have {
			if w == "" || len(w) > maxWord || !utf8.ValidString(w) {
				t.Fatalf("Index(%q) has the word %q", s, w)
			}
		}
		whole, prefix, n := Query(s)
		if n == 0 {
			return
		}
		for _, w := range append(whole, prefix) {
			if !slices.Contains(have, w) {
				t.Fatalf("%q is not found by its own word %q: %q", s, w, have)
			}
		}
	})
}
