package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Search asks a directory, which ranks its results itself (AR-38).
type Search func(ctx context.Context, q client.Query) ([]wire.Card, error)

const (
	maxResults    = 20
	searchTimeout = 5 * time.Second
	maxSearches   = 60 // of the directory, in a minute
)

// request is a query with the scope that the agent asked for.
type request struct {
	client.Query
	scope string // agents, messages or both
}

func readQuery(p wire.Value) (request, *frame.Refusal) {
	q := request{scope: "both", Query: client.Query{Limit: maxResults}}
	capability, intent := p.GetStr("capability"), p.GetStr("intent")
	if s, ok := p.Str(); ok {
		q.Text = s
	} else if p.Kind() == wire.Object {
		q.Text = p.GetStr("query")
		if capability != "" {
			q.Capabilities = []string{capability}
		}
		if intent != "" {
			q.Intents = []wire.Intent{wire.Intent(intent)}
		}
		q.scope = cmp.Or(p.GetStr("scope"), "both")
		if v, ok := p.Get("limit"); ok {
			if err := json.Unmarshal(v.JSON(), &q.Limit); err != nil || q.Limit < 1 {
				return q, frame.Invalid("limit must be a whole number from 1 to 20")
			}
			q.Limit = min(q.Limit, maxResults)
		}
	}
	switch {
	case len(q.Text)+len(capability)+len(intent) > maxQueryText:
		return q, frame.Invalid("the query must have at most 1024 bytes")
	case strings.TrimSpace(q.Text+capability+intent) == "":
		return q, frame.Invalid("the payload must be a text, or an object with query, capability or intent")
	case !slices.Contains([]string{"agents", "messages", "both"}, q.scope):
		return q, frame.Invalid("scope must be agents, messages or both")
	}
	return q, nil
}

// answerQuery answers from the directory, from what connected agents say about themselves, and from the history. The
// ranking is lexical, and the answer says so: the relay compares no embeddings.
func (r *Relay) answerQuery(s *session, f frame.Frame) *frame.Refusal {
	q, fault := readQuery(f.Payload)
	if fault != nil {
		return fault
	}
	var agents, messages []wire.Value
	more := false
	if q.scope != "messages" {
		var complete bool
		agents, complete = r.searchAgents(q.Query)
		more = !complete
	}
	if a := r.agents.Get(s.id); a != nil && q.scope != "agents" && r.history != nil {
		for _, e := range r.history.search(a, q.Text, q.Limit+1, time.Now()) { // one over the limit, to set "more"
			messages = append(messages, e.summary())
		}
	}
	room := roomForList
	agents, more = shorten(agents, q.Limit, &room, more)
	messages, more = shorten(messages, q.Limit, &room, more)
	s.tell("query_result", f.Ref, wire.Obj(
		wire.TextField("query", q.Text), wire.Field("agents", wire.Arr(agents...)), wire.Field("messages", wire.Arr(messages...)),
		wire.Field("more", wire.Bool(more)), wire.TextField("ranking", "lexical"),
	))
	return nil
}

// summary returns the message as a query_result shows it.
func (e *entry) summary() wire.Value {
	v := wire.Obj(wire.TextField("id", e.id), wire.TextField("from", e.from)).WithOptional("type", e.kind).With("ts", wire.Int(e.ts))
	if full, err := wire.ParseForeign(e.raw, frame.MaxDepth, frame.MaxValues); err == nil {
		payload, _ := full.Get("payload")
		v = v.With("payload", payload)
	}
	return v
}

// shorten cuts a list to at most limit values and *room bytes, and reduces *room by the size of the result. It also
// returns true if it cut the list or if incomplete is true.
func shorten(list []wire.Value, limit int, room *int, incomplete bool) ([]wire.Value, bool) {
	out := []wire.Value{}
	for _, v := range list {
		size := len(v.JSON()) + 1 // with a comma
		if len(out) == limit || size > *room {
			return out, true
		}
		*room -= size
		out = append(out, v)
	}
	return out, incomplete
}

// searchAgents searches the directory, then the connected agents. complete is false if it left out the directory,
// because that search failed or agents have searched too often. Searches of the directory are limited because it may
// belong to somebody else, who counts them against the owner.
func (r *Relay) searchAgents(q client.Query) (out []wire.Value, complete bool) {
	complete = r.cfg.Search == nil || r.searches.Take(time.Now()) == 0 // 0: no need to wait
	if r.cfg.Search != nil && complete {
		ctx, cancel := context.WithTimeout(context.Background(), searchTimeout)
		defer cancel()
		q.Limit = maxResults + 1 // so that the caller sees whether there are more
		found, err := r.cfg.Search(ctx, q)
		if err != nil {
			r.log.Info("a query of a connected agent could not search the directory", "err", err)
			complete = false
		}
		for _, a := range found { // no endpoint, key or owner data of the card
			out = append(out, wire.Obj(
				wire.TextField("name", frame.Shorten(a.Name, maxDescription)), wire.TextField("description", frame.Shorten(a.Description, maxDescription)),
				wire.Field("capabilities", wire.Texts(a.Capabilities)), wire.TextField("source", "directory"),
			))
		}
	}
	return append(out, r.searchOnline(q)...), complete
}

// searchOnline ranks the connected agents by how many words of the query occur in what they last said about themselves.
// An agent does not say which intents it understands, so a query for an intent finds no agent here.
func (r *Relay) searchOnline(q client.Query) []wire.Value {
	if len(q.Intents) > 0 {
		return nil
	}
	type hit struct {
		id    string
		found discovery
		score int
	}
	terms := splitQuery(q.Text)
	var hits []hit
	for _, s := range r.conns.all() {
		s.mu.Lock()
		d := s.about
		s.mu.Unlock()
		if d.At.IsZero() || slices.ContainsFunc(q.Capabilities, func(c string) bool { return !slices.Contains(d.Skills, strings.ToLower(c)) }) {
			continue
		}
		n := score(terms, strings.ToLower(s.id+" "+d.Name+" "+d.Description+" "+strings.Join(d.Skills, " ")))
		if n > 0 || len(terms) == 0 {
			hits = append(hits, hit{s.id, d, n})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.id, b.id)) })
	var out []wire.Value
	for _, h := range hits[:min(len(hits), maxListed)] {
		out = append(out, wire.Obj(
			wire.TextField("agent_id", h.id), wire.TextField("name", cmp.Or(h.found.Name, h.id)), wire.TextField("description", h.found.Description),
			wire.Field("capabilities", wire.Texts(h.found.Skills)), wire.TextField("source", "relay"),
		))
	}
	return out
}
