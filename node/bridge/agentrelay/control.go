package agentrelay

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// command answers a frame that is for the relay (section 5).
func (r *Relay) command(s *session, f frame) *refusal {
	answer := func(kind string, payload wire.Value) *refusal {
		r.tell(s, message{kind: kind, to: s.id, ref: f.ref, payload: payload})
		return nil
	}
	switch f.kind {
	case "ping":
		payload := f.payload
		if len(payload.JSON()) > 1024 {
			payload = wire.Value{}
		}
		return answer("pong", payload)
	case "subscribe", "unsubscribe":
		agents, words, fault := f.readSubscription(r.cfg.Extensions.Semantic)
		if fault != nil {
			return fault
		}
		if f.kind == "unsubscribe" {
			return answer("unsubscribed", counted(agents, s.unsubscribe(agents)))
		}
		count, fault := s.subscribe(agents, words)
		if fault != nil {
			return fault
		}
		return answer("subscribed", counted(agents, count))
	case "list_subscriptions":
		return answer("subscriptions", wire.Obj(wire.Field("agents", wire.Texts(s.subscriptions()))))
	}
	return r.extendedCommand(s, f)
}

func counted(agents []string, count int) wire.Value {
	return wire.Obj(wire.Field("agents", wire.Texts(agents)), wire.Field("count", wire.Int(int64(count))))
}

// readSubscription reads the payload of subscribe and unsubscribe, in both spellings. An id need not exist yet. With the
// semantic extension a filter of keywords may stand in its place (AR-37).
func (f *frame) readSubscription(semantic bool) (agents, words []string, fault *refusal) {
	list, ok := f.payload.Get("agents")
	if !ok {
		list, ok = f.payload.Get("subscribe_to")
	}
	filter, filtered := f.payload.Get("keywords")
	if filtered && semantic {
		if words, ok = readKeywords(filter); !ok {
			return nil, nil, invalid("keywords must be an array of at most 64 strings")
		}
		if list.IsNull() {
			return []string{}, words, nil
		}
	}
	if !ok || list.Kind() != wire.Array || list.Len() > maxSubscriptions {
		return nil, nil, invalid("payload.agents must be an array of at most 1000 agent ids")
	}
	agents = []string{}
	for v := range list.Elems() {
		id, ok := v.Str()
		if !ok || !ValidAgentID(id) {
			return nil, nil, invalid("payload.agents must be an array of agent ids")
		}
		if !slices.Contains(agents, id) {
			agents = append(agents, id)
		}
	}
	return agents, words, nil
}

// subscribe adds agents and returns how many the connection is subscribed to now.
func (s *session) subscribe(agents, words []string) (int, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := 0
	for _, id := range agents {
		if !s.subs[id] {
			fresh++
		}
	}
	if len(s.subs)+fresh > maxSubscriptions {
		return 0, invalid("at most 1000 subscriptions")
	}
	if s.subs == nil {
		s.subs = make(map[string]bool)
	}
	for _, id := range agents {
		s.subs[id] = true
	}
	if words != nil {
		s.keywords = words
	}
	return len(s.subs), nil
}

func (s *session) unsubscribe(agents []string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range agents {
		delete(s.subs, id)
	}
	return len(s.subs)
}

func (s *session) subscriptions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.subs))
	for id := range s.subs {
		out = append(out, id)
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
