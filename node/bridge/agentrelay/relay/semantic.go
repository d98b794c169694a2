package relay

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// discovery is what an agent last said about itself on this connection.
type discovery struct {
	At          time.Time
	Name        string
	Description string
	Skills      []string
}

const (
	maxName        = 128 // in bytes
	maxDescription = 512
)

// noteDiscovery remembers what the agent says it can do, for queries and for broadcasts that are only for some agents
// (AR-37, AR-38).
func (s *session) noteDiscovery(f frame.Frame) {
	if f.Type != "discovery" || f.Payload.Kind() != wire.Object {
		return
	}
	d := discovery{At: time.Now(), Name: frame.Shorten(f.Payload.GetStr("name"), maxName), Description: frame.Shorten(f.Payload.GetStr("description"), maxDescription)}
	if skills, ok := f.Payload.Get("skills"); ok {
		d.Skills, _ = frame.ReadKeywords(skills)
	}
	if on, ok := f.Payload.Get("available"); ok && on.Kind() == wire.False {
		d.Skills = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about = d
}

// narrowTo returns the keywords of a narrow broadcast, which is only for some agents, or nil for any other broadcast
// (AR-37).
func narrowTo(f frame.Frame, semantic bool) []string {
	narrow, _ := f.Tree.Get("narrow")
	if on, _ := narrow.Boolean(); !on || !semantic {
		return nil
	}
	list, _ := f.Tree.Get("keywords")
	words, ok := frame.ReadKeywords(list)
	if !ok || len(words) == 0 {
		return nil
	}
	return words
}

// wants reports whether the agent of s wants a narrow broadcast: it subscribed to the sender, or a keyword matches.
func (s *session) wants(from string, words []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs[from] {
		return true
	}
	for _, w := range words {
		for _, list := range [2][]string{s.about.Skills, s.keywords} {
			if slices.Contains(list, w) {
				return true
			}
		}
	}
	return false
}
