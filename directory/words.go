package directory

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/words"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// maxWord bounds the bytes of an indexed word; longer ones are cut in the index and in the query alike.
const maxWord = 64

// token is a folded word of a text. Scripts that are written without spaces come as one run per stretch.
type token struct {
	text string
	run  bool
}

// cut cuts text into folded words by UAX #29 (AM-52): NFKC, case folding, no diacritics. Punctuation and
// symbols are no words.
func cut(text string) []token {
	text = fold(text)
	var list []token
	open := false // the last token is a run that the next one may continue
	for it := words.FromString(text); it.Next(); {
		w := it.Value()
		r, _ := utf8.DecodeRuneInString(w)
		switch {
		case r >= utf8.RuneSelf && unicode.In(r, unspaced...):
			if open {
				list[len(list)-1].text += w
			} else {
				list = append(list, token{w, true})
			}
			open = true
			continue
		case strings.IndexFunc(w, wordRune) >= 0:
			list = append(list, token{w, false})
		}
		open = false
	}
	return list
}

// unspaced are the scripts whose words have no spaces between them, so that UAX #29 cuts them into characters.
var unspaced = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

func wordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

// pairs returns the characters of a run two by two; a single character stands alone.
func pairs(run string) []string {
	runes := []rune(run)
	if len(runes) < 2 {
		return []string{run}
	}
	list := make([]string, len(runes)-1)
	for i := range list {
		list[i] = string(runes[i : i+2])
	}
	return list
}

// indexed returns the words that a text is found by, each once, at most limit. Beyond what AM-52 asks, a word
// with an apostrophe, a dot or an underscore inside is also found by its parts ("sarah" in "sarah's"), and a
// run by each character; these come last, so that the limit costs them first.
func indexed(text string, limit int) []string {
	var main, more []string
	for _, t := range cut(text) {
		if t.run {
			main = append(main, pairs(t.text)...)
			for _, r := range t.text {
				more = append(more, string(r))
			}
			continue
		}
		main = append(main, short(t.text))
		if parts := strings.FieldsFunc(t.text, func(r rune) bool { return !wordRune(r) && !unicode.IsMark(r) }); len(parts) > 1 {
			for _, p := range parts {
				more = append(more, short(p))
			}
		}
	}
	seen := make(map[string]bool, len(main)+len(more))
	list := slices.DeleteFunc(append(main, more...), func(w string) bool {
		again := seen[w]
		seen[w] = true
		return again
	})
	return list[:min(len(list), limit)]
}

// wanted returns the words that a query asks for: all of whole, and one that begins with prefix. n is how many
// words the query has, a run counting as one.
func wanted(q string) (whole []string, prefix string, n int) {
	list := cut(q)
	for _, t := range list {
		if t.run {
			whole = append(whole, pairs(t.text)...)
		} else {
			whole = append(whole, short(t.text))
		}
	}
	if len(whole) == 0 {
		return nil, "", 0
	}
	return whole[:len(whole)-1], whole[len(whole)-1], len(list)
}

// short cuts a word to maxWord bytes, between characters.
func short(word string) string {
	if len(word) <= maxWord {
		return word
	}
	end := maxWord
	for !utf8.RuneStart(word[end]) {
		end--
	}
	return word[:end]
}

// fold makes texts that people take for the same equal.
func fold(s string) string {
	if ascii(s) {
		return strings.ToLower(s)
	}
	s = cases.Fold().String(norm.NFKD.String(s))
	var b strings.Builder
	b.Grow(len(s))
	accented := false // the base before takes diacritics, not letters of its script
	for _, r := range norm.NFKD.String(s) {
		switch {
		case unicode.Is(unicode.Mn, r):
			if !accented {
				b.WriteRune(r)
			}
			continue
		case unicode.Is(unicode.Cf, r): // soft hyphens, joiners, marks of direction
			continue
		case r == '’':
			r = '\''
		}
		accented = unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
		b.WriteRune(r)
	}
	return norm.NFKC.String(undotted.Replace(b.String()))
}

// undotted are letters that people type without their stroke, though Unicode does not decompose them.
var undotted = strings.NewReplacer("ø", "o", "ł", "l", "đ", "d", "ħ", "h", "ŧ", "t", "ı", "i", "æ", "ae", "œ", "oe")

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
