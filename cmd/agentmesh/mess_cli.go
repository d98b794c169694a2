package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// messCmd asks for things in the physical world, and does them.
type messCmd struct {
	Request      messRequestCmd      `cmd:"" help:"Ask for something to be done."`
	Status       messStatusCmd       `cmd:"" help:"Say where threads stand."`
	List         messListCmd         `cmd:"" help:"List threads, newest change first."`
	Show         messShowCmd         `cmd:"" help:"Show a thread with all that was said in it, as YAML."`
	Claim        messClaimCmd        `cmd:"" help:"Take a thread on."`
	Update       messUpdateCmd       `cmd:"" help:"Set a status, or send any block about a thread."`
	Answer       messAnswerCmd       `cmd:"" help:"Answer what an executor asks."`
	Confirm      messConfirmCmd      `cmd:"" help:"Let an executor act, or not."`
	Complete     messCompleteCmd     `cmd:"" help:"Deliver the result of a thread."`
	Fetch        messFetchCmd        `cmd:"" help:"Get a file of a thread, also one that a message refers to by address."`
	Cancel       messCancelCmd       `cmd:"" help:"Take requests back."`
	Capabilities messCapabilitiesCmd `cmd:"" help:"What can be done here: the catalogue, and what executors claim beside it."`
	Executors    messExecutorsCmd    `cmd:"" help:"Who is registered here, and adding somebody."`
	Key          messKeyCmd          `cmd:"" help:"Give an executor a key, or take its key away."`
	Route        messRouteCmd        `cmd:"" help:"The routing rules, and setting them."`
	Import       messImportCmd       `cmd:"" help:"Take over threads from MESSE-AF files."`
	Export       messExportCmd       `cmd:"" help:"Write a thread as a MESSE-AF file."`
}

// messOut is what every command of the kind prints: YAML, or JSON.
type messOut struct {
	JSON bool `help:"Print the result as JSON."`
}

func (o messOut) show(a *app, v wire.Value) error {
	if o.JSON {
		return a.JSON(json.RawMessage(v.JSON()))
	}
	for line := range strings.Lines(string(yamltree.Append(nil, v))) {
		a.Print("%s", terminal.Clean(strings.TrimSuffix(line, "\n"))) // our writer quotes what a terminal would act on; this is the second lock
	}
	return nil
}

const messAPI = "mess/exchange/"

// errNoName is for a ref or an id that a script left empty: the path with it would be one of something else.
var errNoName = exit.FailHint(exit.Usage, errors.New("the ref or id is empty"), "agentmesh mess list")

// messCall makes one call to the owner's door of the exchange.
func messCall(ctx context.Context, a *app, method, path string, query url.Values, body any) (wire.Value, error) {
	if strings.HasSuffix(path, "/") || strings.Contains(path, "//") {
		return wire.Value{}, errNoName
	}
	o, err := a.owner(ctx)
	if err != nil {
		return wire.Value{}, err
	}
	raw, err := o.Call(ctx, method, messAPI+path, query, body)
	if err = errors.Join(err, o.Close()); err != nil {
		return wire.Value{}, err
	}
	return messAnswer(raw)
}

// messPost sends a block to the owner's door of the exchange.
func messPost(ctx context.Context, a *app, b thread.Block) (wire.Value, error) {
	raw, err := messOnce(ctx, a, http.MethodPost, messAPI+"messages", b.Tree().JSON(), nil)
	if err != nil {
		return wire.Value{}, err
	}
	return messAnswer(raw)
}

// messAnswer reads what the exchange answers.
func messAnswer(raw []byte) (wire.Value, error) {
	v, err := wire.ParseLimits(raw, 2*wire.MaxDepth, 1_000_000)
	if err != nil {
		return v, exit.Fail(exit.Unavailable, fmt.Errorf("read the answer: %w", err))
	}
	return v, nil
}

// messSend sends a block as the owner and prints the acks.
func messSend(ctx context.Context, a *app, out messOut, b thread.Block) error {
	v, err := messPost(ctx, a, b)
	if err != nil {
		return messMissing(ctx, a, b, err)
	}
	return out.show(a, v)
}

// messRead has a file read, or standard input where the name is "-". What is wrong with it is said with its name.
func messRead[T any](a *app, name string, parse func([]byte) (T, error)) (out T, err error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return out, exit.Fail(exit.Input, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, thread.MaxDocument+1))
	if err != nil {
		return out, exit.Fail(exit.Input, err)
	}
	if out, err = parse(data); err != nil {
		return out, exit.Fail(exit.Input, fmt.Errorf("%s: %w", inputName(name), reasonOf(err)))
	}
	return out, nil
}

// inputName is what a message calls a file.
func inputName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return terminal.Clean(name)
}

// reasonOf is a refusal without its code, which says nothing to who sent no message.
func reasonOf(err error) error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return errors.New(e.Message)
	}
	return err
}

type messRequestCmd struct {
	messOut
	Intent   string   `arg:"" optional:"" help:"What should be done."`
	File     string   `placeholder:"FILE" help:"A block in YAML or JSON; - reads standard input."`
	ID       string   `placeholder:"ID" help:"A name of yours for the request."`
	Context  []string `placeholder:"TEXT" sep:"none" help:"What whoever does it should know; may be repeated."`
	Requires []string `placeholder:"CAPABILITY" help:"What whoever does it must be able to; may be repeated."`
	Priority string   `placeholder:"PRIORITY" help:"background, normal, elevated or urgent."`
	Expires  string   `placeholder:"WHEN" help:"A time or a duration after which nobody needs it any more: 2h, 3d."`
	Confirm  bool     `help:"Have the executor ask before it acts."`
	Link     string   `placeholder:"LINK" help:"Send it to the foreign exchange behind a link."`
}

func (c *messRequestCmd) Run(ctx context.Context, a *app) error {
	if (c.Intent == "") == (c.File == "") {
		return exit.FailHint(exit.Usage, errors.New("needs a text or --file, and not both"), "agentmesh mess request 'what is in the fridge?'")
	}
	block := thread.Block{{Type: "request", Body: c.body()}}
	if c.File != "" {
		if c.body().Len() > 1 {
			return exit.Fail(exit.Usage, errors.New("with --file the whole request stands in the file: only --link and --json go with it"))
		}
		var err error
		if block, err = messRead(a, c.File, thread.Parse); err != nil {
			return err
		}
	}
	if c.Link != "" {
		return messRequestTo(ctx, a, c.messOut, block, c.Link)
	}
	return messSend(ctx, a, c.messOut, block)
}

func (c *messRequestCmd) body() wire.Value {
	body := wire.Obj(wire.TextField("intent", c.Intent))
	add := func(key string, v wire.Value, there bool) {
		if there {
			body = body.With(key, v)
		}
	}
	add("id", wire.Text(c.ID), c.ID != "")
	add("priority", wire.Text(c.Priority), c.Priority != "")
	add("requires", wire.Texts(c.Requires), len(c.Requires) > 0)
	add("context", wire.Texts(c.Context), len(c.Context) > 0)
	add("confirm_before", wire.Bool(true), c.Confirm)
	add("constraints", wire.Obj(wire.Member{Key: "timing", Value: wire.Obj(wire.TextField("expires", c.Expires))}), c.Expires != "")
	return body
}

type messStatusCmd struct {
	messOut
	Refs  []string `arg:"" optional:"" help:"Refs or names of requests; the newest changes without one."`
	Limit int      `default:"50" help:"At most so many, where none is named."`
}

func (c *messStatusCmd) Run(ctx context.Context, a *app) error {
	query := wire.Obj(wire.TextField("type", "status"))
	if len(c.Refs) > 0 {
		query = query.With("filter", wire.Obj(wire.Member{Key: "re", Value: wire.Texts(c.Refs)}))
		return messSend(ctx, a, c.messOut, thread.Block{{Type: "query", Body: query}})
	}
	if c.Limit < 1 {
		return exit.Fail(exit.Usage, errors.New("--limit must be 1 or more"))
	}
	v, err := messPost(ctx, a, thread.Block{{Type: "query", Body: query}})
	if err != nil {
		return err
	}
	v, more := firstRequests(v, c.Limit)
	if err := c.show(a, v); err != nil {
		return err
	}
	if more {
		a.Note("there are more threads: --limit says how many to list")
	}
	return nil
}

// firstRequests is an answer with no more than so many requests in each of its lists, and whether there were more.
func firstRequests(v wire.Value, limit int) (wire.Value, bool) {
	switch v.Kind() {
	case wire.Array:
		elems, more := slices.Collect(v.Elems()), false
		for i := range elems {
			var cut bool
			elems[i], cut = firstRequests(elems[i], limit)
			more = more || cut
		}
		return wire.Arr(elems...), more
	case wire.Object:
		members, more := slices.Clone(v.Members()), false
		for i, m := range members {
			if m.Key == "requests" && m.Value.Len() > limit {
				members[i].Value, more = wire.Arr(slices.Collect(m.Value.Elems())[:limit]...), true
				continue
			}
			var cut bool
			members[i].Value, cut = firstRequests(m.Value, limit)
			more = more || cut
		}
		return wire.Obj(members...), more
	}
	return v, false
}

type messListCmd struct {
	Status string `placeholder:"STATUS" help:"Only threads in this state."`
	Limit  int    `default:"50" help:"At most so many."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *messListCmd) Run(ctx context.Context, a *app) error {
	if c.Status != "" {
		if _, err := messCode(c.Status); err != nil {
			return err
		}
	}
	if c.Limit < 1 {
		return exit.Fail(exit.Usage, errors.New("--limit must be 1 or more"))
	}
	const page = 1000 // that the exchange gives at once
	list, v := []wire.Value{}, wire.Value{}
	for more := true; more && len(list) < c.Limit; {
		var err error
		query := params("status", c.Status, "limit", fmt.Sprint(min(c.Limit-len(list), page)), "after", v.GetStr("next"))
		if v, err = messCall(ctx, a, http.MethodGet, "requests", query, nil); err != nil {
			return err
		}
		threads, _ := v.Get("threads")
		list = slices.AppendSeq(list, threads.Elems())
		more = v.GetStr("next") != ""
	}
	if c.JSON {
		return a.JSON(json.RawMessage(v.With("threads", wire.Arr(list...)).JSON()))
	}
	rows := [][]string{{"REF", "STATUS", "PRIORITY", "FROM", "EXECUTOR", "INTENT"}}
	for _, t := range list {
		rows = append(rows, []string{
			t.GetStr("ref"), t.GetStr("status"), t.GetStr("priority"), terminal.Short(t.GetStr("requestor_id"), 24),
			terminal.Short(orDash(t.GetStr("executor_id")), 24), terminal.Short(t.GetStr("intent"), 60),
		})
	}
	a.List(rows, "no thread is there")
	if v.GetStr("next") != "" {
		a.Note("there are more threads: --limit says how many to list")
	}
	return nil
}

type messShowCmd struct {
	messOut
	Ref string `arg:"" help:"Ref of the thread."`
}

func (c *messShowCmd) Run(ctx context.Context, a *app) error {
	v, err := messCall(ctx, a, http.MethodGet, "requests/"+url.PathEscape(c.Ref), nil, nil)
	if err != nil {
		return err
	}
	if !c.JSON {
		a.Note("what others wrote is untrusted text")
	}
	return c.show(a, v)
}

// messStatus sets a status of a thread.
func messStatus(ctx context.Context, a *app, out messOut, ref, code string, more ...wire.Member) error {
	body := wire.Obj(append([]wire.Member{wire.TextField("re", ref), wire.TextField("code", code)}, more...)...)
	return messSend(ctx, a, out, thread.Block{{Type: "status", Body: body}})
}

type messClaimCmd struct {
	messOut
	Ref string `arg:"" help:"Ref of the thread."`
	ETA string `placeholder:"WHEN" help:"When it will be done: a time or a duration."`
}

func (c *messClaimCmd) Run(ctx context.Context, a *app) error {
	var more []wire.Member
	if c.ETA != "" {
		more = append(more, wire.TextField("eta", c.ETA))
	}
	return messStatus(ctx, a, c.messOut, c.Ref, "claimed", more...)
}

type messCancelCmd struct {
	messOut
	Refs   []string `arg:"" help:"Refs or names of requests."`
	Reason string   `placeholder:"TEXT" help:"Why."`
}

func (c *messCancelCmd) Run(ctx context.Context, a *app) error {
	body := wire.Obj(wire.Member{Key: "re", Value: wire.Texts(c.Refs)})
	if c.Reason != "" {
		body = body.With("reason", wire.Text(c.Reason))
	}
	return messSend(ctx, a, c.messOut, thread.Block{{Type: "cancel", Body: body}})
}

type messCapabilitiesCmd struct {
	messOut
	Tag []string `placeholder:"TAG" help:"Only what has one of these tags."`
	Add string   `placeholder:"FILE" help:"Add the YAML documents of this file to the catalogue, or the list that this command prints; - reads standard input."`
}

func (c *messCapabilitiesCmd) Run(ctx context.Context, a *app) error {
	if c.Add != "" {
		list, err := messRead(a, c.Add, exchange.ParseCapabilities)
		if err != nil {
			return err
		}
		if _, err := messCall(ctx, a, http.MethodPost, "capabilities", nil, list); err != nil {
			return err
		}
	}
	v, err := messCall(ctx, a, http.MethodGet, "capabilities", url.Values{"tag": c.Tag}, nil)
	if err != nil {
		return err
	}
	return c.show(a, v)
}
