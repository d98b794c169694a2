package words

import (
	"math/rand/v2"
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

// TestTokenize: words do not depend on the white space at which tokenize splits a text first.
func TestTokenize(t *testing.T) {
	pieces := []string{
		" ", "\t", "\r\n", "\u0085", "\u00a0", "\u1680", "\u2028", "\u202f", "\u3000", "a", "bc", "Z", "7", "42", ".", ",", ":", ";", "!", "?",
		"(", ")", "'", "’", "\"", "_", "-", "@", "é", "e\u0301", "\u0301", "\u0345", "¨", "\u00ad", "\u200b", "\u200d", "İ", "ß", "ø", "ﷺ",
		"東", "カ", "ส", "\u0e35", "\u093f", "\u064b", "ה", "\u05f3", "도", "हि", "\U0001F642", "\U0001F1E9", "\u0600",
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		var text strings.Builder
		for range 1 + rng.IntN(8) {
			text.WriteString(pieces[rng.IntN(len(pieces))])
		}
		checkTokenize(t, text.String())
	}
}

// checkTokenize compares tokenize with the words of the whole text. There, a mark belongs to the space before it.
func checkTokenize(t *testing.T, text string) {
	t.Helper()
	whole := fold(" " + strings.Join(strings.Fields(text), " "))
	if got, want := tokenize(text), segment(nil, whole); !slices.Equal(got, want) {
		t.Fatalf("tokenize(%q) = %v, want %v", text, got, want)
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
		checkTokenize(t, s)
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

func BenchmarkIndex(b *testing.B) {
	for name, text := range map[string]string{
		"short": "Personal agent for Sarah. Handles scheduling, communication, and research in Zürich.",
		"long":  "Books tables, trains and hotels (in Zürich, too). " + strings.Repeat("It keeps promises. ", 15),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Index(text, 256)
			}
		})
	}
}
