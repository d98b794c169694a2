package mess

import "bytes"

// In flow style the parser has all of a collection in memory before it hands out its first node, at several times the cost
// of block style. So what has more entries there than a document may have nodes is not given to it (MESS-61).

// crowded returns where the entries in flow style are more than a document may have nodes, and -1 where they are not.
// Commas in texts and comments do not count. It knows of YAML what it needs for that; what it takes for a text and the
// parser does not has cost no more than the pre-scan lets pass.
func crowded(data []byte) int {
	if bytes.Count(data, []byte{','}) <= maxNodes {
		return -1
	}
	s := flowScan{data: data, parent: -1, starts: true, fresh: true}
	for s.at < len(data) {
		if s.step(); s.entries > maxNodes {
			return s.at
		}
	}
	return -1
}

// flowScan is a walk over the characters of a document.
type flowScan struct {
	data    []byte
	at      int
	line    int  // where the line begins
	parent  int  // column of what a block scalar would belong to
	depth   int  // of open collections in flow style
	entries int  // in flow style
	starts  bool // a node may start here; at the begin of a line it may only where one was announced before
	fresh   bool // nothing stands on the line yet
}

func (s *flowScan) step() {
	c := s.data[s.at]
	flow, fresh := s.depth > 0, s.fresh
	s.fresh = c == '\n' || fresh && blank(c)
	switch {
	case c == '\n':
		s.line = s.at + 1
	case blank(c):
	case c == '#' && (s.at == s.line || blank(s.data[s.at-1])):
		s.skipTo('\n')
		return
	case s.starts && (c == '"' || c == '\''):
		s.key(fresh)
		s.quoted(c)
	case (s.starts || flow) && (c == '[' || c == '{'):
		s.depth++
		s.starts = true
	case flow && (c == ']' || c == '}'):
		s.depth--
		s.starts = false
	case flow && c == ',':
		s.entries++
		s.starts = true
	case c == ':' && (s.ends(s.at+1) || flow && bytes.IndexByte([]byte("\"'}]"), s.data[s.at-1]) >= 0):
		s.starts = true
	case s.starts && c == '!': // a tag goes before its node
		for !s.ends(s.at + 1) {
			s.at++
		}
	case !flow && (s.starts || fresh) && (c == '-' || c == '?') && s.ends(s.at+1):
		s.parent, s.starts = s.at-s.line, true
	case !flow && s.at == s.line && bytes.HasPrefix(s.data[s.at:], []byte("---")) && s.ends(s.at+3):
		s.parent, s.starts = -1, true
		s.at += 2
	case !flow && s.starts && (c == '|' || c == '>'):
		s.block()
		return
	default:
		s.key(fresh)
		s.starts = false
	}
	s.at++
}

// ends says whether nothing, or a blank, stands at a place.
func (s *flowScan) ends(at int) bool { return at >= len(s.data) || blank(s.data[at]) }

func (s *flowScan) skipTo(c byte) {
	if n := bytes.IndexByte(s.data[s.at:], c); n >= 0 {
		s.at += n
		return
	}
	s.at = len(s.data)
}

// key remembers where what may be a key in block style begins.
func (s *flowScan) key(fresh bool) {
	if (s.starts || fresh) && s.depth == 0 {
		s.parent = s.at - s.line
	}
}

// quoted goes to the end of a quoted scalar.
func (s *flowScan) quoted(quote byte) {
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

// block goes past a block scalar: to the first line that is not deeper than what it belongs to.
func (s *flowScan) block() {
	for {
		s.skipTo('\n')
		s.at++
		if s.line = s.at; s.at >= len(s.data) {
			return
		}
		text := bytes.TrimLeft(s.data[s.at:], " ")
		if len(text) > 0 && !blank(text[0]) && len(s.data)-s.at-len(text) <= s.parent {
			s.starts, s.fresh = false, true
			return
		}
	}
}
