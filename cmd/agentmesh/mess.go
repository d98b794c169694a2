package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

type messCmd struct {
	YAML bool `name:"yaml" help:"Print the result as YAML."`

	Request      messRequestCmd      `cmd:"" aliases:"send" help:"Request work in the physical world."`
	Status       messStatusCmd       `cmd:"" help:"Show the status of requests."`
	List         messListCmd         `cmd:"" default:"withargs" help:"List threads, newest change first."`
	Show         messShowCmd         `cmd:"" help:"Show a thread with all its messages."`
	Claim        messClaimCmd        `cmd:"" help:"Claim a thread."`
	Update       messUpdateCmd       `cmd:"" help:"Set a status, or send any block about a thread."`
	Answer       messAnswerCmd       `cmd:"" help:"Answer the questions of an executor."`
	Confirm      messConfirmCmd      `cmd:"" help:"Allow or forbid an action that an executor has asked about."`
	Complete     messCompleteCmd     `cmd:"" help:"Deliver the result of a thread."`
	Fetch        messFetchCmd        `cmd:"" help:"Fetch a file of a thread, or a file that a message refers to by address."`
	Cancel       messCancelCmd       `cmd:"" help:"Cancel requests."`
	Capabilities messCapabilitiesCmd `cmd:"" help:"List the capabilities in the catalog and of executors, or add to the catalog."`
	Executors    messExecutorsCmd    `cmd:"" aliases:"peers" help:"List the executors, or add or change one."`
	Key          messKeyCmd          `cmd:"" help:"Make a new API key for an executor, or revoke its key."`
	Import       messImportCmd       `cmd:"" help:"Import threads from MESSE-AF files."`
	Export       messExportCmd       `cmd:"" help:"Write a thread as a MESSE-AF file."`
}

// showMess prints an answer: as JSON with --json, as YAML with --yaml, otherwise as lines. It returns err, if any.
func (a *app) showMess(v wire.Value, err error) error {
	var text string
	switch {
	case err != nil:
		return err
	case a.globals.JSON:
		return a.JSON(json.RawMessage(v.JSON()))
	case a.yaml:
		text = string(yamltree.Append(nil, v))
	default:
		text = strings.Join(terminal.TreeLines(owner.NameParties(v)), "\n")
	}
	for line := range strings.Lines(text) {
		a.Print("%s", terminal.Clean(strings.TrimSuffix(line, "\n")))
	}
	return nil
}

// messAPI is the path of the exchange's operations in the owner API.
const messAPI = "mess/exchange/"

// errEmptyRef is the error for an empty ref or id. A path with an empty element would name another resource.
var errEmptyRef = exit.FailHint(exit.Usage, errors.New("the ref or id is empty"), "list the refs with: agentmesh mess list")

// messCall makes a call to the exchange that this process or serve hosts, and returns the answer. path is below messAPI.
func messCall(ctx context.Context, a *app, method, path string, query url.Values, body any) (wire.Value, error) {
	if strings.HasSuffix(path, "/") || strings.Contains(path, "//") {
		return wire.Value{}, errEmptyRef
	}
	raw, err := callRaw(ctx, a, owner.Call[wire.Value]{Method: method, Path: messAPI + path, Query: query, Body: body})
	if err != nil {
		return wire.Value{}, err
	}
	return parseMessAnswer(raw)
}

// messPost sends a block, a list of entries with a type and a body, to the exchange and returns the answer.
func messPost(ctx context.Context, a *app, b thread.Block) (wire.Value, error) {
	return messCallIdempotent(ctx, a, http.MethodPost, messAPI+"messages", b.Tree().JSON(), "")
}

// parseMessAnswer parses an answer of the exchange. An answer contains other messages, so it may be deeper and larger
// than a message.
func parseMessAnswer(raw []byte) (wire.Value, error) {
	v, err := wire.ParseLimits(raw, 2*wire.MaxDepth, 1_000_000)
	if err != nil {
		return v, exit.Fail(exit.Unavailable, fmt.Errorf("read the answer: %w", err))
	}
	return v, nil
}

// messSend sends a block to the exchange and shows the answer.
func messSend(ctx context.Context, a *app, b thread.Block) error {
	return a.showMess(messPost(ctx, a, b))
}

// parseFile reads and parses a file, or standard input if name is "-". Errors name the file.
func parseFile[T any](a *app, name string, parse func([]byte) (T, error)) (out T, err error) {
	data, err := a.ReadInput(name)
	if err != nil {
		return out, err
	}
	if out, err = parse(data); err != nil {
		return out, exit.Fail(exit.Input, fmt.Errorf("%s: %w", inputName(name), withoutCode(err)))
	}
	return out, nil
}

func inputName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return terminal.Clean(name)
}

// withoutCode returns a wire error without its code, which has no meaning for the reader of a file.
func withoutCode(err error) error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return errors.New(e.Message)
	}
	return err
}

type messRequestCmd struct {
	Intent   string   `arg:"" optional:"" help:"The work to do, as a text."`
	File     string   `placeholder:"FILE" help:"Read the request from a block in YAML or JSON; - reads standard input."`
	ID       string   `placeholder:"ID" help:"Give the request this name."`
	Context  []string `placeholder:"TEXT" sep:"none" help:"Information for the executor. Repeat for more."`
	Requires []string `placeholder:"CAPABILITY" help:"Capability that the executor must have. Repeat for more."`
	Priority string   `placeholder:"PRIORITY" help:"Priority: background, normal, elevated or urgent."`
	Expires  string   `placeholder:"WHEN" help:"Time or duration after which the request expires: 2h, 3d."`
	Confirm  bool     `help:"Make the executor ask before it acts."`
	Link     string   `placeholder:"LINK" help:"Send the request to the foreign exchange behind this link."`
}

func (c *messRequestCmd) Run(ctx context.Context, a *app) error {
	if (c.Intent == "") == (c.File == "") {
		return exit.FailHint(exit.Usage, errors.New("needs a text or --file, not both"), "for example: agentmesh mess request 'what is in the fridge?'")
	}
	block := thread.Block{{Type: "request", Body: c.body()}}
	if c.File != "" {
		if c.body().Len() > 1 { // intent is always a member
			return exit.Fail(exit.Usage, errors.New("--file contains the whole request: add no flags except --link, --json and --yaml"))
		}
		var err error
		if block, err = parseFile(a, c.File, thread.Parse); err != nil {
			return err
		}
	}
	if c.Link != "" {
		return messSendToLink(ctx, a, block, c.Link)
	}
	err := messSend(ctx, a, block)
	if err == nil {
		a.noteNoExecutor(ctx)
	}
	return err
}

// noteNoExecutor says if nobody here can take a request, although serve has a link over which it could be sent.
func (a *app) noteNoExecutor(ctx context.Context) {
	_, dir, err := a.sourceAndDir()
	if err != nil {
		return
	}
	o := daemon.Running(ctx, string(dir))
	if o == nil {
		return
	}
	defer o.Close()
	raw, err := o.Call(ctx, http.MethodGet, messAPI+"executors", nil, nil)
	if err != nil {
		return
	}
	list, _ := parseMessAnswer(raw)
	links, err := daemon.Fetch(ctx, o, daemon.ListLinks.Call())
	if executors, _ := list.Get("executors"); err != nil || executors.Len() > 0 {
		return
	}
	for _, l := range links.Items {
		if l.Kind == mess.Kind {
			a.Note("there is no executor here, so the request waits until somebody takes it")
			a.Hint("to have it done behind the link, cancel it and run: agentmesh mess request --link %s", terminal.Clean(l.Name))
			return
		}
	}
}

func (c *messRequestCmd) body() wire.Value {
	body := wire.Obj(wire.TextField("intent", c.Intent)).WithOptional("id", c.ID).WithOptional("priority", c.Priority)
	if len(c.Requires) > 0 {
		body = body.With("requires", wire.Texts(c.Requires))
	}
	if len(c.Context) > 0 {
		body = body.With("context", wire.Texts(c.Context))
	}
	if c.Confirm {
		body = body.With("confirm_before", wire.Bool(true))
	}
	if c.Expires != "" {
		body = body.With("constraints", wire.Obj(wire.Field("timing", wire.Obj(wire.TextField("expires", c.Expires)))))
	}
	return body
}

type messStatusCmd struct {
	Refs []string `arg:"" optional:"" help:"Refs or names of requests. Without them, all requests, at most 1000."`
}

func (c *messStatusCmd) Run(ctx context.Context, a *app) error {
	query := wire.Obj(wire.TextField("type", "status"))
	if len(c.Refs) > 0 {
		query = query.With("filter", wire.Obj(wire.Field("re", wire.Texts(c.Refs))))
	}
	return messSend(ctx, a, thread.Block{{Type: "query", Body: query}})
}

type messListCmd struct {
	Status string `placeholder:"STATUS" help:"List only threads with this status."`
	Limit  int    `default:"50" help:"Maximum number of threads."`
}

func (c *messListCmd) Run(ctx context.Context, a *app) error {
	if c.Status != "" {
		if _, err := parseStatus(c.Status); err != nil {
			return err
		}
	}
	if c.Limit < 1 {
		return exit.Fail(exit.Usage, errors.New("--limit must be 1 or more"))
	}
	const maxPage = 1000 // the exchange returns at most this many threads at once
	list, v := []wire.Value{}, wire.Value{}
	for more := true; more && len(list) < c.Limit; {
		var err error
		query := owner.Params("status", c.Status, "limit", fmt.Sprint(min(c.Limit-len(list), maxPage)), "after", v.GetStr("next"))
		if v, err = messCall(ctx, a, http.MethodGet, "requests", query, nil); err != nil {
			return err
		}
		threads, _ := v.Get("threads")
		list = slices.AppendSeq(list, threads.Elems())
		more = v.GetStr("next") != ""
	}
	if a.globals.JSON {
		return a.JSON(json.RawMessage(v.With("threads", wire.Arr(list...)).JSON()))
	}
	showList(a, owner.Page(list, v.GetStr("next")), "no threads", []string{"REF", "STATUS", "PRIORITY", "FROM", "EXECUTOR", "INTENT"}, func(t wire.Value) []string {
		return []string{
			t.GetStr("ref"), t.GetStr("status"), t.GetStr("priority"), owner.ShowParty(t, "requestor_id"),
			owner.ShowParty(t, "executor_id"), terminal.Truncate(t.GetStr("intent"), 60),
		}
	})
	return nil
}

type messShowCmd struct {
	Ref string `arg:"" help:"Ref of the thread."`
}

func (c *messShowCmd) Run(ctx context.Context, a *app) error {
	v, err := messCall(ctx, a, http.MethodGet, "requests/"+url.PathEscape(c.Ref), nil, nil)
	if err != nil {
		return err
	}
	if !a.globals.JSON {
		a.Note("texts of others are untrusted")
	}
	return a.showMess(v, nil)
}

type messClaimCmd struct {
	Ref string `arg:"" help:"Ref of the thread."`
	ETA string `placeholder:"WHEN" help:"Expected time of completion, or the duration until then."`
}

func (c *messClaimCmd) Run(ctx context.Context, a *app) error {
	body := wire.Obj(wire.TextField("re", c.Ref), wire.TextField("code", "claimed")).WithOptional("eta", c.ETA)
	return messSend(ctx, a, thread.Block{{Type: "status", Body: body}})
}

type messCancelCmd struct {
	Refs   []string `arg:"" help:"Refs or names of requests."`
	Reason string   `placeholder:"TEXT" help:"Reason."`
}

func (c *messCancelCmd) Run(ctx context.Context, a *app) error {
	body := wire.Obj(wire.Field("re", wire.Texts(c.Refs))).WithOptional("reason", c.Reason)
	return messSend(ctx, a, thread.Block{{Type: "cancel", Body: body}})
}

type messCapabilitiesCmd struct {
	Tag []string `placeholder:"TAG" help:"List only capabilities with one of these tags."`
	Add string   `placeholder:"FILE" help:"Add the capabilities in this file to the catalog: YAML documents, or the output of this command with --yaml or --json; - reads standard input."`
}

func (c *messCapabilitiesCmd) Run(ctx context.Context, a *app) error {
	if c.Add != "" {
		list, err := parseFile(a, c.Add, registry.ParseCapabilities)
		if err != nil {
			return err
		}
		if _, err := messCall(ctx, a, http.MethodPost, "capabilities", nil, list); err != nil {
			return err
		}
	}
	return a.showMess(messCall(ctx, a, http.MethodGet, "capabilities", url.Values{"tag": c.Tag}, nil))
}
