package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messReply is the common part of commands that reply in a thread.
type messReply struct {
	Ref    string `arg:"" help:"Ref of the thread."`
	Serial int    `placeholder:"N" help:"Reply only if message N is still the newest. mess show prints the serial."`
}

// messThread is the state of a thread to which a command replies.
type messThread struct {
	ref    string
	serial string // of the newest message, or --serial
	action string // what the executor wants to do, if it asks for a confirmation
}

// read returns the state of the thread. --serial takes the place of the serial of the newest message.
func (c messReply) read(ctx context.Context, a *app) (t messThread, err error) {
	v, err := messCall(ctx, a, http.MethodGet, "requests/"+url.PathEscape(c.Ref), nil, nil)
	if err != nil {
		return t, err
	}
	thread, _ := v.Get("thread")
	serial, _ := thread.Get("serial")
	t.ref, t.serial = thread.GetStr("ref"), string(serial.JSON())
	messages, _ := thread.Get("messages")
	for m := range messages.Elems() {
		list, _ := m.Get("mess")
		for e := range list.Elems() {
			if status, _ := e.Get("status"); thread.GetStr("status") == "needs_confirmation" && status.GetStr("code") == "needs_confirmation" {
				t.action = status.GetStr("action")
			}
		}
	}
	if c.Serial > 0 {
		t.serial = strconv.Itoa(c.Serial)
	}
	return t, nil
}

// send sends an entry about the thread. The exchange refuses it if the thread has a newer message than t.serial.
func (c messReply) send(ctx context.Context, a *app, t messThread, e thread.Entry) error {
	body := wire.Obj(wire.Field("mess", thread.Block{e}.Tree())).JSON()
	return a.showMess(messCallIdempotent(ctx, a, http.MethodPatch, messAPI+"requests/"+url.PathEscape(t.ref), body, `"`+t.serial+`"`))
}

type messAnswerCmd struct {
	messReply
	Answers []string `arg:"" help:"FIELD=VALUE for each question, or a text if there is one question."`
}

func (c *messAnswerCmd) Run(ctx context.Context, a *app) error {
	t, err := c.read(ctx, a)
	if err != nil {
		return err
	}
	if len(c.Answers) == 1 && !strings.Contains(c.Answers[0], "=") {
		return c.send(ctx, a, t, thread.Entry{Type: "answer", Body: wire.Obj(wire.TextField("re", t.ref), wire.TextField("value", c.Answers[0]))})
	}
	answers := wire.Obj()
	for _, pair := range c.Answers {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return exit.Fail(exit.Usage, errors.New("write each answer as FIELD=VALUE"))
		}
		answers = answers.With(key, wire.Text(value))
	}
	return c.send(ctx, a, t, thread.Entry{Type: "reply", Body: wire.Obj(wire.TextField("re", t.ref), wire.Field("answers", answers))})
}

type messConfirmCmd struct {
	messReply
	No     bool   `help:"Forbid the action."`
	Reason string `placeholder:"TEXT" help:"Reason."`
}

// Run confirms or forbids the action that the executor asks about. The exchange refuses the reply if the thread has a
// newer message. Without --serial, Run prints the action first.
func (c *messConfirmCmd) Run(ctx context.Context, a *app) error {
	t, err := c.read(ctx, a)
	if err != nil {
		return err
	}
	if c.Serial == 0 && t.action != "" {
		a.Note("the executor asks to: %s", terminal.Truncate(t.action, 300))
	}
	body := wire.Obj(wire.TextField("re", t.ref), wire.Field("confirm", wire.Bool(!c.No))).WithOptional("reason", c.Reason)
	return c.send(ctx, a, t, thread.Entry{Type: "reply", Body: body})
}
