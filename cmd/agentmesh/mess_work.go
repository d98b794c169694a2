package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messCompleteCmd struct {
	messOut
	Ref   string   `arg:"" help:"Ref of the thread."`
	Text  []string `arg:"" optional:"" help:"The result, in words."`
	Photo []string `placeholder:"FILE" help:"A photo or another file to deliver; at most 10 MiB; may be repeated."`
}

// Run uploads the files, then completes the thread with all of it.
func (c *messCompleteCmd) Run(ctx context.Context, a *app) error {
	var content []wire.Value
	for _, name := range c.Photo {
		entry, err := messUpload(ctx, a, c.Ref, name)
		if err != nil {
			return err
		}
		content = append(content, entry)
	}
	for _, text := range c.Text {
		content = append(content, wire.Text(text))
	}
	if len(content) == 0 {
		content = append(content, wire.Obj(wire.Member{Key: "confirmation", Value: wire.Bool(true)}))
	}
	body := wire.Obj(field("re", c.Ref), wire.Member{Key: "content", Value: wire.Arr(content...)})
	return messSend(ctx, a, c.messOut, mess.Block{{Type: "response", Body: body}})
}

// messUpload hands a file to the thread and returns the content entry that shows it.
func messUpload(ctx context.Context, a *app, ref, name string) (wire.Value, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return wire.Value{}, fail(exitInput, err)
	}
	o, err := a.owner(ctx)
	if err != nil {
		return wire.Value{}, err
	}
	target := "http://localhost/owner/" + messAPI + "requests/" + url.PathEscape(ref) + "/attachments/" + url.PathEscape(filepath.Base(name))
	raw, err := o.raw(ctx, http.MethodPost, target, data)
	if err = errors.Join(err, o.close()); err != nil {
		return wire.Value{}, err
	}
	return wire.Parse(raw)
}

// raw sends bytes that are no JSON.
func (o *owner) raw(ctx context.Context, method, target string, data []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	return o.bytes(req)
}

// bytes makes a call and returns the body of the answer as it came.
func (o *owner) bytes(req *http.Request) ([]byte, error) {
	resp, err := o.http.Do(req)
	if err != nil {
		return nil, fail(exitUnavailable, fmt.Errorf("ask the running agentmesh: %w", err))
	}
	if resp.StatusCode >= 300 {
		return nil, refusal(resp)
	}
	return client.ReadAll(resp, maxOwnerAnswer)
}

type messImportCmd struct {
	Path string `arg:"" help:"A thread file, or the directory that holds exchange/."`
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
		return err
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
	switch {
	case last.Error != "":
		return errors.Join(fail(exitInput, errors.New(last.Error)), o.close())
	case !last.Ended:
		return errors.Join(fail(exitUnavailable, errors.New("the import was cut short")), o.close())
	case c.JSON:
		return errors.Join(a.json(last), o.close())
	}
	a.print("%d threads imported", last.Imported)
	return o.close()
}

type messExportCmd struct {
	Ref  string `arg:"" help:"Ref of the thread."`
	Dir  string `placeholder:"DIR" help:"Write the files of version 2 below this directory."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *messExportCmd) Run(ctx context.Context, a *app) error {
	format := "v1"
	if c.Dir != "" {
		format = "v2"
	}
	v, err := messCall(ctx, a, http.MethodGet, "export/"+url.PathEscape(c.Ref), params("format", format), nil)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.json(json.RawMessage(v.JSON()))
	}
	if c.Dir == "" {
		fmt.Fprint(a.out, v.GetStr("content")) // our own writer quotes what a terminal would act on
		return nil
	}
	files, _ := v.Get("files")
	names := []string{}
	for f := range files.Elems() {
		name := filepath.Join(c.Dir, filepath.Base(f.GetStr("name")))
		if err := os.WriteFile(name, []byte(f.GetStr("content")), 0o600); err != nil {
			return fail(exitInput, err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		a.print("%s", clean(name))
	}
	return nil
}

type messFetchCmd struct {
	Ref        string `arg:"" help:"Ref of the thread."`
	Attachment string `arg:"" help:"The name of a file of the thread (att-…), or an https address that a message names. Danger: its server learns that you look."`
	Out        string `short:"o" placeholder:"FILE" help:"Write the file there; without it, it is kept with the thread alone."`
	JSON       bool   `help:"Print the result as JSON."`
}

func (c *messFetchCmd) Run(ctx context.Context, a *app) (err error) {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	got := mess.Fetched{File: c.Attachment}
	if strings.Contains(c.Attachment, "://") {
		raw, err := o.call(ctx, http.MethodPost, "mess/fetch/"+url.PathEscape(c.Ref), nil, mess.FetchCall{URI: c.Attachment})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			return fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
		}
	} else if c.Out == "" {
		return failHint(exitUsage, errors.New("the file is with the thread already: --out says where to write it"), "agentmesh mess fetch "+clean(c.Ref)+" "+clean(c.Attachment)+" --out photo.jpg")
	}
	if c.Out != "" {
		data, err := o.raw(ctx, http.MethodGet, "http://localhost/owner/"+messAPI+"requests/"+url.PathEscape(c.Ref)+"/attachments/"+url.PathEscape(got.File), nil)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.Out, data, 0o600); err != nil {
			return fail(exitInput, err)
		}
		got.Size = len(data)
	}
	if c.JSON {
		return a.json(got)
	}
	a.print("%s, %d bytes", clean(got.File), got.Size)
	return nil
}
