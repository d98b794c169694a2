package yamltree

import "bytes"

// findFlowOverflow returns the offset at which the entries in flow style become more than max, or -1 if they never do.
//
// In flow style the parser keeps a whole collection in memory before it hands out its first node, at several times the
// cost of block style. So a document that has more entries in flow style than it may have nodes is refused before it
// is parsed (MESS-61). Commas in texts and comments do not count. The scan knows only as much YAML as it needs for
// that. If it mistakes entries for text, the marks of the pre-scan still bound the cost.
func findFlowOverflow(data []byte, max int) int {
	if bytes.Count(data, []byte{','}) <= max {
		return -1
	}
	s := flowScan{data: data, parent: -1, starts: true, fresh: true}
	for s.at < len(data) {
		if s.step(); s.entries > max {
			return s.at
		}
	}
	return -1
}

// flowScan is a walk over the characters of a document.
type flowScan struct {
	data    []byte
	at      int
	line    int  // offset of the current line
	parent  int  // column of the node that a block scalar would belong to
	depth   int  // of open collections in flow style
	entries int  // in flow style
	starts  bool // a node may start here
	fresh   bool // the line contains only blanks so far
}

func (s *flowScan) step() {
	c := s.data[s.at]
	flow, fresh := s.depth > 0, s.fresh
	s.fresh = c == '\n' || fresh && isBlank(c)
	switch {
	case c == '\n':
		s.line = s.at + 1
	case isBlank(c):
	case c == '#' && (s.at == s.line || isBlank(s.data[s.at-1])):
		s.skipTo('\n')
		return
	case s.starts && (c == '"' || c == '\''):
		s.markKey(fresh)
		s.skipQuote(c)
	case (s.starts || flow) && (c == '[' || c == '{'):
		s.depth++
		s.starts = true
	case flow && (c == ']' || c == '}'):
		s.depth--
		s.starts = false
	case flow && c == ',':
		s.entries++
		s.starts = true
	case c == ':' && (s.hasEnd(s.at+1) || flow && bytes.IndexByte([]byte("\"'}]"), s.data[s.at-1]) >= 0):
		s.starts = true
	case s.starts && c == '!': // a tag goes before its node
		for !s.hasEnd(s.at + 1) {
			s.at++
		}
	case !flow && (s.starts || fresh) && (c == '-' || c == '?') && s.hasEnd(s.at+1):
		s.parent, s.starts = s.at-s.line, true
	case !flow && s.at == s.line && bytes.HasPrefix(s.data[s.at:], []byte("---")) && s.hasEnd(s.at+3):
		s.parent, s.starts = -1, true
		s.at += 2
	case !flow && s.starts && (c == '|' || c == '>'):
		s.skipBlock()
		return
	default:
		s.markKey(fresh)
		s.starts = false
	}
	s.at++
}

// hasEnd reports whether a token ends before an offset.
func (s *flowScan) hasEnd(at int) bool { return at >= len(s.data) || isBlank(s.data[at]) }

// skipTo goes to the next c, or to the end of the text.
func (s *flowScan) skipTo(c byte) {
	if n := bytes.IndexByte(s.data[s.at:], c); n >= 0 {
		s.at += n
		return
	}
	s.at = len(s.data)
}

// markKey stores the column if a key in block style may begin here.
func (s *flowScan) markKey(fresh bool) {
	if (s.starts || fresh) && s.depth == 0 {
		s.parent = s.at - s.line
	}
}

// skipQuote goes to the end of a quoted scalar.
func (s *flowScan) skipQuote(quote byte) {
	s.starts = false
	for s.at++; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '\n':
			s.line = s.at + 1
		case c == '\\' && quote == '"':
			s.at++
		case c == quote && quote == '\'' && s.at+1 < len(s.data) && s.data[s.at+1] == quote:
			s.at++
		case c == quote:
			return
		}
	}
}

// skipBlock goes past a block scalar, to the first line that is not indented deeper than the scalar's parent.
func (s *flowScan) skipBlock() {
	for {
		s.skipTo('\n')
		s.at++
		if s.line = s.at; s.at >= len(s.data) {
			return
		}
		text := bytes.TrimLeft(s.data[s.at:], " ")
		if len(text) > 0 && !isBlank(text[0]) && len(s.data)-s.at-len(text) <= s.parent {
			s.starts, s.fresh = false, true
			return
		}
	}
}
