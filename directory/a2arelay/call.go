package a2arelay

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// send stores a message as a call for the agent, and its task. Both are durable when send returns. A repeated message
// gets the task that it got before (A2A-D4).
func (s *Service) send(ctx context.Context, agent wire.AgentID, call message.Call, from caller, extensions []string) (*taskRow, error) {
	m, e := message.ReadMessage(call.Params)
	if e != nil {
		return nil, e
	}
	who := from.token
	if who == "" {
		who = string(from.source) // the address tells callers without a token apart
	}
	seen, err := s.sum(ctx, "message", string(agent), who, m.ID)
	if err != nil {
		return nil, err
	}
	sum := signing.Digest(m.Tree)
	digest := hex.EncodeToString(sum[:])
	for range attempts {
		t, err := s.findSeen(ctx, seen, digest)
		if t != nil || err != nil {
			return t, err
		}
		now := time.Now()
		if t, err = s.newRow(ctx, agent, m, from, now); err != nil {
			return nil, err
		}
		params := wire.Obj(wire.Field("message", t.outgoing(m.Tree)))
		change, size := t.change()
		if err := s.admit(ctx, t, size); err != nil {
			return nil, err
		}
		err = s.queue(ctx, t, Call{Method: message.SendMessage, Params: params, Token: from.token, Extensions: extensions}, []store.Change{
			change, {Record: store.Record{NS: nsSeen, Key: seen, Body: []byte(t.ID + " " + digest), Expires: now.Add(mailbox.Life)}},
		})
		if err == nil {
			s.hub.publish(t.ID)
			return s.load(ctx, t.ID)
		}
		if t.rev == store.Absent {
			s.counts.Remove(t.ID)
		}
		if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
	}
	return nil, wire.ErrUnavailable.Because(errors.New("lost every race for the message"))
}

// findSeen returns the task of an earlier message of this name, or nil. It fails if that message had another content.
func (s *Service) findSeen(ctx context.Context, seen, digest string) (*taskRow, error) {
	rec, err := s.cfg.Records.Get(ctx, nsSeen, seen, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	id, before, _ := strings.Cut(string(rec.Body), " ")
	if before != digest {
		return nil, message.ErrParams.At("the message id was used before with other content")
	}
	return s.load(ctx, id)
}

// newRow returns the task of a message: a new one, or the open task that the message names.
func (s *Service) newRow(ctx context.Context, agent wire.AgentID, m message.Message, from caller, now time.Time) (*taskRow, error) {
	if m.TaskID != "" {
		t, err := s.find(ctx, agent, from, m.TaskID)
		switch {
		case err != nil:
			return nil, err
		case isTerminal(t.State):
			return nil, message.ErrUnsupported.At("the task has ended")
		case t.Remote == "":
			return nil, message.ErrUnsupported.At("the agent has not taken the task yet")
		case m.ContextID != "" && m.ContextID != t.Context:
			return nil, message.ErrParams.At("the task belongs to another context")
		}
		t.State, t.Task = stateWorking, newTask(t.ID, t.Context, stateWorking, textWaits, now)
		return t, nil
	}
	t := &taskRow{ID: newTaskID(now), Agent: agent, Token: from.token, Source: from.source, Context: m.ContextID, Created: now.UTC(), State: stateWorking}
	if t.Context == "" {
		t.Context = "ctx-" + strings.ToLower(rand.Text())
	}
	t.Task = newTask(t.ID, t.Context, stateWorking, textWaits, now)
	return t, nil
}

// outgoing returns a message as the agent gets it: in the context of the task, and with the agent's own id of the task.
func (t *taskRow) outgoing(m wire.Value) wire.Value {
	m = m.Without("taskId").With("contextId", wire.Text(t.Context))
	if t.Remote != "" {
		m = m.With("taskId", wire.Text(t.Remote))
	}
	return m
}

// queue stores a call for the agent together with changes.
func (s *Service) queue(ctx context.Context, t *taskRow, call Call, changes []store.Change) error {
	token, err := s.answerToken(ctx, t.ID)
	if err != nil {
		return err
	}
	call.Task, call.AnswerToken = t.ID, token
	if call.Method == message.SendMessage { // states that follow the first answer come as push notifications
		call.Params = call.Params.With("configuration", wire.Obj(
			wire.Field("returnImmediately", wire.Bool(true)),
			wire.Field("taskPushNotificationConfig", wire.Obj(
				wire.TextField("id", "relay"), wire.TextField("url", s.cfg.BaseURL+"/relay/"+t.ID+"/task"), wire.TextField("token", token),
			)),
		))
	}
	raw, err := json.Marshal(call)
	if err != nil {
		return err
	}
	_, err = s.cfg.Queue(ctx, t.Agent, t.Source, raw, changes)
	return err
}

// answerToken returns the token that authenticates answers about a task.
func (s *Service) answerToken(ctx context.Context, task string) (string, error) {
	return s.sum(ctx, "answer", task)
}

// cancel asks the agent to cancel a task, and waits for its answer. A task that the agent did not take yet ends at once.
func (s *Service) cancel(ctx context.Context, t *taskRow, from caller) (*taskRow, error) {
	if isTerminal(t.State) {
		return nil, message.ErrNotCancelable
	}
	t, err := s.update(ctx, t.ID, func(t *taskRow) bool {
		if t.Remote != "" || isTerminal(t.State) {
			return false
		}
		t.State, t.Task = stateCanceled, newTask(t.ID, t.Context, stateCanceled, message.TextCanceled, time.Now())
		return true
	})
	if err != nil || t.Remote == "" || isTerminal(t.State) {
		return t, err
	}
	if err := s.queue(ctx, t, t.cancelCall(t.Remote), nil); err != nil {
		return nil, err
	}
	return s.await(ctx, t, from, func(t *taskRow) bool { return isTerminal(t.State) })
}

// cancelCall returns the call that cancels the task at the agent, which knows it by the id remote.
func (t *taskRow) cancelCall(remote string) Call {
	return Call{Method: message.CancelTask, Params: wire.Obj(wire.TextField("id", remote)), Token: t.Token, Task: t.ID}
}

// postTask takes an answer of the agent about a task: the answer to a call, or a push notification. If the caller
// canceled the task before the agent took it, the response has the call that cancels the task. That call needs no room
// in the mailbox, and it comes again with every report until the agent reports an end.
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
	body, err := readBody(c)
	if err != nil {
		return err
	}
	v, err := wire.ParseForeign(body, taskDepth, taskValues)
	if err != nil || v.Kind() != wire.Object {
		return wire.ErrSyntax.Because(err)
	}
	if result, ok := v.Get("result"); ok {
		v = result
	}
	if task, ok := v.Get("task"); ok {
		v = task
	}
	failure, isError := v.Get("error")
	status, _ := v.Get("status")
	if !isError && (v.GetStr("id") == "" || len(v.GetStr("id")) > 128 || status.GetStr("state") == "" || len(status.GetStr("state")) > 64) {
		return wire.ErrSchema.At("a task has an id and a state")
	}
	report := struct {
		Status string `json:"status"`
		Next   *Call  `json:"a2a,omitempty"`
	}{Status: "stored"}
	_, err = s.update(ctx, id, func(t *taskRow) bool {
		switch {
		case isError && (isTerminal(t.State) || t.Remote != ""): // of a cancellation, or too late
			return false
		case isError:
			t.Reason = message.ReadError(http.StatusBadRequest, failure).Reason
			t.State, t.Task = stateRejected, newTask(t.ID, t.Context, stateRejected, textRefused, time.Now())
			return true
		case isTerminal(t.State):
			if t.State == stateCanceled && !isTerminal(status.GetStr("state")) {
				next := t.cancelCall(v.GetStr("id"))
				next.AnswerToken, report.Next = token, &next
			}
			return false
		case t.Remote != "" && status.GetStr("timestamp") < t.Stamp: // a notification that was delayed
			return false
		}
		t.Remote = v.GetStr("id")
		if t.setRemote(v); len(v.JSON()) > maxResult {
			t.State, t.Task = stateFailed, newTask(t.ID, t.Context, stateFailed, textLarge, time.Now())
		}
		return true
	})
	if errors.Is(err, message.ErrTaskNotFound) {
		return wire.ErrRoute
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, report)
}
