package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messCompleteCmd struct {
	Ref   string   `arg:"" help:"Ref of the thread."`
	Text  []string `arg:"" optional:"" help:"The result, as texts."`
	Photo []string `placeholder:"FILE" help:"Deliver a photo or another file of at most 10 MiB. Repeat for more."`
}

// Run uploads the files, then completes the thread with the files and the texts.
func (c *messCompleteCmd) Run(ctx context.Context, a *app) error {
	if slices.ContainsFunc(c.Text, func(text string) bool { return strings.TrimSpace(text) == "" }) {
		return exit.FailHint(exit.Usage, errors.New("the result is empty"), "for example: agentmesh mess complete REF 'all clean'")
	}
	for _, name := range c.Photo { // check all files before uploading the first
		if err := checkUpload(name); err != nil {
			return err
		}
	}
	var content []wire.Value
	for _, name := range c.Photo {
		entry, err := uploadFile(ctx, a, c.Ref, name)
		if err != nil {
			return err
		}
		content = append(content, entry)
	}
	for _, text := range c.Text {
		content = append(content, wire.Text(text))
	}
	if len(content) == 0 {
		content = append(content, wire.Obj(wire.Field("confirmation", wire.Bool(true))))
	}
	body := wire.Obj(wire.TextField("re", c.Ref), wire.Field("content", wire.Arr(content...)))
	return messSend(ctx, a, thread.Block{{Type: "response", Body: body}})
}

func checkUpload(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return exit.Fail(exit.Input, err)
	case !info.Mode().IsRegular():
		return exit.Fail(exit.Input, fmt.Errorf("%s is not a regular file", terminal.Clean(name)))
	case info.Size() == 0:
		return exit.Fail(exit.Input, fmt.Errorf("%s is empty", terminal.Clean(name)))
	case info.Size() > thread.MaxUpload:
		return exit.Fail(exit.Input, fmt.Errorf("%s is larger than the limit of %d MiB", terminal.Clean(name), thread.MaxUpload>>20))
	}
	return nil
}

// uploadFile attaches a file to the thread and returns the content entry that refers to it.
func uploadFile(ctx context.Context, a *app, ref, name string) (wire.Value, error) {
	if ref == "" {
		return wire.Value{}, errEmptyRef
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Input, err)
	}
	file := owner.Upload{Header: http.Header{"Content-Type": {"application/octet-stream"}}, Data: data}
	raw, err := withResult(ctx, a, func(o *daemon.Client) ([]byte, error) {
		return o.Call(ctx, http.MethodPost, attachmentPath(ref, filepath.Base(name)), nil, file)
	})
	if err != nil {
		return wire.Value{}, err
	}
	return wire.Parse(raw)
}

// attachmentPath returns the path of an attachment of a thread in the owner API.
func attachmentPath(ref, name string) string {
	return messAPI + "requests/" + url.PathEscape(ref) + "/attachments/" + url.PathEscape(name)
}
