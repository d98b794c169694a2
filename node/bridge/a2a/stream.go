package a2a

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxStreamTime is how long one stream may stay open; the client can subscribe again.
const maxStreamTime = time.Hour

// serveStream answers SendStreamingMessage and SubscribeToTask: first the task, then its updates in order, until the
// task has ended. The stream of a message also ends when the task needs its caller (A2A-12).
func (b *Bridge) serveStream(c echo.Context, call message.Call, from caller) error {
	ctx := c.Request().Context()
	const noTask = ""
	w, ok := b.hub.enter(noTask, from) // before the message of the call is accepted, because a refusal means that it was not
	if !ok {
		return b.refuse(c, call, message.ErrBusy.At("too many open streams"))
	}
	defer b.hub.leave(w)
	t, history, err := b.streamedTask(ctx, call, from)
	if err != nil {
		return b.refuse(c, call, message.FromMesh(err))
	}
	b.hub.follow(w, t.ID)
	if t, err = b.findTask(ctx, t.Address, t.ID); err != nil { // the task may have changed before the waiter was there
		return b.refuse(c, call, message.FromMesh(err))
	}
	task, err := b.view(ctx, t, history)
	if err != nil {
		return b.refuse(c, call, message.FromMesh(err))
	}
	s := taskStream{b: b, call: call, out: httpapi.NewEventStream(c), seen: t.last()}
	if s.send(task.TaskResult()) != nil {
		return nil // the client has gone
	}
	s.follow(ctx, t, w)
	return nil
}

// streamedTask returns the task that a message opens or a subscription names, and the wanted length of its history (-1:
// all).
func (b *Bridge) streamedTask(ctx context.Context, call message.Call, from caller) (t *taskRow, history int, err error) {
	if call.Method != message.SubscribeToTask {
		return b.acceptCall(ctx, call, from)
	}
	if err = b.checkNotBlocked(ctx, from.address.String()); err != nil {
		return nil, 0, err
	}
	t, err = b.taskIn(ctx, call, from, "id")
	if err == nil && t.last().State.Terminal() {
		err = message.ErrUnsupported.At("the task has ended")
	}
	return t, -1, err
}

// taskStream writes the updates of one task.
type taskStream struct {
	b    *Bridge
	call message.Call
	out  httpapi.EventStream
	seen logEntry // the newest state that was written
}

func (s *taskStream) send(event wire.Value) error {
	return s.out.Send(httpapi.StreamEvent{Data: string(s.call.Answer(event))})
}

// follow writes the updates of a task until the stream is over.
func (s *taskStream) follow(ctx context.Context, t *taskRow, w *waiter) {
	end := time.After(maxStreamTime)
	check := time.Tick(checkEvery)
	lastBeat := time.Now()
	for !s.isOver(t) {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case report := <-w.reports:
			if err = s.b.checkNotBlocked(ctx, t.Address); err == nil {
				err = s.send(report)
			}
		case <-w.changed:
			t, err = s.update(ctx, t)
		case <-check:
			if t, err = s.update(ctx, t); err == nil && time.Since(lastBeat) >= httpapi.StreamBeat {
				lastBeat, err = time.Now(), s.out.Beat()
			}
		}
		if err != nil {
			return
		}
	}
}

// isOver reports whether the last event was written: the task has ended, or our agent asked the caller whose message
// opened the stream. A subscription goes on, because another message may answer.
func (s *taskStream) isOver(t *taskRow) bool {
	asks := s.seen.State == a2a.TaskStateInputRequired && t.endedOrAsks()
	return s.seen.State.Terminal() || asks && s.call.Method == message.SendStreaming
}

// update writes the states after s.seen. It fails if the owner has blocked the caller since, so that the stream ends.
func (s *taskStream) update(ctx context.Context, t *taskRow) (*taskRow, error) {
	if err := s.b.checkNotBlocked(ctx, t.Address); err != nil {
		return t, err
	}
	t, err := s.b.findTask(ctx, t.Address, t.ID)
	if err != nil {
		return t, err
	}
	if !t.last().At.After(s.seen.At) {
		return t, nil
	}
	states, err := s.b.views(ctx, t, noHistory, contents{})
	if err != nil {
		return t, err
	}
	for i, v := range states {
		if !v.task.At.After(s.seen.At) {
			continue
		}
		for _, artifact := range v.artifacts {
			const join, last = false, true // a complete artifact
			if err := s.send(v.task.ArtifactUpdate(artifact, join, last)); err != nil {
				return t, err
			}
		}
		if err := s.send(v.task.StatusUpdate()); err != nil {
			return t, err
		}
		s.seen = t.Log[i]
	}
	return t, nil
}

// report passes the progress of a hook, the program behind the node, to the streams of its task.
func (b *Bridge) report(ctx context.Context, p *bridge.Progress) {
	for _, id := range b.hub.tasksOf(p.Address) {
		t, err := b.findTask(ctx, p.Address, id)
		if err == nil && slices.Contains(t.Messages, p.MessageID) && !t.last().State.Terminal() {
			b.hub.publish(id, progressEvents(t, p))
		}
	}
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
