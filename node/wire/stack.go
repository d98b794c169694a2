package wire

// stack holds the members of the containers that are still open. Its array needs no allocation as long as the stack is
// passed down and no slice of it is kept.
type stack struct {
	n    int
	few  [24]Member
	more []Member // members that do not fit into few
}

func (s *stack) push(m Member) {
	if s.n < len(s.few) {
		s.few[s.n] = m
	} else {
		s.more = append(s.more, m)
	}
	s.n++
}

// has reports whether key is among the members from start on.
func (s *stack) has(key string, start int) bool {
	for i := start; i < min(s.n, len(s.few)); i++ {
		if s.few[i].Key == key {
			return true
		}
	}
	for i := max(start-len(s.few), 0); i < len(s.more); i++ {
		if s.more[i].Key == key {
			return true
		}
	}
	return false
}

// keys returns the keys of the members from start on.
func (s *stack) keys(start int) map[string]struct{} {
	keys := make(map[string]struct{}, 2*(s.n-start))
	for i := start; i < s.n; i++ {
		if i < len(s.few) {
			keys[s.few[i].Key] = struct{}{}
		} else {
			keys[s.more[i-len(s.few)].Key] = struct{}{}
		}
	}
	return keys
}

// pop moves the members from start on to dst.
func (s *stack) pop(dst []Member, start int) {
	if start < len(s.few) {
		n := copy(dst, s.few[start:min(s.n, len(s.few))])
		dst, s.n = dst[n:], start
	} else {
		s.n = start
	}
	kept := max(start-len(s.few), 0)
	copy(dst, s.more[min(kept, len(s.more)):])
	s.more = s.more[:min(kept, len(s.more))]
}
