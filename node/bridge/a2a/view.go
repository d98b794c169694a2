package a2a

import (
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	noHistory = 0 // the length of a history without messages

	maxPageBytes = 4 << 20 // of the messages of its caller that a task shows
)

// contents is what was said in tasks, by conversation and message id.
type contents map[store.ConvKey]map[wire.MessageID]store.Entry

// add reads the messages of tasks, each conversation once. A conversation that c has already is not read again. Of the
// callers' messages, it keeps the newest of each task: at most history of them, or any number if history is negative,
// with at most maxPageBytes. Other messages of the conversations are not kept, because a conversation may be large.
func (c contents) add(ctx context.Context, steps store.Steps, history int, tasks ...*taskRow) error {
	unread, taskOf, size := make(contents), make(map[wire.MessageID]*taskRow), make(map[*taskRow]int)
	for _, t := range tasks {
		key := t.convKey()
		if c[key] != nil {
			continue
		}
		if unread[key] == nil {
			unread[key] = make(map[wire.MessageID]store.Entry)
		}
		wanted := t.Messages
		if history >= 0 {
			wanted = wanted[max(0, len(wanted)-history):]
		}
		for _, id := range wanted {
			unread[key][id], taskOf[id] = store.Entry{}, t
		}
		for _, entry := range t.Log {
			unread[key][entry.Reply] = store.Entry{}
		}
	}
	for key, said := range unread {
		for after, more := uint64(0), true; more; {
			const batch = 16 // a message of a caller may have a megabyte
			page, err := steps.Transcript(ctx, key, after, batch)
			if err != nil {
				return err
			}
			for _, e := range page {
				after = e.N
				id := wire.MessageID(e.MessageID)
				if _, ok := said[id]; !ok {
					continue
				}
				said[id] = e
				if t := taskOf[id]; t != nil {
					size[t] += len(e.Raw)
					// drop the oldest messages, but keep their times
					for i := 0; size[t] > maxPageBytes; i++ {
						oldest := said[t.Messages[i]]
						size[t] -= len(oldest.Raw)
						said[t.Messages[i]] = store.Entry{At: oldest.At}
					}
				}
			}
			more = len(page) == batch
		}
		c[key] = said
	}
	return nil
}

// stateView is one state of a task, with what its message said.
type stateView struct {
	task      message.Task // without artifacts and history
	artifacts []wire.Value // that came with the state
}

// views returns the states of a task, oldest first. It adds to known what was said in them; see [contents.add].
func (b *Bridge) views(ctx context.Context, t *taskRow, history int, known contents) ([]stateView, error) {
	if err := known.add(ctx, b.cfg.Store.Steps(), history, t); err != nil {
		return nil, err
	}
	said := known[t.convKey()]
	var out []stateView
	for _, entry := range t.Log {
		v := stateView{task: message.Task{ID: t.ID, Context: t.Context, State: entry.State, At: entry.At}}
		text, id := entry.Text, wire.HashOf(t.ID, entry.At.String())
		if e := said[entry.Reply]; entry.Reply != "" {
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

// view returns a task with its artifacts and its newest messages: at most history of them, or any number if history is
// negative, and at most maxPageBytes of the caller's messages. known has the messages that were read before; see
// [contents.add].
func (b *Bridge) view(ctx context.Context, t *taskRow, history int, known contents) (message.Task, error) {
	states, err := b.views(ctx, t, history, known)
	if err != nil {
		return message.Task{}, err
	}
	task := states[len(states)-1].task
	task.Artifacts = mergeArtifacts(states)
	if history == noHistory {
		return task, nil
	}
	said, asked := known[t.convKey()], t.Messages // asked has the messages of the caller that the history does not have yet
	for i, s := range states {
		for len(asked) > 0 && (i == len(states)-1 || said[asked[0]].At.Before(s.task.At)) { // sent before this state
			if raw := said[asked[0]].Raw; len(raw) == 0 { // too old, so the history begins later
				task.History = nil
			} else if v, err := wire.ParseForeign(raw, relayedDepth, relayedValues); err == nil { // the widest bounds of a message
				task.History = append(task.History, v.With("contextId", wire.Text(t.Context)).With("taskId", wire.Text(t.ID)))
			}
			asked = asked[1:]
		}
		if i < len(states)-1 && t.Log[i].Reply != "" && !s.task.Status.IsNull() { // only what the agent said; the last is the status
			task.History = append(task.History, s.task.Status)
		}
	}
	if history > 0 && len(task.History) > history {
		task.History = task.History[len(task.History)-history:]
	}
	return task, nil
}
