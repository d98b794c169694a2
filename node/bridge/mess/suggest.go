package mess

import (
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// suggestionTask adds to a task what is suggested.
func (b *Bridge) suggestionTask(t *thread.Thread, task bridge.Task) bridge.Task {
	s := t.Suggestions[t.OpenSuggestion()-1]
	task.Turn, task.Intent = turnOf(t), Intent
	task.Peer, task.Name, task.Proof = senderOf(t, s.By)
	task.Payload = wire.Obj(
		wire.TextField("action", "suggestion"), wire.TextField("ref", t.Ref),
		wire.TextField("intent", wire.OneLine(t.Intent, 1000)))
	if list := (thread.Block{s.Entry()}).Tree(); len(list.JSON()) <= maxTask {
		task.Payload = task.Payload.With("mess", list)
	} else {
		task.Payload = task.Payload.With("shortened", wire.Bool(true))
	}
	return task
}
