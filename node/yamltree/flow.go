package yamltree

import "bytes"

// findFlowOverflow returns the offset at which the entries in flow style exceed max, or -1.
//
// In flow style, the parser keeps a whole collection in memory before it returns its first node, at several times the
// cost of block style. So a document with more entries in flow style than its limit of nodes is refused before it is
// parsed (MESS-61). Commas in texts and comments do not count. The scan knows only as much YAML as it needs for that.
// If it mistakes entries for text, prescan still bounds the cost, because it counts all commas.
func findFlowOverflow(data []byte, max int) int {
	if bytes.Count(data, []byte{','}) <= max {
		return -1
	}
	s := flowScan{data: data, parent: -1, mayStart: true, blankLine: true}
	for s.pos < len(data) {
		if s.step(); s.entries > max {
			return s.pos
		}
	}
	return -1
}

// flowScan is the state of the scan.
type flowScan struct {
	data      []byte
	pos       int
	line      int  // offset of the current line
	parent    int  // column of the node that a block scalar would belong to
	depth     int  // of open collections in flow style
	entries   int  // in flow style
	mayStart  bool // a node may start here
	blankLine bool // so far, the line contains only blanks
}

// step moves past the next byte, or past a quoted text, a comment or a block scalar.
func (s *flowScan) step() {
	c := s.data[s.pos]
	inFlow, lineStart := s.depth > 0, s.blankLine
	s.blankLine = c == '\n' || lineStart && isBlank(c)
	switch {
	case c == '\n':
		s.line = s.pos + 1
	case isBlank(c):
	case c == '#' && (s.pos == s.line || isBlank(s.data[s.pos-1])):
		s.skipTo('\n')
		return
	case s.mayStart && (c == '"' || c == '\''):
		s.markKey(lineStart)
		s.skipQuote(c)
	case (s.mayStart || inFlow) && (c == '[' || c == '{'):
		s.depth++
		s.mayStart = true
	case inFlow && (c == ']' || c == '}'):
		s.depth--
		s.mayStart = false
	case inFlow && c == ',':
		s.entries++
		s.mayStart = true
	// The end of a key. In flow style, a quoted key or a collection as a key needs no space after the colon.
	case c == ':' && (s.hasEnd(s.pos+1) || inFlow && bytes.IndexByte([]byte("\"'}]"), s.data[s.pos-1]) >= 0):
		s.mayStart = true
	case s.mayStart && c == '!': // a tag stands before its node
		for !s.hasEnd(s.pos + 1) {
			s.pos++
		}
	// A list item, or a key that is marked as one.
	case !inFlow && (s.mayStart || lineStart) && (c == '-' || c == '?') && s.hasEnd(s.pos+1):
		s.parent, s.mayStart = s.pos-s.line, true
	// A new document.
	case !inFlow && s.pos == s.line && bytes.HasPrefix(s.data[s.pos:], []byte("---")) && s.hasEnd(s.pos+3):
		s.parent, s.mayStart = -1, true
		s.pos += 2
	case !inFlow && s.mayStart && (c == '|' || c == '>'):
		s.skipBlock()
		return
	default:
		s.markKey(lineStart)
		s.mayStart = false
	}
	s.pos++
}

// hasEnd reports whether a token that reaches offset ends there.
func (s *flowScan) hasEnd(offset int) bool { return offset >= len(s.data) || isBlank(s.data[offset]) }

func (s *flowScan) skipTo(c byte) {
	if n := bytes.IndexByte(s.data[s.pos:], c); n >= 0 {
		s.pos += n
		return
	}
	s.pos = len(s.data)
}

// markKey stores the column if a key in block style may begin here.
func (s *flowScan) markKey(lineStart bool) {
	if (s.mayStart || lineStart) && s.depth == 0 {
		s.parent = s.pos - s.line
	}
}

// skipQuote moves to the closing quote of a text that begins at pos.
func (s *flowScan) skipQuote(quote byte) {
	s.mayStart = false
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case c == '\n':
			s.line = s.pos + 1
		case c == '\\' && quote == '"':
			s.pos++
		case c == quote && quote == '\'' && s.pos+1 < len(s.data) && s.data[s.pos+1] == quote:
			s.pos++
		case c == quote:
			return
		}
	}
}

// skipBlock goes past a block scalar, to the first line that is not indented deeper than its parent.
func (s *flowScan) skipBlock() {
	for {
		s.skipTo('\n')
		s.pos++
		s.line = s.pos
		if s.pos >= len(s.data) {
			return
		}
		text := bytes.TrimLeft(s.data[s.pos:], " ")
		if len(text) > 0 && !isBlank(text[0]) && len(s.data)-s.pos-len(text) <= s.parent {
			s.mayStart, s.blankLine = false, true
			return
		}
	}
}
