package a2arelay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	NSTasks  = "relay-task"      // tasks without their bodies, by id; see [store.Watcher]
	nsBodies = "relay-task-body" // bodies of tasks, by id; separate, so that a search for tasks to remove reads little
	nsCards  = "relay-card"      // cards of A2A, by agent id

	maxMessages = 64 // of a task
)

// taskRow is a task at the relay. Its id is an HMAC of its agent, its caller and the id of its first message. So nobody
// can guess the id, and a repeated message finds its task (A2A-D4).
type taskRow struct {
	ID            string        `json:"id"`
	Agent         wire.AgentID  `json:"agent"`
	Token         string        `json:"token,omitempty"` // of the caller
	Source        wire.AgentID  `json:"source"`          // HMAC of the caller's address
	Context       string        `json:"context"`
	Remote        string        `json:"remote,omitempty"` // the id of the task at the agent; "" until the agent took the message
	Created       time.Time     `json:"created_at"`
	State         a2a.TaskState `json:"state"`
	At            time.Time     `json:"at"`               // of the state, as the caller sees it
	Stamp         string        `json:"stamp,omitempty"`  // time of the state according to the agent
	CancelPending bool          `json:"owed,omitempty"`   // the caller canceled, and the agent has not reported the end
	Unanswered    bool          `json:"waits,omitempty"`  // the agent has not answered the last message of the caller
	Reason        string        `json:"reason,omitempty"` // of the error with which the agent refused that message
	Size          int           `json:"size,omitempty"`   // of the body in bytes

	Messages map[string]string `json:"messages,omitempty"` // digests of the caller's messages, by message id
	Networks []wire.AgentID    `json:"networks,omitempty"` // HMACs of the networks of the caller's address

	Task wire.Value `json:"-"` // the body as the caller sees it; decodeTask does not set it

	rev store.Rev
}

// changes returns the changes that store the task and its body, and the size of both.
func (t *taskRow) changes() (list []store.Change, size int) {
	text, expires := t.Task.JSON(), t.Created.Add(mailbox.Life)
	t.Size = len(text)
	status, _ := t.Task.Get("status")
	if at, err := time.Parse(time.RFC3339Nano, status.GetStr("timestamp")); err == nil {
		t.At = at.UTC()
	}
	terms := []string{"agent:" + string(t.Agent)}
	if t.Token != "" {
		terms = append(terms, callerTerm(t.Agent, t.Token))
	}
	row := wire.MustMarshal(t)
	return []store.Change{
		// Max bounds the tasks of the agent.
		{IfRev: t.rev, Max: mailbox.MaxMail, Record: store.Record{NS: NSTasks, Key: t.ID, Body: row, Terms: terms, Expires: expires}},
		{IfRev: store.Any, Record: store.Record{NS: nsBodies, Key: t.ID, Body: text, Expires: expires}},
	}, len(row) + len(text)
}

func callerTerm(agent wire.AgentID, token string) string {
	return "of:" + wire.HashOf(string(agent), token)
}

// mail describes the task to the counts, which bound tasks as if they were mail.
func (t *taskRow) mail(size int) mailbox.Mail {
	return mailbox.Mail{Box: t.Agent, From: t.Source, Size: size, Created: t.Created}
}

func decodeTask(rec store.Record) (*taskRow, error) {
	t, err := store.Decode[taskRow](rec)
	t.rev = rec.Rev
	return &t, err
}

// Bounds of a task that an agent reports.
const (
	taskDepth   = 40
	taskValues  = 30_000
	addedValues = 16 // that the relay may add to the task: its context, and its own status in place of the agent's
)

func stateOf(status wire.Value) a2a.TaskState { return a2a.TaskState(status.GetStr("state")) }

// isReport reports whether an agent's report has a task id and a state, and all three texts are short.
func isReport(id, state, stamp string) bool {
	return id != "" && len(id) <= 128 && state != "" && len(state) <= 64 && len(stamp) <= 64
}

// find returns a task of an agent, or [message.ErrTaskNotFound] unless the caller has the token of the task (A2A-14).
func (s *Service) find(ctx context.Context, agent wire.AgentID, from caller, id string) (*taskRow, error) {
	t, err := s.load(ctx, id)
	if err == nil && (t.Agent != agent || t.Token != from.token) {
		return nil, message.ErrTaskNotFound
	}
	return t, err
}

// load returns a task with its body, or [message.ErrTaskNotFound]. If the task changes meanwhile, the body may be newer
// than the row. Storing such a task fails with store.ErrConflict.
func (s *Service) load(ctx context.Context, id string) (*taskRow, error) {
	rec, err := s.cfg.Records.Get(ctx, NSTasks, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, message.ErrTaskNotFound
	}
	if err != nil {
		return nil, err
	}
	t, err := decodeTask(rec)
	if err != nil {
		return nil, err
	}
	return t, s.loadBody(ctx, t)
}

// loadBody reads the body of a task. It returns [message.ErrTaskNotFound] if the task was removed meanwhile.
func (s *Service) loadBody(ctx context.Context, t *taskRow) error {
	body, err := s.cfg.Records.Get(ctx, nsBodies, t.ID, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return message.ErrTaskNotFound
	}
	if err == nil {
		t.Task, err = wire.ParseForeign(body.Body, taskDepth, taskValues+addedValues)
	}
	return err
}

// loadCounts counts the stored tasks, unless they are counted already.
func (s *Service) loadCounts(ctx context.Context, now time.Time) error {
	return s.counts.Load(now, func(add func(string, mailbox.Mail)) error {
		for rec, err := range store.AllRecords(ctx, s.cfg.Records, NSTasks, "", now) {
			if err != nil {
				return err
			}
			if old, err := decodeTask(rec); err == nil {
				add(old.ID, old.mail(len(rec.Body)+old.Size))
			}
		}
		return nil
	})
}

// ApplyChange counts a task that another process of the directory has changed, and wakes its waiters.
func (s *Service) ApplyChange(ctx context.Context, id string) error {
	err := s.recount(ctx, id)
	s.hub.Changed(id, false)
	return err
}

// InvalidateCounts makes the service read its counts again, because another process may have changed any task.
func (s *Service) InvalidateCounts() { s.counts.Invalidate() }

// recount counts a task as it is stored now.
func (s *Service) recount(ctx context.Context, id string) error {
	rec, err := s.cfg.Records.Get(ctx, NSTasks, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		s.counts.Remove(id)
		return nil
	}
	var t *taskRow
	if err == nil {
		t, err = decodeTask(rec)
	}
	if err != nil {
		s.counts.Invalidate() // the next call of admit counts all tasks again
		return err
	}
	s.counts.Learn(id, t.mail(len(rec.Body)+t.Size))
	return nil
}

// admit counts a task that is about to be stored. If the agent has no room for it, admit removes ended tasks of the
// agent: first the oldest of the same source, then the oldest of others if the source has not used up its share. It
// keeps a canceled task until the agent has reported that the task ended. A refusal is a *[wire.Error]; other errors
// come from the store.
func (s *Service) admit(ctx context.Context, t *taskRow, size int) error {
	now := time.Now()
	if err := s.loadCounts(ctx, now); err != nil {
		return err
	}
	refusal := s.counts.Admit(t.ID, t.mail(size), now)
	if refusal == nil {
		return nil
	}
	var ended []*taskRow
	for rec, err := range store.AllRecords(ctx, s.cfg.Records, NSTasks, "agent:"+string(t.Agent), now) {
		if err != nil {
			return err
		}
		if old, err := decodeTask(rec); err == nil && old.State.Terminal() && !old.CancelPending && old.ID != t.ID {
			ended = append(ended, old)
		}
	}
	place := func(row *taskRow) int { // the same source comes first
		if row.Source == t.Source {
			return 0
		}
		return 1
	}
	slices.SortFunc(ended, func(x, y *taskRow) int {
		return cmp.Or(place(x)-place(y), x.Created.Compare(y.Created))
	})
	for _, old := range ended {
		if old.Source != t.Source && errors.Is(refusal, wire.ErrRateLimited) {
			break // the source has used up its share, so room from others would not help
		}
		err := s.cfg.Records.Apply(ctx, []store.Change{
			{IfRev: old.rev, Delete: true, Record: store.Record{NS: NSTasks, Key: old.ID}},
			{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsBodies, Key: old.ID}},
		}, now)
		if err != nil {
			continue // it changed meanwhile
		}
		s.counts.Remove(old.ID)
		if refusal = s.counts.Admit(t.ID, t.mail(size), now); refusal == nil {
			return nil
		}
	}
	return refusal
}

// save stores a changed task and wakes its waiters. If the agent's answer does not fit, it stores the task as failed.
// It returns store.ErrConflict if the task was changed meanwhile.
func (s *Service) save(ctx context.Context, t *taskRow) error {
	changes, size := t.changes()
	err := s.admit(ctx, t, size)
	if _, refused := errors.AsType[*wire.Error](err); refused {
		t.State, t.Task = a2a.TaskStateFailed, newTask(t.ID, t.Context, a2a.TaskStateFailed, textFull, time.Now())
		changes, size = t.changes()
		err = s.admit(ctx, t, size)
	}
	if err != nil {
		return err
	}
	if err := s.cfg.Records.Apply(ctx, changes, time.Now()); err != nil {
		return errors.Join(err, s.recount(context.WithoutCancel(ctx), t.ID))
	}
	s.hub.Changed(t.ID, false)
	return nil
}

const attempts = 5

// update stores what modify makes of a task, unless modify returns false. After a conflict, it calls modify again.
func (s *Service) update(ctx context.Context, id string, modify func(t *taskRow) bool) (*taskRow, error) {
	for range attempts {
		t, err := s.load(ctx, id)
		if err != nil || !modify(t) {
			return t, err
		}
		if err = s.save(ctx, t); !errors.Is(err, store.ErrConflict) {
			return t, err
		}
	}
	return nil, wire.ErrUnavailable.Because(errors.New("lost every race for the task"))
}

// isOverdue reports whether the agent still owes an answer in the last hour before the task expires. The caller then
// sees the task as failed.
func (t *taskRow) isOverdue(now time.Time) bool {
	return (t.Remote == "" || t.Unanswered) && !t.State.Terminal() && now.Sub(t.Created) > mailbox.Life-time.Hour
}

func (t *taskRow) hasEnded(now time.Time) bool { return t.State.Terminal() || t.isOverdue(now) }

// view returns the task as the caller sees it.
func (t *taskRow) view(now time.Time) wire.Value {
	if t.isOverdue(now) {
		return newTask(t.ID, t.Context, a2a.TaskStateFailed, textExpired, now)
	}
	return t.Task
}

// setState sets a state that the relay itself knows, and explains it with text. It keeps the artifacts that the agent has
// reported.
func (t *taskRow) setState(state a2a.TaskState, text string, now time.Time) {
	artifacts, reported := t.Task.Get("artifacts")
	t.State, t.Task = state, newTask(t.ID, t.Context, state, text, now)
	if reported {
		t.Task = t.Task.With("artifacts", artifacts)
	}
}

// takeReport takes the state and the body from the agent's report. It keeps the relay's ids, but no history.
func (t *taskRow) takeReport(remote wire.Value) {
	status, _ := remote.Get("status")
	if m, ok := status.Get("message"); ok && m.Kind() == wire.Object {
		status = status.With("message", m.With("taskId", wire.Text(t.ID)).With("contextId", wire.Text(t.Context)))
	}
	t.State, t.Stamp = stateOf(status), status.GetStr("timestamp")
	t.Task = remote.Without("history").With("id", wire.Text(t.ID)).With("contextId", wire.Text(t.Context)).With("status", status)
}
