package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
)

type messFetchCmd struct {
	Ref        string `arg:"" help:"Ref of the thread."`
	Attachment string `arg:"" help:"Name of a file of the thread (att-…), or an address in a message: https://…, or content://… for a thread behind a link. Danger: the server at the address learns that you fetch the file."`
	Out        string `short:"o" placeholder:"FILE" help:"Write the file to FILE, or to standard output for -. Without it, the file is only kept with the thread."`
}

func (c *messFetchCmd) Run(ctx context.Context, a *app) error {
	if c.Ref == "" || c.Attachment == "" {
		return errEmptyRef
	}
	if c.Out == "-" && a.globals.JSON {
		return exit.Fail(exit.Usage, errors.New("--out - and --json both write to standard output: use one of them"))
	}
	return a.withClient(ctx, func(o *daemon.Client) error { return c.fetch(ctx, a, o) })
}

// fetch makes the exchange fetch the attachment if it is an address, and writes the file to --out.
func (c *messFetchCmd) fetch(ctx context.Context, a *app, o *daemon.Client) (err error) {
	got := mess.Fetched{File: c.Attachment}
	if strings.Contains(c.Attachment, "://") {
		if got, err = daemon.Fetch(ctx, o, mess.FetchReference.With(mess.FetchCall{URI: c.Attachment}, c.Ref)); err != nil {
			return err
		}
	} else if c.Out == "" {
		return exit.FailHint(exit.Usage, errors.New("the file is already kept with the thread: name a file to write with --out"), "for example: agentmesh mess fetch "+terminal.Clean(c.Ref)+" "+terminal.Clean(c.Attachment)+" --out photo.jpg")
	}
	if c.Out != "" {
		data, err := fetchAttachment(ctx, o, c.Ref, got.File)
		if err != nil {
			return err
		}
		got.Size = len(data)
		if c.Out == "-" {
			if got.File != c.Attachment {
				a.Note("kept with the thread as %s, %d bytes", terminal.Clean(got.File), got.Size)
			}
			return a.WriteFile(data, "agentmesh mess fetch "+terminal.Clean(c.Ref)+" "+terminal.Clean(got.File)+" --out "+terminal.Clean(got.File))
		}
		if err := os.WriteFile(c.Out, data, 0o600); err != nil {
			return exit.Fail(exit.Input, err)
		}
	}
	return a.report(got, func() { a.Print("%s, %d bytes", terminal.Clean(got.File), got.Size) })
}
