package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

type calendarCmd struct {
	Show    calendarShowCmd    `cmd:"" default:"withargs" help:"Show busy times, agreed events, and problems in the calendars."`
	Free    calendarFreeCmd    `cmd:"" help:"List free times."`
	Propose calendarProposeCmd `cmd:"" help:"Propose an event to an agent at times when you are free."`
	Cancel  calendarCancelCmd  `cmd:"" help:"Cancel an agreed event and remove it from both calendars."`
}

type calendarShowCmd struct{}

func (c *calendarShowCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, daemon.ShowCalendar.Call(), func(v daemon.CalendarView) {
		rows := [][]string{{"zone", v.Zone}}
		for _, b := range v.Busy {
			rows = append(rows, []string{"busy", formatSpan(b.Start, b.End)})
		}
		for _, e := range v.Agreed {
			start := e.Start.In(parseZone(v.Zone))
			rows = append(rows, []string{"agreed", formatSpan(start, start.Add(e.Duration)) + "  " + e.Title + " with " + e.With + "  " + e.UID})
		}
		a.Table(rows)
		for _, p := range v.Problems {
			a.Note("%s", terminal.Clean(strings.Join(strings.Fields(p.Source+" "+p.UID+": "+p.Text), " ")))
		}
	})
}

// parseZone returns UTC if this machine does not know the zone.
func parseZone(name string) *time.Location {
	loc, err := zone.Load(name)
	if err != nil {
		return time.UTC
	}
	return loc
}

func formatSpan(from, to time.Time) string {
	return from.Format("Mon 2 Jan 15:04") + " - " + to.Format("Mon 2 Jan 15:04")
}

// freeFlags say which free times to find.
type freeFlags struct {
	Around   string `placeholder:"TIME" help:"Search around this time, such as 2026-02-21T10:00:00-08:00 (default: now)."`
	Duration string `default:"30m" help:"Length of the event."`
}

// call returns the call that finds the free times.
func (f freeFlags) call() owner.Call[daemon.CalendarFree] {
	return daemon.ListFreeTimes.Call().WithQuery(owner.Params("around", f.Around, "duration", f.Duration))
}

type calendarFreeCmd struct{ freeFlags }

func (c *calendarFreeCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, c.call(), func(v daemon.CalendarFree) {
		if len(v.Free) == 0 {
			a.Note("no free time of %s within two weeks of %s", terminal.Clean(c.Duration), terminal.Clean(cmp.Or(c.Around, "now")))
		}
		for _, t := range v.Free {
			a.Print("%s", t.Format(time.RFC3339))
		}
	})
}

type calendarProposeCmd struct {
	Agent string `arg:"" help:"Agent id or alias."`
	Title string `arg:"" help:"Title of the event."`
	freeFlags
	Location string `placeholder:"TEXT" help:"Place of the event."`
}

func (c *calendarProposeCmd) Run(ctx context.Context, a *app) error {
	free, err := fetch(ctx, a, c.call())
	if err != nil {
		return err
	}
	if len(free.Free) == 0 {
		return exit.Fail(exit.No, fmt.Errorf("no free time of %s within two weeks of %s", c.Duration, cmp.Or(c.Around, "now")))
	}
	var times []string
	for _, t := range free.Free {
		times = append(times, t.Format(time.RFC3339))
	}
	event := wire.Obj(wire.TextField("title", c.Title), wire.Field("proposed_times", wire.Texts(times)), wire.TextField("duration", c.Duration))
	event = event.WithOptional("location", c.Location)
	payload := wire.Obj(wire.TextField("action", "propose"), wire.Field("event", event))
	send := sendCmd{To: c.Agent, Payload: string(payload.JSON()), sendFlags: sendFlags{Intent: string(wire.Schedule), Wait: true}}
	return send.Run(ctx, a)
}

type calendarCancelCmd struct {
	Event  string `arg:"" help:"Id of the event, or the beginning of the id. agentmesh calendar lists the ids."`
	Reason string `placeholder:"TEXT" help:"Reason, for the other side."`
	Wait   bool   `help:"Wait until the other side has the message."`
}

func (c *calendarCancelCmd) Run(ctx context.Context, a *app) error {
	return a.send(ctx, sendFlags{Wait: c.Wait}, func(waitSeconds int) owner.Call[owner.Sent] {
		return owner.CancelEvent.With(owner.Cancellation{Event: c.Event, Reason: c.Reason, WaitSeconds: waitSeconds})
	})
}
