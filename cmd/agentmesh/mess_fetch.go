package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess"
)

type messFetchCmd struct {
	Ref        string `arg:"" help:"Ref of the thread."`
	Attachment string `arg:"" help:"The name of a file of the thread (att-…), or an address that a message names: https, or content:// behind a link. Danger: its server learns that you look."`
	Out        string `short:"o" placeholder:"FILE" help:"Write the file there, - is standard output; without it, it is kept with the thread alone."`
	JSON       bool   `help:"Print the result as JSON."`
}

func (c *messFetchCmd) Run(ctx context.Context, a *app) (err error) {
	if c.Ref == "" || c.Attachment == "" {
		return errNoName
	}
	if c.Out == "-" && c.JSON {
		return fail(exitUsage, errors.New("--out - writes the file to standard output, where --json would go"))
	}
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
		return failHint(exitUsage, errors.New("a file of the thread is kept with it already: --out says where to write it"), "agentmesh mess fetch "+clean(c.Ref)+" "+clean(c.Attachment)+" --out photo.jpg")
	}
	if c.Out != "" {
		data, err := messAttachment(ctx, o, c.Ref, got.File)
		if err != nil {
			return err
		}
		got.Size = len(data)
		if c.Out == "-" {
			if got.File != c.Attachment {
				a.note("it is kept as %s, %d bytes", clean(got.File), got.Size)
			}
			return a.pour(data, "agentmesh mess fetch "+clean(c.Ref)+" "+clean(got.File)+" --out "+clean(got.File))
		}
		if err := os.WriteFile(c.Out, data, 0o600); err != nil {
			return fail(exitInput, err)
		}
	}
	if c.JSON {
		return a.json(got)
	}
	a.print("%s, %d bytes", clean(got.File), got.Size)
	return nil
}
