package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messUpdateCmd struct {
	Ref     string `arg:"" help:"Ref of the thread."`
	Status  string `arg:"" optional:"" help:"The new status."`
	Message string `placeholder:"TEXT" help:"Message about the status."`
	Reason  string `placeholder:"TEXT" help:"Reason, for failed, declined and held."`
	Ask     string `placeholder:"TEXT" help:"Ask the requester a question and set needs_input."`
	Confirm string `placeholder:"TEXT" help:"Ask the requester to confirm this action and set needs_confirmation."`
	File    string `placeholder:"FILE" help:"Send the block, a list of entries, in this file. An entry without the field re is about REF. Use - for standard input."`
}

func (c *messUpdateCmd) Run(ctx context.Context, a *app) error {
	given := 0
	for _, text := range []string{c.Status, c.Ask, c.Confirm, c.File} {
		if text != "" {
			given++
		}
	}
	if given != 1 || c.File != "" && (c.Message != "" || c.Reason != "") {
		return exit.FailHint(exit.Usage, errors.New("needs exactly one of a status, --ask, --confirm and --file; --message and --reason do not go with --file"), "for example: agentmesh mess update REF in_progress")
	}
	if c.File != "" {
		b, err := parseFile(a, c.File, thread.Parse)
		if err != nil {
			return err
		}
		return messSend(ctx, a, setThread(b, c.Ref))
	}
	if c.Status != "" {
		if err := c.checkStatus(); err != nil {
			return err
		}
	}
	body := wire.Obj(wire.TextField("re", c.Ref))
	switch {
	case c.Ask != "":
		question := wire.Obj(wire.TextField("field", "answer"), wire.TextField("question", c.Ask))
		body = body.With("code", wire.Text("needs_input")).With("questions", wire.Arr(question))
	case c.Confirm != "":
		body = body.WithOptional("code", "needs_confirmation").WithOptional("action", c.Confirm)
	default:
		body = body.WithOptional("code", c.Status)
	}
	body = body.WithOptional("message", c.Message).WithOptional("reason", c.Reason)
	return messSend(ctx, a, thread.Block{{Type: "status", Body: body}})
}

// checkStatus returns an error that names the missing flag if the status needs more than its code.
func (c *messUpdateCmd) checkStatus() error {
	code, err := parseStatus(c.Status)
	if err != nil {
		return err
	}
	problem := ""
	switch code {
	case thread.NeedsInput:
		problem = "set needs_input with --ask and the question"
	case thread.NeedsConfirmation:
		problem = "set needs_confirmation with --confirm and the action"
	case thread.Waiting, thread.Retrying, thread.Partial, thread.Expired, thread.Superseded, thread.Delegated:
		problem = string(code) + " needs more than flags can express: write it as a block and send it with --file"
	case thread.Failed, thread.Declined:
		if c.Reason == "" {
			problem = string(code) + " needs --reason"
		}
	}
	if problem != "" {
		return exit.Fail(exit.Usage, errors.New(problem))
	}
	return nil
}

func parseStatus(text string) (thread.Code, error) {
	code, ok := thread.ParseCode(text)
	if ok {
		return code, nil
	}
	var all []string
	for _, c := range thread.Codes() {
		all = append(all, string(c))
	}
	return "", exit.Fail(exit.Usage, fmt.Errorf("%s is not a status; use one of %s", terminal.Clean(text), strings.Join(all, ", ")))
}

// setThread sets re to ref in the entries of a block that are about a thread and have no re.
func setThread(b thread.Block, ref string) thread.Block {
	for i, e := range b {
		_, hasRef := e.Body.Get("re")
		if !hasRef && e.Body.Kind() == wire.Object && slices.Contains([]string{"status", "response", "reply", "answer", "cancel", "suggestion"}, e.Type) {
			b[i].Body = e.Body.With("re", wire.Text(ref))
		}
	}
	return b
}
