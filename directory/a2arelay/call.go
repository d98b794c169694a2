package a2arelay

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// taskID returns the id of the task of a message.
func (s *Service) taskID(ctx context.Context, agent wire.AgentID, m message.Message, from caller) (string, error) {
	if m.TaskID != "" {
		return m.TaskID, nil
	}
	// callers without a token are separated by their address
	return s.macOf(ctx, "message", string(agent), cmp.Or(from.token, string(from.source)), m.ID)
}

// send stores a message as a call for the agent, together with its task. Both are durable when send returns. A repeated
// message gets the task that it got before (A2A-D4).
func (s *Service) send(ctx context.Context, agent wire.AgentID, m message.Message, from caller) (*taskRow, error) {
	id, err := s.taskID(ctx, agent, m, from)
	if err != nil {
		return nil, err
	}
	for range attempts {
		t, known, err := s.rowFor(ctx, agent, m, from, id)
		if err != nil || known {
			return t, err
		}
		params := wire.Obj(wire.Field("message", t.toAgentForm(m.Tree)))
		changes, size := t.changes()
		if err := s.admit(ctx, t, size); err != nil {
			return nil, err
		}
		err = s.queue(ctx, t, Call{Method: message.SendMessage, Params: params, Token: from.token, Extensions: from.extensions}, changes)
		if err == nil {
			s.hub.Changed(t.ID, false)
			return s.load(ctx, t.ID)
		}
		// admit has counted the task; count what is stored instead.
		if e := s.recount(context.WithoutCancel(ctx), t.ID); e != nil || !errors.Is(err, store.ErrConflict) {
			return nil, errors.Join(err, e)
		}
	}
	return nil, wire.ErrUnavailable.Because(errors.New("lost every race for the message"))
}

// rowFor returns the task with this id, or a new task if m names none, with the message m added. If the task already
// has m, known is true and nothing is added. rowFor refuses a different message with the same message id.
func (s *Service) rowFor(ctx context.Context, agent wire.AgentID, m message.Message, from caller, id string) (t *taskRow, known bool, err error) {
	now, sum := time.Now(), signing.Digest(m.Tree)
	digest := hex.EncodeToString(sum[:16])
	t, err = s.find(ctx, agent, from, id)
	if m.TaskID == "" && errors.Is(err, message.ErrTaskNotFound) {
		t = &taskRow{ID: id, Agent: agent, Token: from.token, Source: from.source, Networks: from.networks, Context: m.ContextID, Created: now.UTC()}
		if t.Context == "" {
			t.Context = "ctx-" + strings.ToLower(rand.Text())
		}
	} else if err != nil {
		return nil, false, err
	}
	before, known := t.Messages[m.ID]
	switch {
	case known && before != digest:
		return nil, false, message.ErrParams.At("the message id was used before with other content")
	case known:
		return t, true, nil
	case m.TaskID == "": // a new task
	case t.hasEnded(now):
		return nil, false, message.ErrUnsupported.At("the task has ended")
	case t.Remote == "":
		return nil, false, message.ErrUnsupported.At("the agent has not taken the task yet")
	case m.ContextID != "" && m.ContextID != t.Context:
		return nil, false, message.ErrParams.At("the task belongs to another context")
	case len(t.Messages) >= maxMessages:
		return nil, false, message.ErrUnsupported.At("the task has too many messages")
	}
	if t.Messages == nil {
		t.Messages = make(map[string]string)
	}
	t.Messages[m.ID] = digest
	t.Unanswered, t.Reason = true, ""
	t.setState(a2a.TaskStateWorking, textWaits, now)
	return t, false, nil
}

// toAgentForm returns a message of the caller in the form for the agent, with the task id that the agent knows.
func (t *taskRow) toAgentForm(m wire.Value) wire.Value {
	m = m.Without("taskId").With("contextId", wire.Text(t.Context))
	if t.Remote != "" {
		m = m.With("taskId", wire.Text(t.Remote))
	}
	return m
}

// queue stores a call in the mailbox of the agent, in one transaction with changes.
func (s *Service) queue(ctx context.Context, t *taskRow, call Call, changes []store.Change) error {
	token, err := s.answerToken(ctx, t.ID)
	if err != nil {
		return err
	}
	call.Task, call.AnswerToken = t.ID, token
	if call.Method == message.SendMessage { // the states after the first answer come as push notifications
		call.Params = call.Params.With("configuration", wire.Obj(
			wire.Field("returnImmediately", wire.Bool(true)),
			wire.Field("taskPushNotificationConfig", wire.Obj(
				wire.TextField("id", "relay"), wire.TextField("url", s.cfg.BaseURL+"/relay/"+t.ID+"/task"), wire.TextField("token", token),
			)),
		))
	}
	raw := wire.MustMarshal(call)
	m := mailbox.Mail{Box: t.Agent, From: t.Source, Networks: t.Networks, Size: len(raw), Call: true}
	_, err = s.cfg.Queue(ctx, m, raw, changes)
	return err
}

// answerToken returns the token that authenticates the agent's answers about a task.
func (s *Service) answerToken(ctx context.Context, task string) (string, error) {
	return s.macOf(ctx, "answer", task)
}

// cancel asks the agent to cancel a task. A task that the agent has not taken yet ends at once.
func (s *Service) cancel(ctx context.Context, t *taskRow) (*taskRow, error) {
	t, err := s.update(ctx, t.ID, func(t *taskRow) bool {
		if t.Remote != "" || t.State.Terminal() {
			return false
		}
		t.CancelPending, t.State, t.Task = true, a2a.TaskStateCanceled, newTask(t.ID, t.Context, a2a.TaskStateCanceled, message.TextCanceled, time.Now())
		return true
	})
	if err != nil || t.Remote == "" || t.State.Terminal() {
		return t, err
	}
	return t, s.queue(ctx, t, t.cancelCall(t.Remote), nil)
}

// cancelCall returns the call that cancels the task at the agent, which knows it as remoteID.
func (t *taskRow) cancelCall(remoteID string) Call {
	return Call{Method: message.CancelTask, Params: wire.Obj(wire.TextField("id", remoteID)), Token: t.Token, Task: t.ID}
}

// postTask takes the agent's answer to a call, or its push notification about a task. If the caller canceled the task
// before the agent took it, the response contains the call that cancels the task at the agent. The call then needs no
// room in the mailbox. Every response repeats the call until the agent reports that the task has ended.
func (s *Service) postTask(c echo.Context) error {
	httpapi.Private(c)
	ctx, id := c.Request().Context(), c.Param("relay")
	token, err := s.answerToken(ctx, id)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(c.Request().Header.Get(HeaderAnswerToken))) != 1 {
		s.cfg.Addresses.Fault(ctx, httpapi.ClientAddr(c))
		return wire.ErrRoute // for anybody else the task does not exist
	}
	body, err := door.ReadBody(c)
	if err != nil {
		return err
	}
	v, err := wire.ParseForeign(body, taskDepth, taskValues)
	if err != nil || v.Kind() != wire.Object {
		return wire.ErrSyntax.Because(err)
	}
	result, isAnswer := v.Get("result") // otherwise v is a notification
	if isAnswer {
		v = result
	}
	if task, ok := v.Get("task"); ok {
		v = task
	}
	failure, isError := v.Get("error")
	status, _ := v.Get("status")
	if !isError && !isReport(v.GetStr("id"), status.GetStr("state"), status.GetStr("timestamp")) {
		return wire.ErrSchema.At("a task must have an id, a state and a short timestamp")
	}
	response := struct {
		Status string `json:"status"`
		Next   *Call  `json:"a2a,omitempty"`
	}{Status: "stored"}
	_, err = s.update(ctx, id, func(t *taskRow) bool {
		switch {
		case t.CancelPending && (isError || stateOf(status).Terminal()):
			t.CancelPending = false
			return true
		case isError && (t.State.Terminal() || t.Remote != "" && !t.Unanswered): // the task has ended, or no message waits for an answer
			return false
		case isError:
			t.Unanswered, t.Reason = false, message.ReadError(http.StatusBadRequest, failure).Reason
			state := a2a.TaskStateRejected
			if t.Remote != "" {
				state = a2a.TaskStateInputRequired // the agent's task goes on without the message
			}
			t.setState(state, textRefused, time.Now())
			return true
		case t.State.Terminal():
			if t.State == a2a.TaskStateCanceled && !stateOf(status).Terminal() {
				next := t.cancelCall(v.GetStr("id"))
				next.AnswerToken, response.Next = token, &next
			}
			return false
		case t.Remote != "" && status.GetStr("timestamp") < t.Stamp: // a notification that was delayed
			return false
		case t.Remote != "" && t.Unanswered && !isAnswer && t.Stamp != "" && status.GetStr("timestamp") == t.Stamp: // one from before the message
			return false
		}
		t.Remote, t.Unanswered, t.Reason = v.GetStr("id"), false, ""
		if t.takeReport(v); len(v.JSON()) > maxResult {
			t.State, t.Task = a2a.TaskStateFailed, newTask(t.ID, t.Context, a2a.TaskStateFailed, textLarge, time.Now())
		}
		return true
	})
	if errors.Is(err, message.ErrTaskNotFound) {
		return wire.ErrRoute
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, response)
}
