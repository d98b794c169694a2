package mess

import (
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

const maxProposed = 32 << 10

// Suggestion proposes something to a requester (MESS-38).
type Suggestion struct {
	ID       string     `json:"id"`
	Type     string     `json:"type"`
	Re       []string   `json:"re"` // in a thread: refs
	Proposed wire.Value `json:"proposed,omitzero"`
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Decided  string     `json:"decided,omitempty"` // accepted, refused
}

func readSuggestion(v wire.Value, path string) (Suggestion, error) {
	f := in(v, path)
	s := Suggestion{
		ID:     f.need("id", maxID),
		Type:   f.oneOf("type", "", "merge", "split", "delegate", "alternative", "defer"),
		Re:     f.refs("re", true),
		Reason: f.text("reason", maxProse),
	}
	f.check(s.Type != "", "type", "is required")
	proposed, ok := f.get("proposed")
	f.check(ok || s.Type == "alternative", "proposed", "is required")
	f.check(len(proposed.JSON()) <= maxProposed, "proposed", "must have at most 32 KiB") // it is kept in the thread until it is answered
	s.Proposed = proposed
	return s, f.err
}

// suggested numbers, from 1, the newest suggestion that waits for the requester's word: it is the one meant by who names the
// thread. It is 0 where none waits.
func (t *Thread) suggested() int {
	for i := len(t.Suggestions); i > 0; i-- {
		if t.Suggestions[i-1].Decided == "" {
			return i
		}
	}
	return 0
}

// entry is the suggestion as MESS writes it, about the threads that it names here.
func (s Suggestion) entry() Entry {
	body := wire.Obj(
		wire.Member{Key: "id", Value: wire.Text(s.ID)}, wire.Member{Key: "type", Value: wire.Text(s.Type)}, wire.Member{Key: "re", Value: wire.Texts(s.Re)})
	if !s.Proposed.IsNull() {
		body = body.With("proposed", s.Proposed)
	}
	if s.Reason != "" {
		body = body.With("reason", wire.Text(s.Reason))
	}
	return Entry{Type: "suggestion", Body: body}
}

// suggestion returns the newest suggestion with this id that waits for an answer.
func (t *Thread) suggestion(id string) *Suggestion {
	for i := len(t.Suggestions) - 1; i >= 0; i-- {
		if t.Suggestions[i].ID == id && t.Suggestions[i].Decided == "" {
			return &t.Suggestions[i]
		}
	}
	return nil
}

// decides reports whether an entry is the word about a suggestion.
func (e Entry) decides() bool {
	accept, ok := e.Body.Get("accept")
	return ok && e.Type == "reply" && !accept.IsNull()
}

// onlyDecides reports whether a block is such words and nothing else.
func (b Block) onlyDecides() bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(e Entry) bool { return e.Type != "v" && !e.decides() })
}

// decidesFor reports whether an entry is the word about a suggestion that a peer made.
func (t *Thread) decidesFor(e Entry, peer string) bool {
	re := first(e.Body)
	return e.decides() && slices.ContainsFunc(t.Suggestions, func(s Suggestion) bool { return s.ID == re && s.By == peer })
}

// madeThere reports whether it is for the exchange of a peer to carry a suggestion out.
func (t *Thread) madeThere(s *Suggestion) bool { return s != nil && t.Peers[s.By].Offered }

// chosen is the suggestion that an answer is about: without an id the newest that waits.
func (t *Thread) chosen(id string) *Suggestion {
	if n := t.suggested(); id == "" && n > 0 {
		return &t.Suggestions[n-1]
	}
	return t.suggestion(id)
}
