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

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/owner"
)

type messImportCmd struct {
	Path string `arg:"" help:"A thread file, the directory that contains exchange/, exchange/ itself, or a directory below exchange/."`
}

func (c *messImportCmd) Run(ctx context.Context, a *app) error {
	path, err := filepath.Abs(c.Path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return exit.Fail(exit.Input, err)
	}
	return a.withClient(ctx, func(o *daemon.Client) error {
		resp, err := o.Do(ctx, http.MethodPost, "mess/import", nil, folder.ImportCall{Path: path})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var progress folder.ImportProgress
		for dec := json.NewDecoder(resp.Body); dec.More(); {
			if err := dec.Decode(&progress); err != nil {
				return exit.Fail(exit.Unavailable, err)
			}
			if progress.All > 0 && !progress.Ended {
				a.Note("%d of %d thread files read", progress.Done, progress.All)
			}
		}
		return c.report(a, progress)
	})
}

// report prints the result of an import. It returns an error if the import was interrupted or failed, or if it could
// not read some files.
func (c *messImportCmd) report(a *app, progress folder.ImportProgress) error {
	switch {
	case !progress.Ended:
		return exit.Fail(exit.Unavailable, errors.New("the import was interrupted; run it again"))
	case progress.Error != "":
		return exit.Fail(exit.Input, fmt.Errorf("%s: %s", terminal.Clean(c.Path), terminal.Clean(progress.Error)))
	}
	for _, reason := range progress.Reasons {
		a.Note("not imported: %s", terminal.Clean(reason))
	}
	err := a.report(progress, func() {
		text := countText(progress.Imported.Threads, "thread") + " imported"
		if progress.Existing > 0 {
			text += fmt.Sprintf(", %d already here", progress.Existing)
		}
		a.Print("%s", text)
	})
	if err == nil && progress.Unread > 0 {
		return exit.Fail(exit.Input, errors.New(countText(progress.Unread, "file")+" could not be read"))
	}
	return err
}

// countText returns a number with its noun, such as "1 file" or "2 files".
func countText(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

type messExportCmd struct {
	Ref string `arg:"" help:"Ref of the thread."`
	Dir string `placeholder:"DIR" help:"Write the thread with its attachments below this directory, as exchange/state=…/REF/. The directory is created if necessary."`
}

func (c *messExportCmd) Run(ctx context.Context, a *app) error {
	if c.Dir != "" {
		return c.exportDirectory(ctx, a)
	}
	v, err := messCall(ctx, a, http.MethodGet, "export/"+url.PathEscape(c.Ref), owner.Params("format", "v1"), nil)
	if err != nil {
		return err
	}
	if a.globals.JSON {
		return a.JSON(json.RawMessage(v.JSON()))
	}
	_, err = fmt.Fprint(a, v.GetStr("content")) // the YAML writer has quoted unsafe characters
	return err
}

type exportReport struct {
	Ref   string   `json:"ref"`
	Files []string `json:"files"`
}

// exportDirectory writes the files in this process, so that they belong to the user who runs the command.
func (c *messExportCmd) exportDirectory(ctx context.Context, a *app) error {
	v, err := messCall(ctx, a, http.MethodGet, "export/"+url.PathEscape(c.Ref), owner.Params("format", "v2"), nil)
	if err != nil {
		return err
	}
	var export folder.Export
	if err := json.Unmarshal(v.JSON(), &export); err != nil {
		return exit.Fail(exit.Unavailable, fmt.Errorf("read the answer: %w", err))
	}
	names, err := withResult(ctx, a, func(o *daemon.Client) ([]string, error) {
		return export.Write(c.Dir, func(name string) ([]byte, error) { return fetchAttachment(ctx, o, export.Ref, name) })
	})
	if err != nil {
		if _, hasCode := errors.AsType[*exit.Error](err); hasCode {
			return err
		}
		return exit.Fail(exit.Input, err)
	}
	slices.Sort(names)
	return a.report(exportReport{export.Ref, names}, func() {
		for _, name := range names {
			a.Print("%s", terminal.Clean(name))
		}
	})
}

func fetchAttachment(ctx context.Context, o *daemon.Client, ref, name string) ([]byte, error) {
	return o.Call(ctx, http.MethodGet, attachmentPath(ref, name), nil, nil)
}
