package relay

import (
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// handleCommand handles a frame for the relay. The relay does not know the commands of an extension that is off.
func (r *Relay) handleCommand(s *session, f frame.Frame) *frame.Refusal {
	ext := r.cfg.Extensions
	switch {
	case f.Type == "ping":
		payload := f.Payload
		if len(payload.JSON()) > 1024 { // too large to send back
			payload = wire.Value{}
		}
		s.tell("pong", f.Ref, payload)
		return nil
	case f.Type == "subscribe", f.Type == "unsubscribe":
		agents, words, fault := readSubscription(f.Payload, ext.Semantic)
		if fault != nil {
			return fault
		}
		count := 0
		if f.Type == "unsubscribe" {
			count = s.unsubscribe(agents)
		} else if count, fault = s.subscribe(agents, words); fault != nil {
			return fault
		}
		done := f.Type + "d" // subscribed or unsubscribed
		s.tell(done, f.Ref, wire.Obj(wire.Field("agents", wire.Texts(agents)), wire.Field("count", wire.Int(int64(count)))))
		return nil
	case f.Type == "list_subscriptions":
		s.tell("subscriptions", f.Ref, wire.Obj(wire.Field("agents", wire.Texts(s.subscriptions()))))
		return nil
	case f.Type == "vote" && ext.Voting:
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		r.markSeen(ctx, s.id)
		return r.cast(ctx, s.id, f)
	case f.Type == "query" && ext.Semantic:
		return r.answerQuery(s, f)
	case f.Type == "command" && ext.History && f.Payload.GetStr("command") == "history":
		return r.answerHistory(s, f)
	case f.Type == "command", f.Type == "semantic_subscribe":
		return frame.Refuse(frame.CodeUnsupported, "the relay does not offer this command")
	}
	return frame.Refuse(frame.CodeUnknown, "the relay knows no such command")
}

// readSubscription reads the payload of subscribe and unsubscribe. The list of ids has one of two names, and the ids
// need not exist yet. With the semantic extension, a list of keywords may take the place of the ids (AR-37).
func readSubscription(payload wire.Value, semantic bool) (agents, words []string, fault *frame.Refusal) {
	list, ok := payload.Get("agents")
	if !ok {
		list, ok = payload.Get("subscribe_to")
	}
	filter, hasFilter := payload.Get("keywords")
	if hasFilter && semantic {
		if words, ok = frame.ReadKeywords(filter); !ok {
			return nil, nil, frame.Invalid("keywords must be an array of at most 64 strings")
		}
		if list.IsNull() {
			return []string{}, words, nil
		}
	}
	if !ok || list.Kind() != wire.Array || list.Len() > maxSubscriptions {
		return nil, nil, frame.Invalid("payload.agents must be an array of at most 1000 agent ids")
	}
	agents = []string{}
	for v := range list.Elems() {
		id, ok := v.Str()
		if !ok || !frame.ValidAgentID(id) {
			return nil, nil, frame.Invalid("payload.agents must be an array of agent ids")
		}
		if !slices.Contains(agents, id) {
			agents = append(agents, id)
		}
	}
	return agents, words, nil
}
