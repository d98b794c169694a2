package a2a

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
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
	if id, ok := b.working.Load(p.MessageID); ok {
		return b.loadTask(ctx, id.(string))
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
	b.working.Store(p.MessageID, tasks[i].ID)
	return tasks[i], nil
}

// progressEvents returns the events about what a hook has reported so far.
func progressEvents(t *taskRow, p *bridge.Progress) (events []wire.Value) {
	const withPayload = false
	task := message.Task{ID: t.ID, Context: t.Context, State: a2a.TaskStateWorking, At: time.Now()}
	for _, a := range p.Result.Artifacts {
		a.ID = cmp.Or(a.ID, "artifact")
		one := p.Result // with this artifact alone
		one.Task, one.Artifacts = nil, append(one.Artifacts[:0:0], a)
		payload := one.AddTo(wire.Obj(wire.TextField("action", "deliver")))
		for _, v := range message.ReadReply(wire.Deliver, payload, a.ID, withPayload).Artifacts {
			events = append(events, task.ArtifactUpdate(v, a.Append, a.Last))
		}
	}
	if p.Result.Task != nil && p.Result.Task.Text != "" {
		task.Status = task.AgentMessage(wire.HashOf(t.ID, task.At.String()), p.Result.Task.Text)
		events = append(events, task.StatusUpdate())
	}
	return events
}
