package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

type messImportCmd struct {
	Path string `arg:"" help:"A thread file, or the directory that holds exchange/, or one below that."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *messImportCmd) Run(ctx context.Context, a *app) error {
	info, err := os.Stat(c.Path)
	if err != nil {
		return fail(exitInput, err)
	}
	if info.IsDir() {
		return c.directory(ctx, a)
	}
	if info.Size() > thread.MaxDocument {
		return fail(exitInput, fmt.Errorf("%s is larger than 2 MiB", clean(c.Path)))
	}
	data, err := os.ReadFile(c.Path)
	if err != nil {
		return fail(exitInput, err)
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	raw, err := o.raw(ctx, http.MethodPost, "http://localhost/owner/"+messAPI+"import", data)
	if err = errors.Join(err, o.close()); err != nil {
		return fail(exitCode(err), fmt.Errorf("%s: %w", clean(c.Path), err))
	}
	if c.JSON {
		return a.json(json.RawMessage(raw))
	}
	a.print("1 thread imported")
	return nil
}

// directory has the running process read the directory, with a line of progress now and then.
func (c *messImportCmd) directory(ctx context.Context, a *app) error {
	dir, err := filepath.Abs(c.Path)
	if err != nil {
		return err
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	resp, err := o.do(ctx, http.MethodPost, "mess/import", nil, mess.ImportCall{Dir: dir})
	if err != nil {
		return errors.Join(err, o.close())
	}
	defer resp.Body.Close()
	var last mess.ImportProgress
	for dec := json.NewDecoder(resp.Body); dec.More(); {
		if err := dec.Decode(&last); err != nil {
			return errors.Join(fail(exitUnavailable, err), o.close())
		}
		if last.All > 0 && !last.Ended {
			a.note("%d of %d thread files read", last.Done, last.All)
		}
	}
	return errors.Join(c.ended(a, last), o.close())
}

// ended says what came of it. Files that could not be read are a failure, and the others are imported all the same.
func (c *messImportCmd) ended(a *app, last mess.ImportProgress) error {
	switch {
	case !last.Ended:
		return fail(exitUnavailable, errors.New("the import was cut short"))
	case last.Error != "":
		return fail(exitInput, fmt.Errorf("%s: %s", clean(c.Path), clean(last.Error)))
	}
	for _, reason := range last.Reasons {
		a.note("left alone: %s", clean(reason))
	}
	if c.JSON {
		if err := a.json(last); err != nil {
			return err
		}
	} else {
		text := numberOf(last.Imported.Imported, "thread") + " imported"
		if last.Here > 0 {
			text += fmt.Sprintf(", %d here already", last.Here)
		}
		a.print("%s", text)
	}
	if last.Left > 0 {
		return fail(exitInput, errors.New(numberOf(last.Left, "file")+" could not be read"))
	}
	return nil
}

// numberOf is a number of things.
func numberOf(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

type messExportCmd struct {
	Ref  string `arg:"" help:"Ref of the thread."`
	Dir  string `placeholder:"DIR" help:"Write the thread with its attachments below this directory, as exchange/state=…/REF/; it is made where it is not there."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *messExportCmd) Run(ctx context.Context, a *app) error {
	if c.Dir != "" {
		return c.directory(ctx, a)
	}
	v, err := messCall(ctx, a, http.MethodGet, "export/"+url.PathEscape(c.Ref), params("format", "v1"), nil)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.json(json.RawMessage(v.JSON()))
	}
	fmt.Fprint(a.out, v.GetStr("content")) // our own writer quotes what a terminal would act on
	return nil
}

// exported is the answer of --json.
type exported struct {
	Ref   string   `json:"ref"`
	Files []string `json:"files"`
}

// directory writes the files here, so that they belong to who asks for them.
func (c *messExportCmd) directory(ctx context.Context, a *app) (err error) {
	v, err := messCall(ctx, a, http.MethodGet, "export/"+url.PathEscape(c.Ref), params("format", "v2"), nil)
	if err != nil {
		return err
	}
	var thread mess.Export
	if err := json.Unmarshal(v.JSON(), &thread); err != nil {
		return fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	names, err := thread.Write(c.Dir, func(name string) ([]byte, error) { return messAttachment(ctx, o, thread.Ref, name) })
	if err != nil {
		if _, told := errors.AsType[*failure](err); told {
			return err
		}
		return fail(exitInput, err)
	}
	slices.Sort(names)
	if c.JSON {
		return a.json(exported{thread.Ref, names})
	}
	for _, name := range names {
		a.print("%s", clean(name))
	}
	return nil
}

// messAttachment gets a file of a thread.
func messAttachment(ctx context.Context, o *ownerClient, ref, name string) ([]byte, error) {
	return o.raw(ctx, http.MethodGet, "http://localhost/owner/"+messAPI+"requests/"+url.PathEscape(ref)+"/attachments/"+url.PathEscape(name), nil)
}
