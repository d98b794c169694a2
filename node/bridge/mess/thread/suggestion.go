package thread

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxProposed bounds the proposal of a suggestion, in bytes.
const maxProposed = 32 << 10

// Suggestion is a proposal to a requester (MESS-38).
type Suggestion struct {
	ID       string     `json:"id"`
	Type     string     `json:"type"`
	Re       []string   `json:"re"` // as the sender wrote them; in a stored thread, refs of our threads
	Proposed wire.Value `json:"proposed,omitzero"`
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Decided  string     `json:"decided,omitempty"` // "accepted", "refused", or "" if it is open
}

// ReadSuggestion reads a suggestion.
func ReadSuggestion(v wire.Value, path string) (Suggestion, error) {
	f := NewFields(v, path)
	s := Suggestion{
		ID:     f.Required("id", MaxID),
		Type:   f.OneOf("type", "", "merge", "split", "delegate", "alternative", "defer"),
		Re:     f.Refs("re", Mandatory),
		Reason: f.Text("reason", MaxProse),
	}
	f.Check(s.Type != "", "type", "is required")
	proposed, ok := f.Get("proposed")
	f.Check(ok || s.Type == "alternative", "proposed", "is required")
	// the thread keeps every proposal, so each must be small
	f.Check(len(proposed.JSON()) <= maxProposed, "proposed", "must have at most 32 KiB")
	s.Proposed = proposed
	return s, f.Err()
}

// Entry returns the suggestion as MESS writes it, with our refs.
func (s Suggestion) Entry() Entry {
	body := wire.Obj(
		wire.TextField("id", s.ID), wire.TextField("type", s.Type), wire.Field("re", wire.Texts(s.Re)))
	if !s.Proposed.IsNull() {
		body = body.With("proposed", s.Proposed)
	}
	return Entry{Type: "suggestion", Body: body.WithOptional("reason", s.Reason)}
}

// OpenSuggestion returns the number, from 1, of the newest suggestion with this id that waits for the requester's
// decision, or 0. If id is "", suggestions with any id count, because a decision that names only the thread is about
// the newest suggestion.
func (t *Thread) OpenSuggestion(id string) int {
	for i, s := range slices.Backward(t.Suggestions) {
		if s.Decided == "" && (id == "" || s.ID == id) {
			return i + 1
		}
	}
	return 0
}

// FindSuggestion returns the suggestion of [Thread.OpenSuggestion], or nil.
func (t *Thread) FindSuggestion(id string) *Suggestion {
	if n := t.OpenSuggestion(id); n > 0 {
		return &t.Suggestions[n-1]
	}
	return nil
}

// IsDecision reports whether an entry decides about a suggestion.
func (e Entry) IsDecision() bool {
	accept, ok := e.Body.Get("accept")
	return ok && e.Type == "reply" && !accept.IsNull()
}

// HasOnlyDecisions reports whether a block decides about suggestions and does nothing else.
func (b Block) HasOnlyDecisions() bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(e Entry) bool { return e.Type != "v" && !e.IsDecision() })
}

// IsDecisionFor reports whether an entry decides about a suggestion of this peer.
func (t *Thread) IsDecisionFor(e Entry, peer string) bool {
	re := FirstRef(e.Body)
	return e.IsDecision() && slices.ContainsFunc(t.Suggestions, func(s Suggestion) bool { return s.ID == re && s.By == peer })
}

// IsForPeer reports whether a peer's exchange must carry out the suggestion.
func (t *Thread) IsForPeer(s *Suggestion) bool { return s != nil && t.Peers[s.By].Offered }

// Proposal is what a suggestion would do.
type Proposal struct {
	Executor string       // of a merge or delegate
	Until    time.Time    // of a defer
	Intent   string       // of a merge; "" means the intents of the threads together
	Requests []wire.Value // of a split, or the only one of a merge
}

// addRequest adds a proposed request. An executor chooses neither the requester's names for requests nor dependencies,
// which could form a cycle through the threads that are replaced.
func (p *Proposal) addRequest(request wire.Value, path string, now time.Time) error {
	if _, err := ReadRequest(request, path, now); err != nil {
		return err
	}
	if limits, ok := request.Get("constraints"); ok && limits.Kind() == wire.Object {
		request = request.With("constraints", limits.Without("depends_on"))
	}
	p.Requests = append(p.Requests, request.Without("id"))
	return nil
}

// ReadProposal reads what a suggestion proposes. It returns an error if the exchange could not carry out the proposal;
// such a suggestion is refused when it is made.
func (s Suggestion) ReadProposal(now time.Time) (p Proposal, err error) {
	text, _ := s.Proposed.Str()
	firstText := func(keys ...string) string {
		for _, key := range keys {
			if v := s.Proposed.GetStr(key); v != "" {
				return v
			}
		}
		return text
	}
	path := "proposed"
	switch s.Type {
	case "merge":
		p.Executor = s.Proposed.GetStr("executor")
		request := wire.Obj()
		if s.Proposed.Kind() == wire.Object {
			request = s.Proposed.Without("executor", "combined_intent")
		}
		p.Intent = firstText("combined_intent", "intent")
		return p, p.addRequest(request.With("intent", wire.Text(cmp.Or(p.Intent, "merged"))), path, now)
	case "delegate":
		p.Executor = firstText("executor", "delegate_to", "delegated_to", "to")
		if p.Executor == "" {
			return p, Bad(path+".executor", "is required")
		}
	case "defer":
		at, ok := TimeOrSpan(firstText("until", "not_before", "available_at", "resume_at"), now)
		if !ok {
			return p, Bad(path+".until", "must be a time or a duration")
		}
		p.Until = at
	case "split":
		list := s.Proposed
		for _, key := range []string{"requests", "intents", "parts"} {
			if v, ok := s.Proposed.Get(key); ok {
				list = v
			}
		}
		if list.Kind() != wire.Array || list.Len() < 2 || list.Len() > 50 {
			return p, Bad(path+".requests", "must be a list of 2 to 50 requests or intents")
		}
		for part := range list.Elems() {
			if intent, ok := part.Str(); ok {
				part = wire.Obj(wire.TextField("intent", intent))
			}
			if err := p.addRequest(part, path+".requests", now); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}
