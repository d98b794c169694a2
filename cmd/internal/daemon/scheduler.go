package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// newScheduler makes the scheduler for the owner's calendars. Without a calendar it has the agreed events only.
func (p *Process) newScheduler() (*calendar.Scheduler, error) {
	c := p.cfg.Calendar
	bookConfig := calendar.BookConfig{Records: p.store.Records(), Failed: p.eventNotWritten, Logger: p.log}
	var sources []calendar.Source
	for _, f := range c.Files {
		sources = append(sources, calendar.Files{Path: p.src.ResolvePath(f)})
	}
	if c.URL != "" {
		password, err := p.src.Secret("calendar", c.PasswordFile)
		if err != nil {
			return nil, exit.Fail(exit.Config, err)
		}
		dav, err := calendar.NewCalDAV(c.URL, c.User, password, ownerTransport{p}.RoundTrip)
		if err != nil {
			return nil, exit.Fail(exit.Config, err)
		}
		sources = append(sources, dav)
		bookConfig.Writer = dav
	}
	if c.Folder != "" {
		bookConfig.Writer = calendar.Folder{Path: p.src.ResolvePath(c.Folder)}
	}
	book := calendar.NewBook(bookConfig)
	hours, err := calendar.ParseHours(c.Hours)
	if err != nil {
		return nil, exit.Fail(exit.Config, err)
	}
	planner, err := calendar.NewPlanner(calendar.Config{
		Sources: append(sources, book), Zone: zone.Owner(), Hours: hours, Buffer: c.Buffer, Notice: c.Notice, Horizon: c.Horizon,
	})
	if err != nil {
		return nil, exit.Fail(exit.Config, err)
	}
	p.store.OnCommit(planner.OnCommit, calendar.Namespace)
	return &calendar.Scheduler{Planner: planner, Book: book, Limits: calendar.Limits{
		Accept: c.Accept, Strangers: c.Strangers, MaxDuration: c.MaxDuration, PerDay: c.PerDay,
	}}, nil
}

// eventNotWritten notifies the owner that an agreed event was not written to the calendar, or that a cancelled event
// was not removed from it. The [calendar.Book] tries again.
func (p *Process) eventNotWritten(ctx context.Context, e calendar.Event, isCancelled bool, _ error) {
	title := "an agreed event could not be written to the calendar"
	if isCancelled {
		title = "a cancelled event could not be removed from the calendar"
	}
	p.notifyOwner(ctx, notify.Notice{
		Kind: "calendar", Title: title, At: time.Now(),
		Text: e.Start.Format("Mon 2 Jan 2006 15:04 -07:00") + "; it is tried again",
	})
}

// withCalendar puts the route of the calendar behind the hooks that name its intent, and before all others (AM-91). It
// returns the hooks if s is nil.
func withCalendar(s *calendar.Scheduler, hooks []node.Route) []node.Route {
	if s == nil {
		return hooks
	}
	route := node.Route{Pattern: string(wire.Schedule), Name: "calendar", Handler: hook.Calendar{Scheduler: s}, Repeatable: true, Replies: true, Duty: "calendar"}
	for i, h := range hooks {
		if h.Pattern != route.Pattern {
			return slices.Insert(slices.Clone(hooks), i, route)
		}
	}
	return append(hooks, route)
}
