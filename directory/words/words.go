// Package words splits texts into the words by which a search finds cards (AM-52).
package words

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	uax29 "github.com/clipperhouse/uax29/v2/words"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// maxWord bounds a word in bytes. Longer words are cut, in the index and in queries alike.
const maxWord = 64

// token is a folded word of a text, or a run: a stretch of text in a script without spaces.
type token struct {
	text string
	run  bool
}

// tokenize splits text into words by UAX #29 and folds them: NFKC, case, and diacritics of Latin, Greek and Cyrillic
// (AM-52). It drops punctuation and symbols, and combining marks with which a word begins. Most words are plain; only
// the others go through segment, which is slower.
func tokenize(text string) []token {
	list := make([]token, 0, len(text)/6+1)
	for field := range strings.FieldsSeq(text) {
		field = fold(field)
		if word := strings.Trim(field, `.,:;!?()"`); isPlain(word) {
			list = append(list, token{word, false})
		} else {
			list = segment(list, strings.TrimLeftFunc(field, unicode.IsMark))
		}
	}
	return list
}

// isPlain reports whether a folded text has only ASCII letters and digits, and so is one word.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return text != ""
}

// segment appends the words and runs of a folded text to list.
func segment(list []token, text string) []token {
	open := false // the last token is a run that may continue
	for it := uax29.FromString(text); it.Next(); {
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
		case strings.IndexFunc(w, isWordRune) >= 0:
			list = append(list, token{w, false})
		}
		open = false
	}
	return list
}

// unspaced lists the scripts that put no spaces between words. UAX #29 splits most of them into single characters.
var unspaced = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

func isWordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

// bigrams returns each pair of adjacent characters of a run, or its only character.
func bigrams(run string) []string {
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

// Index returns at most limit distinct words by which a search finds the text. Two kinds of them go beyond AM-52: the
// parts of a word with punctuation inside ("sarah" in "sarah's"), and each character of a run. These come last, so that
// limit cuts them first.
func Index(text string, limit int) []string {
	tokens := tokenize(text)
	first, extra := slices.Grow([]string(nil), len(tokens)), []string(nil)
	for _, t := range tokens {
		if t.run {
			first = append(first, bigrams(t.text)...)
			for _, r := range t.text {
				extra = append(extra, string(r))
			}
			continue
		}
		first = append(first, truncate(t.text))
		if isPlain(t.text) {
			continue
		}
		if parts := strings.FieldsFunc(t.text, func(r rune) bool { return !isWordRune(r) && !unicode.IsMark(r) }); len(parts) > 1 {
			for _, p := range parts {
				extra = append(extra, truncate(p))
			}
		}
	}
	seen := make(map[string]struct{}, len(first)+len(extra))
	list := slices.DeleteFunc(append(first, extra...), func(w string) bool {
		before := len(seen)
		seen[w] = struct{}{}
		return len(seen) == before
	})
	return list[:min(len(list), limit)]
}

// Query returns the words of a query. The words in whole must match completely; the last word, prefix, may also match
// as a prefix. n is the number of words; a run counts as one word.
func Query(q string) (whole []string, prefix string, n int) {
	list := tokenize(q)
	for _, t := range list {
		if t.run {
			whole = append(whole, bigrams(t.text)...)
		} else {
			whole = append(whole, truncate(t.text))
		}
	}
	if len(whole) == 0 {
		return nil, "", 0
	}
	return whole[:len(whole)-1], whole[len(whole)-1], len(list)
}

// truncate cuts a word to maxWord bytes, between two characters.
func truncate(word string) string {
	if len(word) <= maxWord {
		return word
	}
	end := maxWord
	for !utf8.RuneStart(word[end]) {
		end--
	}
	return word[:end]
}

// fold returns the same form for all texts that people read as the same.
func fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	s = cases.Fold().String(norm.NFKD.String(s))
	var b strings.Builder
	b.Grow(len(s))
	dropsMarks := false // whether fold drops the diacritics of the preceding base character
	for _, r := range norm.NFKD.String(s) {
		switch {
		case unicode.Is(unicode.Mn, r):
			if !dropsMarks {
				b.WriteRune(r)
			}
			continue
		case unicode.Is(unicode.Cf, r): // soft hyphens, joiners, marks of direction
			continue
		case r == '’':
			r = '\''
		}
		dropsMarks = unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
		b.WriteRune(r)
	}
	return norm.NFKC.String(strokes.Replace(b.String()))
}

// strokes replaces letters that people often type in a plain form, and that Unicode does not decompose.
var strokes = strings.NewReplacer("ø", "o", "ł", "l", "đ", "d", "ħ", "h", "ŧ", "t", "ı", "i", "æ", "ae", "œ", "oe")

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
