package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

type messExecutorsCmd struct {
	messOut
	Add        string   `placeholder:"ID" help:"Set up an executor, or change one: of that, only what is given."`
	Title      *string  `placeholder:"TEXT" help:"With --add: what people call it."`
	Capability []string `placeholder:"CAPABILITY" help:"With --add: what it can do, instead of what it could; may be repeated."`
	Schedule   *string  `placeholder:"CRON" help:"With --add: when it is available, as five fields; '' is always."`
	Zone       *string  `placeholder:"ZONE" help:"With --add: the time zone of the schedule, such as Europe/Berlin."`
}

func (c *messExecutorsCmd) Run(ctx context.Context, a *app) error {
	if c.Add == "" && (c.Title != nil || c.Capability != nil || c.Schedule != nil || c.Zone != nil) {
		return exit.FailHint(exit.Usage, errors.New("--title, --capability, --schedule and --zone need --add ID"), "agentmesh mess executors --add roomba --title 'Kitchen Roomba'")
	}
	if c.Add != "" {
		if err := c.add(ctx, a); err != nil {
			return err
		}
	}
	v, err := messCall(ctx, a, http.MethodGet, "executors", nil, nil)
	if err != nil {
		return err
	}
	return c.show(a, v)
}

// add changes the executor, and sets it up where it is not there.
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
		return exit.FailHint(exit.Usage, errors.New("--zone needs --schedule"), "agentmesh mess executors --add roomba --schedule '0 9 * * 1-5' --zone Europe/Berlin")
	}
	e := wire.Obj(wire.TextField("id", c.Add), wire.Member{Key: "capabilities", Value: wire.Texts(capabilities)})
	if c.Title != nil && *c.Title != "" {
		e = e.With("name", wire.Text(*c.Title))
	}
	if c.Schedule != nil && *c.Schedule != "" {
		e = e.With("availability", wire.Text("schedule")).With("schedule", wire.Text(*c.Schedule))
	}
	if c.Zone != nil && *c.Zone != "" {
		e = e.With("timezone", wire.Text(*c.Zone))
	}
	block := thread.Block{{Type: "config", Body: wire.Obj(wire.Member{Key: "executor", Value: e})}}
	_, err = messPost(ctx, a, block)
	return err
}

type messRouteCmd struct {
	messOut
	File string `placeholder:"FILE" help:"Set the rules of this file: a config block, the list of rules alone, or what this command prints; - reads standard input."`
}

func (c *messRouteCmd) Run(ctx context.Context, a *app) error {
	if c.File != "" {
		block, err := messRead(a, c.File, thread.ParseRules)
		if err != nil {
			return err
		}
		if _, err := messPost(ctx, a, block); err != nil {
			return err
		}
	}
	v, err := messCall(ctx, a, http.MethodGet, "routing", nil, nil)
	if err != nil {
		return err
	}
	if c.File != "" {
		if err := messNobody(ctx, a, v); err != nil {
			return err
		}
	}
	return c.show(a, v)
}

// messNobody says which executors the rules prefer that are not there: they may come, or their names may be misspelt.
func messNobody(ctx context.Context, a *app, routing wire.Value) error {
	v, err := messCall(ctx, a, http.MethodGet, "executors", nil, nil)
	if err != nil {
		return err
	}
	var ids []string
	list, _ := v.Get("executors")
	for e := range list.Elems() {
		ids = append(ids, e.GetStr("id"))
	}
	told := map[string]bool{}
	rules, _ := routing.Get("rules")
	for rule := range rules.Elems() {
		for _, key := range []string{"prefer", "default"} {
			prefer, _ := rule.Get(key)
			for id := range prefer.Elems() {
				name, _ := id.Str()
				if told[name] || slices.Contains(ids, name) {
					continue
				}
				told[name] = true
				near := ""
				if meant := wire.Near(name, ids); meant != "" {
					near = fmt.Sprintf(", did you mean %s?", terminal.Clean(meant))
				}
				a.Note("no executor %s is registered%s", terminal.Clean(name), near)
			}
		}
	}
	return nil
}
