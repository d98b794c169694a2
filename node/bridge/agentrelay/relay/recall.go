package relay

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	defaultHistory = 50
	defaultSearch  = 20
	maxListed      = 100              // messages or agents in one answer
	maxQueryText   = 1024             // bytes
	roomForList    = frame.MaxPayload // bytes of a list in one answer; keeps the frame below frame.MaxSize
)

// recallRequest is the payload of history, search and replay.
type recallRequest struct {
	limit int
	since int64  // in milliseconds
	from  string // message id of replay
	after string // the "next" of the previous page
	query string
}

func readRecall(p wire.Value, limit int) (recallRequest, *frame.Refusal) {
	req := recallRequest{limit: limit, from: p.GetStr("since_message_id"), after: p.GetStr("after"), query: p.GetStr("query")}
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
	if len(req.query) > maxQueryText {
		return req, frame.Invalid("query must have at most 1024 bytes")
	}
	return req, nil
}

// answerRecall answers history, search and replay (AR-45).
func (r *Relay) answerRecall(s *session, f frame.Frame, name string) *frame.Refusal {
	limit := defaultHistory
	if name == "search" {
		limit = defaultSearch
	}
	req, fault := readRecall(f.Payload, limit)
	if fault != nil {
		return fault
	}
	a, ok := r.agents.get(s.id)
	if !ok {
		return frame.Refuse(frame.CodeUnavailable, "the agent is no longer registered")
	}
	var list []*entry
	skip, now := 0, time.Now() // skip counts the hits on earlier pages of a search
	switch name {
	case "history":
		list = r.history.visibleTo(a, now)
		slices.Reverse(list)
		list = slices.DeleteFunc(list, func(e *entry) bool { return e.ts < req.since })
		list = listAfter(list, req.after)
	case "replay":
		start := cmp.Or(req.after, req.from)
		if start == "" {
			return frame.Invalid("payload.since_message_id must be a message id")
		}
		if list = listAfter(r.history.visibleTo(a, now), start); list == nil { // an empty answer would say that it missed nothing
			return frame.Invalid("the relay does not have this message any more, or you may not see it; ask for the history instead")
		}
	case "search":
		if len(splitQuery(req.query)) == 0 {
			return frame.Invalid("payload.query must be a text")
		}
		skip, _ = strconv.Atoi(req.after)
		skip = min(max(skip, 0), r.history.max)
		list = r.history.search(a, req.query, skip+req.limit+1, now) // one over the limit, to set "more"
		list = list[min(skip, len(list)):]
	}
	shown := fitFrames(list, req.limit, roomForList)
	more := len(shown) < len(list)
	result := wire.Obj(wire.TextField("command", name), wire.Field("messages", wire.Arr(shown...)), wire.Field("more", wire.Bool(more)))
	if more {
		next := list[len(shown)-1].id
		if name == "search" {
			next = strconv.Itoa(skip + len(shown))
		}
		result = result.With("next", wire.Text(next))
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
