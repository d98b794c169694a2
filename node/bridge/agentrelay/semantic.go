package agentrelay

import (
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// discovery is what an agent last said of itself on this connection.
type discovery struct {
	At          time.Time
	Name        string
	Description string
	Skills      []string
}

const (
	maxKeyword     = 128 // bytes
	maxDescription = 512
)

// readKeywords reads a list of words, lower case.
func readKeywords(v wire.Value) ([]string, bool) {
	if v.Kind() != wire.Array || v.Len() > maxKeywordsOfAgent {
		return nil, false
	}
	out := []string{}
	for e := range v.Elems() {
		word, ok := e.Str()
		if !ok || len(word) > maxKeyword {
			return nil, false
		}
		out = append(out, strings.ToLower(word))
	}
	return out, true
}

// note remembers a discovery: what the agent can do, for queries and narrow broadcasts (AR-37, AR-38).
func (s *session) note(f frame) {
	if f.kind != "discovery" || f.payload.Kind() != wire.Object {
		return
	}
	d := discovery{At: time.Now(), Name: cut(f.payload.GetStr("name"), maxKeyword), Description: cut(f.payload.GetStr("description"), maxDescription)}
	if skills, ok := f.payload.Get("skills"); ok {
		d.Skills, _ = readKeywords(skills)
	}
	if on, ok := f.payload.Get("available"); ok && on.Kind() == wire.False {
		d.Skills = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = d
}

func (s *session) discovered() discovery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}

// narrowTo returns the keywords of a broadcast that is for some only; nil where it is for all (AR-37).
func (f *frame) narrowTo(semantic bool) []string {
	narrow, _ := f.tree.Get("narrow")
	if on, _ := narrow.Boolean(); !on || !semantic {
		return nil
	}
	list, _ := f.tree.Get("keywords")
	words, ok := readKeywords(list)
	if !ok || len(words) == 0 {
		return nil
	}
	return words
}

// wants says whether a narrow broadcast is for this agent.
func (s *session) wants(from string, words []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs[from] {
		return true
	}
	for _, w := range words {
		for _, have := range [2][]string{s.found.Skills, s.keywords} {
			if slices.Contains(have, w) {
				return true
			}
		}
	}
	return false
}

// cut shortens a text to at most n bytes, at a border of runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
