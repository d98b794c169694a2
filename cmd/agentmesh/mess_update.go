package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messUpdateCmd struct {
	messOut
	Ref     string `arg:"" help:"Ref of the thread."`
	Status  string `arg:"" optional:"" help:"The new status."`
	Message string `placeholder:"TEXT" help:"A word about it."`
	Reason  string `placeholder:"TEXT" help:"Why: for failed, declined and held."`
	Ask     string `placeholder:"TEXT" help:"A question to the requester; sets needs_input."`
	Confirm string `placeholder:"TEXT" help:"What you would do, for the requester to confirm; sets needs_confirmation."`
	File    string `placeholder:"FILE" help:"Send this block instead; an entry without re is about REF; - reads standard input."`
}

func (c *messUpdateCmd) Run(ctx context.Context, a *app) error {
	said := 0
	for _, way := range []string{c.Status, c.Ask, c.Confirm, c.File} {
		if way != "" {
			said++
		}
	}
	if said != 1 || c.File != "" && (c.Message != "" || c.Reason != "") {
		return exit.FailHint(exit.Usage, errors.New("needs one of a status, --ask, --confirm and --file; --message and --reason go with the first three"), "agentmesh mess update REF in_progress")
	}
	if c.File != "" {
		b, err := messRead(a, c.File, thread.Parse)
		if err != nil {
			return err
		}
		return messSend(ctx, a, c.messOut, aboutThread(b, c.Ref))
	}
	if c.Status != "" {
		if err := c.complete(); err != nil {
			return err
		}
	}
	var more []wire.Member
	code := c.Status
	switch {
	case c.Ask != "":
		code = "needs_input"
		more = append(more, wire.Member{Key: "questions", Value: wire.Arr(wire.Obj(wire.TextField("field", "answer"), wire.TextField("question", c.Ask)))})
	case c.Confirm != "":
		code = "needs_confirmation"
		more = append(more, wire.TextField("action", c.Confirm))
	}
	if c.Message != "" {
		more = append(more, wire.TextField("message", c.Message))
	}
	if c.Reason != "" {
		more = append(more, wire.TextField("reason", c.Reason))
	}
	return messStatus(ctx, a, c.messOut, c.Ref, code, more...)
}

// complete says what a status needs besides itself, in terms of the flags.
func (c *messUpdateCmd) complete() error {
	code, err := messCode(c.Status)
	if err != nil {
		return err
	}
	needs := ""
	switch code {
	case thread.NeedsInput:
		needs = "needs_input is set by --ask, with the question"
	case thread.NeedsConfirmation:
		needs = "needs_confirmation is set by --confirm, with what you would do"
	case thread.Waiting, thread.Retrying, thread.Partial, thread.Expired, thread.Superseded, thread.Delegated:
		needs = string(code) + " says more than flags can: write it as a block, for --file"
	case thread.Failed, thread.Declined:
		if c.Reason == "" {
			needs = string(code) + " needs --reason"
		}
	}
	if needs != "" {
		return exit.Fail(exit.Usage, errors.New(needs))
	}
	return nil
}

// messCode reads a status that somebody typed.
func messCode(text string) (thread.Code, error) {
	code, ok := thread.ParseCode(text)
	if ok {
		return code, nil
	}
	var all []string
	for _, c := range thread.Codes() {
		all = append(all, string(c))
	}
	return "", exit.Fail(exit.Usage, fmt.Errorf("%s is no status; there are: %s", terminal.Clean(text), strings.Join(all, ", ")))
}

// messMissing names what a refused block speaks of and is not there: the exchange quotes nothing that it was sent.
func messMissing(ctx context.Context, a *app, b thread.Block, refused error) error {
	if !strings.HasSuffix(refused.Error(), "names nothing that is there") {
		return refused
	}
	var names []string
	for _, e := range b {
		body := e.Body
		if filter, ok := body.Get("filter"); ok {
			body = filter
		}
		re, _ := body.Get("re")
		if re.Kind() != wire.Array {
			re = wire.Arr(re)
		}
		for name := range re.Elems() {
			if text, _ := name.Str(); text != "" {
				names = append(names, text)
			}
		}
	}
	for _, name := range names {
		_, err := messCall(ctx, a, http.MethodGet, "requests/"+url.PathEscape(name), nil, nil)
		if err != nil && (exit.Code(err) == exit.No || exit.Code(err) == exit.Input) {
			return exit.FailHint(exit.No, fmt.Errorf("there is no thread %s", terminal.Clean(name)), "agentmesh mess list")
		}
	}
	return refused
}

// aboutThread has the entries of a block that name no thread name this one.
func aboutThread(b thread.Block, ref string) thread.Block {
	for i, e := range b {
		_, named := e.Body.Get("re")
		if !named && e.Body.Kind() == wire.Object && slices.Contains([]string{"status", "response", "reply", "answer", "cancel"}, e.Type) {
			b[i].Body = e.Body.With("re", wire.Text(ref))
		}
	}
	return b
}
