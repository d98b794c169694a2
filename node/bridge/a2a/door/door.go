// Package door is the front end of A2A: it reads the requests of both bindings, answers them, and serves streams and
// waiting callers. What the tasks are and who may see them is the business of a back end, which implements [Tasks]: the
// bridge of the node, the mailboxes of a directory, and the URLs of the owner's contacts.
//
// What can refuse a message (version, size, form, places of streams) is checked before the back end gets the message.
//
// Start with [New] and [Door.Serve].
package door

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	// BlockFor is how long a blocking call waits for its task (A2A-D1).
	BlockFor = 25 * time.Second

	checkEvery = 5 * time.Second  // how often a waiter reads its task even if nobody woke it
	answerTime = 35 * time.Second // for the work of a call beside its wait
)

// Task is a task of a back end, as it was when the back end read it.
type Task struct {
	ID    string
	State a2a.TaskState
	At    time.Time // when the task got its state
	// Direct means that the agent answered with a message instead of a task. The caller gets the parts of the
	// artifacts as a message if it waited for them.
	Direct bool
	// Refusal is the error with which the agent refused the caller's last message after a back end had taken it; a
	// caller that waited gets it.
	Refusal *message.Error
	Row     any // of the back end
}

func (t Task) endedOrAsks() bool { return t.State.Terminal() || message.IsInterrupted(t.State) }

// Tasks are the tasks of one caller. A task that the caller may not see does not exist: [message.ErrTaskNotFound].
type Tasks interface {
	// Send takes a message and returns its task. A repeated message gets the task that it got before (A2A-D4).
	Send(ctx context.Context, call message.Call, m message.Message) (Task, error)
	Find(ctx context.Context, id string) (Task, error)
	// List returns the caller's tasks in a context, or all if contextID is "", in any order.
	List(ctx context.Context, contextID string) ([]Task, error)
	// Cancel asks the agent to end a task that has not ended.
	Cancel(ctx context.Context, t Task) (Task, error)
	// Show returns tasks in the form of A2A, with at most history messages each, or any number if history is negative.
	Show(ctx context.Context, history int, tasks ...Task) ([]wire.Value, error)
	// Since returns the events of a stream between two readings of a task.
	Since(ctx context.Context, seen, now Task) ([]wire.Value, error)
	// Do makes any other call: those of push notifications, and of the extended card.
	Do(ctx context.Context, call message.Call) (wire.Value, error)
}

// Caller is the client that makes a request.
type Caller struct {
	Tasks  Tasks
	Tenant string  // the agent behind the URL; a request that names another one is refused
	Shares []Share // of the places of waiting callers; the first one is the caller's own
}

// Config configures a [Door]. Open is required.
type Config struct {
	// Open identifies the caller of a request, before the body is read.
	Open func(c echo.Context) (Caller, error)
	// Error returns the public form of an error of the back end that is not a [message.Error] yet; nil means
	// [message.FromMesh].
	Error     func(error) *message.Error
	Hub       *Hub          // nil means a hub of its own
	BlockFor  time.Duration // zero means [BlockFor]
	StreamFor time.Duration // the longest stream; then the client subscribes again. Zero means an hour
	Logger    *slog.Logger  // nil discards
}

// Door serves A2A. It is safe for concurrent use.
type Door struct {
	cfg Config
	log *slog.Logger
}

// New returns a door.
func New(cfg Config) *Door {
	if cfg.Error == nil {
		cfg.Error = message.FromMesh
	}
	if cfg.Hub == nil {
		cfg.Hub = &Hub{}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.BlockFor, cfg.StreamFor = cmp.Or(cfg.BlockFor, BlockFor), cmp.Or(cfg.StreamFor, time.Hour)
	return &Door{cfg: cfg, log: cfg.Logger}
}

// Serve answers a request to the interface at the path base: JSON-RPC at base itself, HTTP+JSON below it.
func (d *Door) Serve(c echo.Context, base string) error {
	httpapi.Private(c)
	r := c.Request()
	path := strings.TrimPrefix(r.URL.EscapedPath(), base)
	call := message.Call{Binding: message.HTTPJSON}
	if r.Method == http.MethodPost && strings.Trim(path, "/") == "" {
		call.Binding = message.JSONRPC
	}
	caller, err := d.cfg.Open(c)
	if err != nil {
		return d.refuse(c, call, err)
	}
	body, err := ReadBody(c)
	if err != nil {
		return d.refuse(c, call, message.FromMesh(err))
	}
	var e *message.Error
	if call.Binding == message.JSONRPC {
		call, e = message.ReadRPC(body, message.VersionOf(r))
	} else {
		call, e = message.ReadREST(r.Method, path, r.URL.Query(), body, message.VersionOf(r))
	}
	if e == nil && call.Tenant != "" && call.Tenant != caller.Tenant {
		e = message.ErrTaskNotFound.At("no such tenant")
	}
	if e != nil {
		return d.refuse(c, call, e)
	}
	if slices.Contains(message.ExtensionsIn(r.Header), message.Extension) {
		c.Response().Header().Set(message.HeaderExtensions, message.Extension)
	}
	if err := httpapi.KeepOpen(c, d.cfg.BlockFor+answerTime); err != nil {
		return err
	}
	if call.Streams() {
		return d.stream(c, call, caller)
	}
	result, err := d.Call(r.Context(), call, caller)
	if err != nil {
		return d.refuse(c, call, err)
	}
	return c.Blob(http.StatusOK, call.MediaType(http.StatusOK), call.Answer(result))
}

// ReadBody returns the body of a request with A2A's media type or application/json.
func ReadBody(c echo.Context) ([]byte, error) {
	message.AcceptMediaType(c.Request().Header)
	body, err := httpapi.Body(c, message.MaxBody)
	if errors.Is(err, wire.ErrSyntax) {
		err = message.ErrParse.Because(err)
	}
	return body, err
}

func (d *Door) refuse(c echo.Context, call message.Call, err error) error {
	e, ok := err.(*message.Error)
	if !ok {
		e = d.cfg.Error(err)
	}
	d.log.DebugContext(c.Request().Context(), "a2a: refused", "method", call.Method, "reason", e.Reason, "cause", e.Unwrap())
	e.SetHeader(c.Response().Header())
	status, body := call.Refuse(e)
	return c.Blob(status, call.MediaType(status), body)
}

// Call carries out a call that has a single answer.
func (d *Door) Call(ctx context.Context, call message.Call, caller Caller) (wire.Value, error) {
	switch call.Method {
	case message.SendMessage:
		end := time.Now().Add(d.cfg.BlockFor)
		t, history, err := d.send(ctx, call, caller.Tasks)
		if err == nil && call.Blocks() {
			t, err = d.await(ctx, t, caller, end, Task.endedOrAsks)
		}
		if err == nil && call.Blocks() && t.Refusal != nil {
			err = t.Refusal
		}
		if err != nil {
			return wire.Value{}, err
		}
		v, err := d.show(ctx, t, caller.Tasks, history)
		if t.Direct && call.Blocks() {
			return message.DirectMessage(v), err
		}
		return wire.Obj(wire.Field("task", v)), err
	case message.GetTask, message.CancelTask:
		history, e := call.HistoryLength()
		if e != nil {
			return wire.Value{}, e
		}
		t, err := find(ctx, call, caller.Tasks)
		if err == nil && call.Method == message.CancelTask {
			if t.State.Terminal() {
				return wire.Value{}, message.ErrNotCancelable
			}
			if t, err = caller.Tasks.Cancel(ctx, t); err == nil {
				t, err = d.await(ctx, t, caller, time.Now().Add(d.cfg.BlockFor), func(t Task) bool { return t.State.Terminal() })
			}
		}
		if err != nil {
			return wire.Value{}, err
		}
		return d.show(ctx, t, caller.Tasks, history)
	case message.ListTasks:
		return list(ctx, call, caller.Tasks)
	}
	return caller.Tasks.Do(ctx, call)
}

// send hands the message of a call to the back end. It also returns the wanted length of the task's history.
func (d *Door) send(ctx context.Context, call message.Call, tasks Tasks) (t Task, history int, err error) {
	m, e := message.ReadMessage(call.Params)
	if e != nil {
		return t, 0, e
	}
	options, _ := call.Params.Get("configuration")
	if history, e = (message.Call{Params: options}).HistoryLength(); e != nil {
		return t, 0, e
	}
	t, err = tasks.Send(ctx, call, m)
	return t, history, err
}

func find(ctx context.Context, call message.Call, tasks Tasks) (Task, error) {
	id, e := call.IDOf("id")
	if e != nil {
		return Task{}, e
	}
	return tasks.Find(ctx, id)
}

// show returns a task with the artifacts that its agent has sent so far.
func (d *Door) show(ctx context.Context, t Task, tasks Tasks, history int) (wire.Value, error) {
	list, err := tasks.Show(ctx, history, t)
	if err != nil {
		return wire.Value{}, err
	}
	if t.State.Terminal() {
		return list[0], nil
	}
	return d.cfg.Hub.sentBy(t.ID).addTo(list[0]), nil
}

// await waits until done reports true for a task, but not beyond end (A2A-9, A2A-D1). It does not wait if too many
// callers are waiting already.
func (d *Door) await(ctx context.Context, t Task, caller Caller, end time.Time, done func(Task) bool) (Task, error) {
	if done(t) {
		return t, nil
	}
	w := d.cfg.Hub.Enter(caller.Shares)
	if w == nil {
		return t, nil
	}
	defer d.cfg.Hub.Leave(w)
	d.cfg.Hub.follow(w, t.ID)
	waitCtx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for {
		var err error
		if t, err = caller.Tasks.Find(context.WithoutCancel(ctx), t.ID); err != nil || done(t) || waitCtx.Err() != nil {
			return t, err
		}
		select {
		case <-w.changed:
		case <-time.After(checkEvery):
		case <-waitCtx.Done():
		}
	}
}
