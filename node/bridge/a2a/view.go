package a2a

import (
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// contents caches the entries of conversations by message id.
type contents map[store.ConvKey]map[wire.MessageID]store.Entry

func (c contents) read(ctx context.Context, steps store.Steps, key store.ConvKey) (map[wire.MessageID]store.Entry, error) {
	if found, ok := c[key]; ok {
		return found, nil
	}
	found := make(map[wire.MessageID]store.Entry)
	for after := uint64(0); ; {
		page, err := steps.Transcript(ctx, key, after, 100)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			found[wire.MessageID(e.MessageID)], after = e, e.N
		}
		if len(page) < 100 {
			c[key] = found
			return found, nil
		}
	}
}

// stateView is one state of a task, with what its message said.
type stateView struct {
	task      message.Task // without artifacts and history
	artifacts []wire.Value // that came with the state
}

// views returns the states of a task, oldest first.
func (b *Bridge) views(ctx context.Context, t *taskRow, known contents) ([]stateView, error) {
	said, err := known.read(ctx, b.cfg.Store.Steps(), t.key())
	if err != nil {
		return nil, err
	}
	var out []stateView
	for _, entry := range t.Log {
		v := stateView{task: message.Task{ID: t.ID, Context: t.Context, State: entry.State, At: entry.At}}
		text, id := entry.Text, wire.HashOf(t.ID, entry.At.String())
		if e, ok := said[entry.Reply]; ok && entry.Reply != "" {
			if content, ok := conversations.ReadContent(e); ok {
				reply := message.ReadReply(content.Intent, content.Payload, string(entry.Reply), t.Mesh)
				text, id, v.artifacts = reply.Text, string(entry.Reply), reply.Artifacts
			}
		}
		if text != "" {
			v.task.Status = v.task.AgentMessage(id, text)
		}
		out = append(out, v)
	}
	return out, nil
}

// mergeArtifacts returns the artifacts of all states. A later artifact replaces an earlier one with its id.
func mergeArtifacts(states []stateView) []wire.Value {
	var out []wire.Value
	for _, s := range states {
		for _, a := range s.artifacts {
			id := a.GetStr("artifactId")
			if i := slices.IndexFunc(out, func(o wire.Value) bool { return o.GetStr("artifactId") == id }); i >= 0 {
				out[i] = a
				continue
			}
			out = append(out, a)
		}
	}
	return out
}

// view returns a task with its newest messages: at most history of them, or all if history is negative.
func (b *Bridge) view(ctx context.Context, t *taskRow, history int, artifacts bool, known contents) (message.Task, error) {
	states, err := b.views(ctx, t, known)
	if err != nil {
		return message.Task{}, err
	}
	task := states[len(states)-1].task
	if artifacts {
		task.Artifacts = mergeArtifacts(states)
	}
	if history == 0 {
		return task, nil
	}
	said, err := known.read(ctx, b.cfg.Store.Steps(), t.key())
	if err != nil {
		return message.Task{}, err
	}
	asked := t.Messages
	for i, s := range states {
		for len(asked) > 0 && (i == len(states)-1 || said[asked[0]].At.Before(s.task.At)) {
			if v, err := wire.Parse(said[asked[0]].Raw); err == nil {
				task.History = append(task.History, v.With("contextId", wire.Text(t.Context)).With("taskId", wire.Text(t.ID)))
			}
			asked = asked[1:]
		}
		if i < len(states)-1 && t.Log[i].Reply != "" && !s.task.Status.IsNull() { // only what the agent said
			task.History = append(task.History, s.task.Status)
		}
	}
	if history > 0 && len(task.History) > history {
		task.History = task.History[len(task.History)-history:]
	}
	return task, nil
}
