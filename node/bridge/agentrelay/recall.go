package agentrelay

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	defaultHistory = 50
	defaultSearch  = 20
	maxListed      = 100
	maxQueryText   = 1024
	roomForList    = maxPayload // of a list in one answer, so that the frame stays below MaxFrame
)

// extendedCommand answers the commands of the extensions that are on (section 8).
func (r *Relay) extendedCommand(s *session, f frame) *refusal {
	ext := r.cfg.Extensions
	name := f.kind
	if f.kind == "command" {
		name = f.payload.GetStr("command")
	}
	switch {
	case f.kind == "vote" && ext.Voting:
		return r.vote(s, f)
	case f.kind == "query" && ext.Semantic:
		return r.query(s, f)
	case name == "semantic_subscribe" && ext.Semantic:
		return &refusal{codeUnsupported, "this relay compares no embeddings"}
	case f.kind != "command" || !ext.History:
	case name == "history":
		return r.recall(s, f, name, defaultHistory)
	case name == "search":
		return r.recall(s, f, name, defaultSearch)
	case name == "replay":
		return r.recall(s, f, name, defaultHistory)
	}
	return &refusal{codeUnknown, "the relay knows no such command"}
}

// reference is what an answer of an extension refers to: the request's own ref. Its id the sender never learns.
func (r *Relay) reply(s *session, f frame, kind string, payload wire.Value) {
	r.tell(s, message{kind: kind, to: s.id, ref: f.ref, payload: payload})
}

// wanted is what a command asks for.
type wanted struct {
	limit int
	since int64
	from  string // message id of replay
	after string // next of the page before
	query string
}

func readWanted(p wire.Value, limit int) (wanted, *refusal) {
	w := wanted{limit: limit, from: p.GetStr("since_message_id"), after: p.GetStr("after"), query: p.GetStr("query")}
	if v, ok := p.Get("limit"); ok {
		if err := json.Unmarshal(v.JSON(), &w.limit); err != nil || w.limit < 1 {
			return w, invalid("limit must be a whole number from 1")
		}
	}
	if v, ok := p.Get("since"); ok && !v.IsNull() {
		if err := json.Unmarshal(v.JSON(), &w.since); err != nil {
			return w, invalid("since must be a time in milliseconds")
		}
	}
	w.limit = min(w.limit, maxListed)
	if len(w.query) > maxQueryText {
		return w, invalid("query must have at most 1024 bytes")
	}
	return w, nil
}

// recall answers history, search and replay (AR-45).
func (r *Relay) recall(s *session, f frame, name string, limit int) *refusal {
	w, fault := readWanted(f.payload, limit)
	if fault != nil {
		return fault
	}
	a, ok := r.agents.get(s.id)
	if !ok {
		return &refusal{codeUnavailable, "the agent is no longer registered"}
	}
	var list []*entry
	now := time.Now()
	switch name {
	case "history":
		list = r.history.seen(a, now)
		slices.Reverse(list)
		list = slices.DeleteFunc(list, func(e *entry) bool { return e.ts < w.since })
		list = behind(list, w.after)
	case "replay":
		start := w.from
		if w.after != "" {
			start = w.after
		}
		if start == "" {
			return invalid("payload.since_message_id must be a message id")
		}
		list = behind(r.history.seen(a, now), start)
	case "search":
		if len(words(w.query)) == 0 {
			return invalid("payload.query must be a text")
		}
		n, _ := strconv.Atoi(w.after)
		n = min(max(n, 0), r.history.max)
		list = r.history.search(a, w.query, n+w.limit+1, now) // one over the limit, for more
		list = list[min(n, len(list)):]
	}
	shown, used := fit(list, w.limit, roomForList)
	result := wire.Obj(text("command", name), wire.Field("messages", wire.Arr(shown...)), wire.Field("more", wire.Bool(used < len(list))))
	if used < len(list) {
		next := list[used-1].id
		if name == "search" {
			n, _ := strconv.Atoi(w.after)
			next = strconv.Itoa(max(n, 0) + used)
		}
		result = result.With("next", wire.Text(next))
	}
	r.reply(s, f, "command_result", result)
	return nil
}

// behind returns what comes after the message with this id, all where it is empty and nothing where it is unknown.
func behind(list []*entry, id string) []*entry {
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

// fit returns as many frames as there is room for. One that has no room even alone is shown without its payload.
func fit(list []*entry, limit, room int) (out []wire.Value, used int) {
	out = []wire.Value{}
	for _, e := range list {
		if used == limit {
			break
		}
		v, err := wire.ParseForeign(e.raw, maxDepth, maxValues)
		if err != nil {
			v = wire.Obj(text("id", e.id), text("from", e.from), wire.Field("ts", wire.Int(e.ts)))
		}
		size := len(e.raw)
		if size > room && used == 0 {
			v = wire.Obj(text("id", e.id), text("from", e.from), text("type", e.kind), wire.Field("ts", wire.Int(e.ts)), wire.Field("truncated", wire.Bool(true)))
			size = len(v.JSON())
		}
		if size+1 > room {
			break
		}
		room -= size + 1
		out = append(out, v)
		used++
	}
	return out, used
}
