package wire

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// skipDigits steps over digits. It reports whether there is at least one.
func (p *parser) skipDigits() bool {
	start := p.pos
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		p.pos++
	}
	return p.pos > start
}

func (p *parser) number() (Value, error) {
	start := p.pos
	if p.peek() == '-' {
		p.pos++
	}
	if p.peek() == '0' {
		p.pos++
	} else if !p.skipDigits() {
		return Value{}, p.fail("bad number")
	}
	integer := true
	if p.peek() == '.' {
		integer = false
		p.pos++
		if !p.skipDigits() {
			return Value{}, p.fail("bad number")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		integer = false
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if !p.skipDigits() {
			return Value{}, p.fail("bad number")
		}
	}
	token := p.text[start:p.pos]
	if p.anyNumber || integer && len(token) < len("9007199254740991") {
		return Value{kind: Number, text: token}, nil
	}
	if !IsSafeNumber(token) {
		return Value{}, &SyntaxError{Offset: start, Reason: "number beyond 2^53-1"}
	}
	return Value{kind: Number, text: token}, nil
}

// IsSafeNumber reports whether a JSON number is between ±[MaxSafeInteger], however it is spelled: 9007199254740993.0
// is not. Beyond that range a double holds whole numbers only, and not all of them. There, two amounts would have one
// canonical text, and one signature.
func IsSafeNumber(token string) bool {
	f, err := strconv.ParseFloat(token, 64)
	return err == nil && math.Abs(f) <= MaxSafeInteger
}

// plain is true for ASCII bytes that need no escape in a string.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// str reads a string. The opening quote is the next byte.
func (p *parser) str() (string, error) {
	start := p.pos + 1
	text := p.text
	ascii := true
	for i := start; i < len(text); i++ {
		c := text[i]
		if plain[c] {
			continue
		}
		p.pos = i
		switch {
		case c == '"':
			s := text[start:i]
			if !ascii && !utf8.ValidString(s) {
				return "", p.fail("invalid UTF-8")
			}
			p.pos++
			return s, nil
		case c == '\\':
			return p.readEscapes(start)
		case c < ' ':
			return "", p.fail("control character in a string")
		}
		ascii = false
	}
	p.pos = len(text)
	return "", p.fail("unexpected end")
}

// readEscapes reads a string that begins at start. Its first backslash is at p.pos; the text before that is already
// checked.
func (p *parser) readEscapes(start int) (string, error) {
	buf := append(make([]byte, 0, 2*(p.pos-start)+32), p.text[start:p.pos]...)
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '"':
			s := string(buf)
			if !utf8.ValidString(s) {
				return "", p.fail("invalid UTF-8")
			}
			p.pos++
			return s, nil
		case c == '\\':
			var err error
			if buf, err = p.escape(buf); err != nil {
				return "", err
			}
		case c < ' ':
			return "", p.fail("control character in a string")
		default:
			buf = append(buf, c)
			p.pos++
		}
	}
	return "", p.fail("unexpected end")
}

// escape reads an escape, whose backslash is the next byte, and appends the character that it stands for.
func (p *parser) escape(buf []byte) ([]byte, error) {
	if p.pos++; p.pos >= len(p.text) {
		return nil, p.fail("unexpected end")
	}
	c := p.text[p.pos]
	p.pos++
	switch c {
	case '"', '\\', '/':
		return append(buf, c), nil
	case 'b':
		return append(buf, '\b'), nil
	case 'f':
		return append(buf, '\f'), nil
	case 'n':
		return append(buf, '\n'), nil
	case 'r':
		return append(buf, '\r'), nil
	case 't':
		return append(buf, '\t'), nil
	case 'u':
		r, ok := p.hex4()
		if !ok {
			return nil, p.fail("bad escape")
		}
		if !utf16.IsSurrogate(r) {
			return utf8.AppendRune(buf, r), nil
		}
		if !strings.HasPrefix(p.text[p.pos:], `\u`) {
			return nil, p.fail("lone surrogate")
		}
		p.pos += len(`\u`)
		low, ok := p.hex4()
		if !ok {
			return nil, p.fail("bad escape")
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return nil, p.fail("lone surrogate")
		}
		return utf8.AppendRune(buf, r), nil
	}
	return nil, p.fail("bad escape")
}

// hex4 reads four hex digits.
func (p *parser) hex4() (rune, bool) {
	if len(p.text)-p.pos < 4 {
		return 0, false
	}
	n := rune(0)
	for range 4 {
		c := p.text[p.pos]
		p.pos++
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			n = n<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
