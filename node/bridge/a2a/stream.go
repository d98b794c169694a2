package a2a

import (
	"context"
	"slices"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// report passes the progress of a hook, the program behind the node, to the streams of its task.
func (b *Bridge) report(ctx context.Context, p *bridge.Progress) {
	t, err := b.reportedTask(ctx, p)
	if err != nil {
		b.log.WarnContext(ctx, "a2a: cannot find the task of a report", "err", err)
	}
	if t != nil && !t.last().State.Terminal() {
		b.hub.Report(t.ID, progressEvents(t, p))
	}
}

// reportedTask returns the task of the message that a hook works on, or nil if it has none.
func (b *Bridge) reportedTask(ctx context.Context, p *bridge.Progress) (*taskRow, error) {
	if id, ok := b.working.Get(p.MessageID); ok {
		return b.loadTask(ctx, id)
	}
	address, err := bridge.ParseAddress(p.Address)
	if err != nil || address.Kind != Kind {
		return nil, nil
	}
	tasks, err := b.tasksWith(ctx, convTerm(store.ConvKey{Peer: string(address.Pseudonym()), ID: string(p.Conversation)}))
	i := slices.IndexFunc(tasks, func(t *taskRow) bool { return slices.Contains(t.Messages, p.MessageID) })
	if err != nil || i < 0 {
		return nil, err
	}
	b.working.Add(p.MessageID, tasks[i].ID)
	return tasks[i], nil
}

// progressEvents returns the events about what a hook has reported so far.
func progressEvents(t *taskRow, p *bridge.Progress) (events []wire.Value) {
	task := message.Task{ID: t.ID, Context: t.Context, State: a2a.TaskStateWorking, At: time.Now()}
	payload := p.Result.AddTo(wire.Obj())
	list, _ := payload.Get("artifacts")
	for a := range list.Elems() {
		if v, ok := message.ReadArtifact(a); ok {
			events = append(events, task.ArtifactUpdate(v, isTrue(a, "append"), isTrue(a, "last")))
		}
	}
	if p.Result.Task != nil && p.Result.Task.Text != "" {
		task.Status = task.AgentMessage(wire.HashOf(t.ID, task.At.String()), p.Result.Task.Text)
		events = append(events, door.Events(task.Value())...)
	}
	return events
}

func isTrue(v wire.Value, key string) bool {
	m, _ := v.Get(key)
	return m.Kind() == wire.True
}
