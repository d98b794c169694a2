package relay

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	defaultHistory = 50
	maxListed      = 100              // messages or agents in one answer
	maxQueryText   = 1024             // bytes
	roomForList    = frame.MaxPayload // bytes of a list in one answer; keeps the frame below frame.MaxSize
)

// historyRequest is the payload of the command history.
type historyRequest struct {
	limit int
	since int64  // in milliseconds
	after string // the "next" of the previous page
}

func readHistoryRequest(p wire.Value) (historyRequest, *frame.Refusal) {
	req := historyRequest{limit: defaultHistory, after: p.GetStr("after")}
	if v, ok := p.Get("limit"); ok {
		if err := json.Unmarshal(v.JSON(), &req.limit); err != nil || req.limit < 1 {
			return req, frame.Invalid("limit must be a whole number from 1")
		}
	}
	if v, ok := p.Get("since"); ok && !v.IsNull() {
		if err := json.Unmarshal(v.JSON(), &req.since); err != nil {
			return req, frame.Invalid("since must be a time in milliseconds")
		}
	}
	req.limit = min(req.limit, maxListed)
	return req, nil
}

// answerHistory answers the command history: the messages that the agent may see, newest first (AR-45).
func (r *Relay) answerHistory(s *session, f frame.Frame) *frame.Refusal {
	req, fault := readHistoryRequest(f.Payload)
	if fault != nil {
		return fault
	}
	a := r.agents.Get(s.id)
	if a == nil {
		return frame.Refuse(frame.CodeUnavailable, "the agent is no longer registered")
	}
	list := r.history.visibleTo(a, time.Now())
	slices.Reverse(list)
	list = slices.DeleteFunc(list, func(e *entry) bool { return e.ts < req.since })
	list = listAfter(list, req.after)
	shown := fitFrames(list, req.limit, roomForList)
	more := len(shown) < len(list)
	result := wire.Obj(wire.TextField("command", "history"), wire.Field("messages", wire.Arr(shown...)), wire.Field("more", wire.Bool(more)))
	if more {
		result = result.With("next", wire.Text(list[len(shown)-1].id))
	}
	s.tell("command_result", f.Ref, result)
	return nil
}

// listAfter returns the messages after the message with this id: all if id is empty, or nil if it is unknown.
func listAfter(list []*entry, id string) []*entry {
	if id == "" {
		return list
	}
	for i, e := range list {
		if e.id == id {
			return list[i+1:]
		}
	}
	return nil
}

// fitFrames returns the first frames of list that fit into room bytes, at most limit. If the first frame does not fit
// even alone, it is shown without its payload.
func fitFrames(list []*entry, limit, room int) []wire.Value {
	out := []wire.Value{}
	for _, e := range list[:min(limit, len(list))] {
		v, err := wire.ParseForeign(e.raw, frame.MaxDepth, frame.MaxValues)
		size := len(e.raw)
		if err != nil || size+1 > room && len(out) == 0 {
			v = wire.Obj(wire.TextField("id", e.id), wire.TextField("from", e.from), wire.TextField("type", e.kind), wire.Field("ts", wire.Int(e.ts)), wire.Field("truncated", wire.Bool(true)))
			size = len(v.JSON())
		}
		if size+1 > room { // with a comma
			break
		}
		room -= size + 1
		out = append(out, v)
	}
	return out
}
