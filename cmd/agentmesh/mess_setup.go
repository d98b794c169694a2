package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messExecutorsCmd struct {
	Add        string   `placeholder:"ID" help:"Add an executor, or change the given properties of an existing one."`
	Title      *string  `placeholder:"TEXT" help:"With --add: the executor's displayed name."`
	Capability []string `placeholder:"CAPABILITY" help:"With --add: a capability. Repeat for more. The new capabilities replace the old ones."`
}

func (c *messExecutorsCmd) Run(ctx context.Context, a *app) error {
	if c.Add == "" && (c.Title != nil || c.Capability != nil) {
		return exit.FailHint(exit.Usage, errors.New("--title and --capability need --add ID"), "for example: agentmesh mess executors --add roomba --title 'Kitchen Roomba'")
	}
	if c.Add != "" {
		if err := c.add(ctx, a); err != nil {
			return err
		}
	}
	return a.showMess(messCall(ctx, a, http.MethodGet, "executors", nil, nil))
}

// add changes the executor, or adds it if it does not exist.
func (c *messExecutorsCmd) add(ctx context.Context, a *app) error {
	change := wire.Obj()
	if c.Title != nil {
		change = change.With("display_name", wire.Text(*c.Title))
	}
	// --capability '' removes all capabilities
	capabilities := slices.DeleteFunc(slices.Clone(c.Capability), func(id string) bool { return id == "" })
	if c.Capability != nil {
		change = change.With("capabilities", wire.Texts(capabilities))
	}
	v, err := messCall(ctx, a, http.MethodGet, "executors", nil, nil)
	if err != nil {
		return err
	}
	list, _ := v.Get("executors")
	for e := range list.Elems() {
		if e.GetStr("id") == c.Add {
			_, err := messCall(ctx, a, http.MethodPatch, "executors/"+url.PathEscape(c.Add), nil, change)
			return err
		}
	}
	e := wire.Obj(wire.TextField("id", c.Add), wire.Field("capabilities", wire.Texts(capabilities)))
	if c.Title != nil && *c.Title != "" {
		e = e.With("name", wire.Text(*c.Title))
	}
	block := thread.Block{{Type: "config", Body: wire.Obj(wire.Field("executor", e))}}
	_, err = messPost(ctx, a, block)
	return err
}
