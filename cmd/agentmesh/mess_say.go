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

// messSaying is what commands need that answer a thread as it was read.
type messSaying struct {
	messOut
	Ref    string `arg:"" help:"Ref of the thread."`
	Serial int    `placeholder:"N" help:"Only if message N is the newest still: the serial that mess show has."`
}

// messThread is what the commands need of a thread.
type messThread struct {
	ref    string
	serial string // of the newest message
	wants  string // what its executor asked last to be allowed
}

func (c messSaying) read(ctx context.Context, a *app) (t messThread, err error) {
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
			if status, _ := e.Get("status"); status.GetStr("code") == "needs_confirmation" {
				t.wants = status.GetStr("action")
			}
		}
	}
	if c.Serial > 0 {
		t.serial = strconv.Itoa(c.Serial)
	}
	return t, nil
}

// say sends an entry about the thread, if nobody has said anything since it was read.
func (c messSaying) say(ctx context.Context, a *app, t messThread, e thread.Entry) error {
	body := wire.Obj(wire.Member{Key: "mess", Value: thread.Block{e}.Tree()}).JSON()
	raw, err := messOnce(ctx, a, http.MethodPatch, messAPI+"requests/"+url.PathEscape(t.ref), body, map[string]string{"If-Match": `"` + t.serial + `"`})
	if err != nil {
		return err
	}
	v, err := messAnswer(raw)
	if err != nil {
		return err
	}
	return c.show(a, v)
}

type messAnswerCmd struct {
	messSaying
	Answers []string `arg:"" help:"FIELD=VALUE, or one text where one thing is asked."`
}

func (c *messAnswerCmd) Run(ctx context.Context, a *app) error {
	t, err := c.read(ctx, a)
	if err != nil {
		return err
	}
	if len(c.Answers) == 1 && !strings.Contains(c.Answers[0], "=") {
		return c.say(ctx, a, t, thread.Entry{Type: "answer", Body: wire.Obj(wire.TextField("re", t.ref), wire.TextField("value", c.Answers[0]))})
	}
	answers := wire.Obj()
	for _, pair := range c.Answers {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return exit.Fail(exit.Usage, errors.New("an answer is FIELD=VALUE"))
		}
		answers = answers.With(key, wire.Text(value))
	}
	return c.say(ctx, a, t, thread.Entry{Type: "reply", Body: wire.Obj(wire.TextField("re", t.ref), wire.Member{Key: "answers", Value: answers})})
}

type messConfirmCmd struct {
	messSaying
	No     bool   `help:"Do not let it act."`
	Reason string `placeholder:"TEXT" help:"Why."`
}

// Run says what is confirmed: exactly that, and nothing that is asked by the time that the answer arrives.
func (c *messConfirmCmd) Run(ctx context.Context, a *app) error {
	t, err := c.read(ctx, a)
	if err != nil {
		return err
	}
	if c.Serial == 0 && t.wants != "" {
		a.Note("it wants to: %s", terminal.Short(t.wants, 300))
	}
	body := wire.Obj(wire.TextField("re", t.ref), wire.Member{Key: "confirm", Value: wire.Bool(!c.No)})
	if c.Reason != "" {
		body = body.With("reason", wire.Text(c.Reason))
	}
	return c.say(ctx, a, t, thread.Entry{Type: "reply", Body: body})
}
