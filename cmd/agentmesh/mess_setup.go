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
	Schedule   *string  `placeholder:"CRON" help:"With --add: the times when the executor is available, in cron's five fields; '' means always."`
	Zone       *string  `placeholder:"ZONE" help:"With --add: the time zone of the schedule, such as Europe/Berlin."`
}

func (c *messExecutorsCmd) Run(ctx context.Context, a *app) error {
	if c.Add == "" && (c.Title != nil || c.Capability != nil || c.Schedule != nil || c.Zone != nil) {
		return exit.FailHint(exit.Usage, errors.New("--title, --capability, --schedule and --zone need --add ID"), "for example: agentmesh mess executors --add roomba --title 'Kitchen Roomba'")
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
	for _, m := range []struct {
		key  string
		text *string
	}{{"display_name", c.Title}, {"schedule", c.Schedule}, {"timezone", c.Zone}} {
		if m.text != nil {
			change = change.With(m.key, wire.Text(*m.text))
		}
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
	if c.Zone != nil && *c.Zone != "" && (c.Schedule == nil || *c.Schedule == "") {
		return exit.FailHint(exit.Usage, errors.New("--zone needs --schedule"), "for example: agentmesh mess executors --add roomba --schedule '0 9 * * 1-5' --zone Europe/Berlin")
	}
	e := wire.Obj(wire.TextField("id", c.Add), wire.Field("capabilities", wire.Texts(capabilities)))
	if c.Title != nil && *c.Title != "" {
		e = e.With("name", wire.Text(*c.Title))
	}
	if c.Schedule != nil && *c.Schedule != "" {
		e = e.With("availability", wire.Text("schedule")).With("schedule", wire.Text(*c.Schedule))
	}
	if c.Zone != nil && *c.Zone != "" {
		e = e.With("timezone", wire.Text(*c.Zone))
	}
	block := thread.Block{{Type: "config", Body: wire.Obj(wire.Field("executor", e))}}
	_, err = messPost(ctx, a, block)
	return err
}
