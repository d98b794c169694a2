package mess

import (
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

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

// suggestionTask adds to a task what is suggested.
func (b *Bridge) suggestionTask(t *Thread, task bridge.Task) bridge.Task {
	s := t.Suggestions[t.suggested()-1]
	task.Turn, task.Intent = t.turn(), Intent
	task.Peer, task.Name, task.Proof = t.known(s.By)
	task.Payload = wire.Obj(
		wire.Member{Key: "action", Value: wire.Text("suggestion")}, wire.Member{Key: "ref", Value: wire.Text(t.Ref)},
		wire.Member{Key: "intent", Value: wire.Text(wire.OneLine(t.Intent, 1000))})
	if list := (Block{s.entry()}).Tree(); len(list.JSON()) <= maxTask {
		task.Payload = task.Payload.With("mess", list)
	} else {
		task.Payload = task.Payload.With("shortened", wire.Bool(true))
	}
	return task
}
