package door

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Events returns the events that show a task in the form of A2A: one for each artifact, then one for the status.
func Events(task wire.Value) []wire.Value {
	ids := []wire.Member{wire.Field("taskId", member(task, "id")), wire.Field("contextId", member(task, "contextId"))}
	event := func(name string, more ...wire.Member) wire.Value {
		return wire.Obj(wire.Field(name, wire.Obj(append(ids[:2:2], more...)...)))
	}
	var events []wire.Value
	for artifact := range member(task, "artifacts").Elems() {
		events = append(events, event("artifactUpdate", wire.Field("artifact", artifact), wire.Field("lastChunk", wire.Bool(true))))
	}
	return append(events, event("statusUpdate", wire.Field("status", member(task, "status"))))
}

func member(v wire.Value, key string) wire.Value {
	m, _ := v.Get(key)
	return m
}

// stream answers SendStreamingMessage and SubscribeToTask: first the task, with what was already sent of it, then its
// updates in order, until the task has ended. The stream of a message also ends when the task needs its caller
// (A2A-12).
func (d *Door) stream(c echo.Context, call message.Call, caller Caller) error {
	ctx := c.Request().Context()
	w := d.cfg.Hub.Enter(caller.Shares) // before the message of the call is accepted, because a refusal means that it was not
	if w == nil {
		return d.refuse(c, call, message.ErrBusy.At("too many open streams"))
	}
	defer d.cfg.Hub.Leave(w)
	var t Task
	history, err := -1, error(nil)
	if call.Method == message.SendStreaming {
		t, history, err = d.send(ctx, call, caller.Tasks)
	} else if t, err = find(ctx, call, caller.Tasks); err == nil && t.State.Terminal() {
		err = message.ErrUnsupported.At("the task has ended")
	}
	s := taskStream{d: d, call: call, tasks: caller.Tasks, seen: t}
	var first wire.Value
	if err == nil {
		s.sent = d.cfg.Hub.follow(w, t.ID)
		if s.seen, err = caller.Tasks.Find(ctx, t.ID); err == nil { // the task may have changed before the waiter was there
			var list []wire.Value
			if list, err = caller.Tasks.Show(ctx, history, s.seen); err == nil {
				first = list[0]
			}
		}
	}
	if err != nil {
		return d.refuse(c, call, err)
	}
	if !s.seen.State.Terminal() {
		first, s.sent = s.sent.addTo(first), s.sent.with(first)
	}
	s.out = httpapi.NewEventStream(c)
	if s.write(wire.Obj(wire.Field("task", first))) == nil {
		s.follow(ctx, w)
	}
	return nil
}

// taskStream writes the updates of one task.
type taskStream struct {
	d     *Door
	call  message.Call
	tasks Tasks
	out   httpapi.EventStream
	seen  Task  // as of the newest state that was written
	sent  parts // what was written of its artifacts
}

func (s *taskStream) write(event wire.Value) error {
	return s.out.Send(httpapi.StreamEvent{Data: string(s.call.Answer(event))})
}

// send writes an update, unless it repeats an artifact that is complete already.
func (s *taskStream) send(update wire.Value) error {
	if s.sent.repeats(update) {
		return nil
	}
	s.sent = s.sent.add(update)
	return s.write(update)
}

// follow writes the updates of the task until the stream is over.
func (s *taskStream) follow(ctx context.Context, w *Waiter) {
	end := time.After(s.d.cfg.StreamFor)
	check := time.Tick(checkEvery)
	lastBeat := time.Now()
	for !s.isOver() {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case report := <-w.reports:
			err = s.update(ctx, w, report)
		case <-w.changed:
			err = s.update(ctx, w)
		case <-check:
			if err = s.update(ctx, w); err == nil && time.Since(lastBeat) >= httpapi.StreamBeat {
				lastBeat, err = time.Now(), s.out.Beat()
			}
		}
		if err != nil {
			return
		}
	}
}

// isOver reports whether the last event was written: the task has ended, or the agent asked the caller whose message
// opened the stream. A subscription goes on, because another message may answer.
func (s *taskStream) isOver() bool {
	return s.seen.State.Terminal() || message.IsInterrupted(s.seen.State) && s.call.Method == message.SendStreaming
}

// update writes reports of the agent, and then what has changed since s.seen. It fails if the caller may not see the
// task any more, so that the stream ends.
func (s *taskStream) update(ctx context.Context, w *Waiter, events ...wire.Value) error {
	t, err := s.tasks.Find(ctx, s.seen.ID)
	if err != nil {
		return err
	}
	for len(w.reports) > 0 {
		events = append(events, <-w.reports)
	}
	changes, err := s.tasks.Since(ctx, s.seen, t)
	for _, event := range append(events, changes...) {
		if err == nil {
			err = s.send(event)
		}
	}
	s.seen = t
	return err
}
