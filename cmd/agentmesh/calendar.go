package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// calendarCmd shows what the node knows about the owner's time, and proposes events out of it.
type calendarCmd struct {
	Show    calendarShowCmd    `cmd:"" default:"withargs" help:"Read the calendars and show busy times, agreed events and what is odd."`
	Free    calendarFreeCmd    `cmd:"" help:"Show free times."`
	Propose calendarProposeCmd `cmd:"" help:"Propose an event to an agent at free times of yours."`
	Cancel  calendarCancelCmd  `cmd:"" help:"Cancel an agreed event: it leaves both calendars."`
}

const calendarSpan = 14 * 24 * time.Hour // what is shown

// calendarBusy is a busy time as the owner sees it.
type calendarBusy struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// calendarView is what GET /owner/calendar answers.
type calendarView struct {
	Zone     string             `json:"zone"`
	Busy     []calendarBusy     `json:"busy"` // of the next 14 days
	Agreed   []calendar.Event   `json:"agreed"`
	Problems []calendar.Problem `json:"problems"`
}

// calendarFree is what GET /owner/calendar/free answers.
type calendarFree struct {
	Duration string      `json:"duration"`
	Free     []time.Time `json:"free"`
}

// calendarOperations returns the calendar's part of the owner API; s is nil if there is no calendar.
func (p *process) calendarOperations(s *calendar.Scheduler) []owner.Operation {
	look := func(c echo.Context) (calendar.View, error) {
		if s == nil {
			return calendar.View{}, ownerFault(http.StatusNotFound, "no calendar is configured; set calendar.files or calendar.url")
		}
		view, err := s.Planner.Look(c.Request().Context(), "", time.Now())
		if err != nil {
			return view, ownerFault(http.StatusConflict, err.Error())
		}
		return view, nil
	}
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/calendar", owner.Read, func(c echo.Context) error {
			view, err := look(c)
			if err != nil {
				return err
			}
			agreed, err := s.Book.Events(c.Request().Context(), time.Now())
			if err != nil {
				return err
			}
			out := calendarView{Zone: s.Planner.Zone().String(), Busy: []calendarBusy{}, Agreed: agreed, Problems: view.Problems}
			for _, b := range view.Busy() {
				if now := time.Now(); b.End.After(now) && b.Start.Before(now.Add(calendarSpan)) {
					out.Busy = append(out.Busy, calendarBusy{b.Start.In(s.Planner.Zone()), b.End.In(s.Planner.Zone())})
				}
			}
			return httpapi.JSON(c, http.StatusOK, out)
		}),
		owner.Raw(http.MethodGet, "/calendar/free", owner.Read, func(c echo.Context) error {
			near, length, err := freeParams(c)
			if err != nil {
				return err
			}
			view, err := look(c)
			if err != nil {
				return err
			}
			out := calendarFree{Duration: length.String(), Free: []time.Time{}}
			for _, t := range view.Near(near, length, 3) {
				out.Free = append(out.Free, t.In(s.Planner.Zone()))
			}
			return httpapi.JSON(c, http.StatusOK, out)
		}),
	}
}

// freeParams reads around= (RFC 3339, default now) and duration= (default 30m).
func freeParams(c echo.Context) (near time.Time, length time.Duration, err error) {
	near, length = time.Now(), 30*time.Minute
	if text := c.QueryParam("around"); text != "" {
		var ok bool
		if near, ok = wire.ParseTime(text); !ok {
			return near, 0, ownerFault(http.StatusBadRequest, "around must be a time such as 2026-02-21T10:00:00-08:00")
		}
	}
	if text := c.QueryParam("duration"); text != "" {
		var ok bool
		if length, ok = calendar.ParseLength(text); !ok {
			return near, 0, ownerFault(http.StatusBadRequest, "duration must be a length such as 45m or 1h30m")
		}
	}
	return near, length, nil
}

// ownerFault is a refusal of the owner API.
func ownerFault(status int, message string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: status, Message: message}
}

type calendarShowCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *calendarShowCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, get[calendarView]("calendar", nil), func(v calendarView) {
		rows := [][]string{{"zone", v.Zone}}
		for _, b := range v.Busy {
			rows = append(rows, []string{"busy", span(b.Start, b.End)})
		}
		for _, e := range v.Agreed {
			start := e.Start.In(zoneOf(v.Zone))
			rows = append(rows, []string{"agreed", span(start, start.Add(e.Duration)) + "  " + e.Title + " with " + e.With + "  " + e.UID})
		}
		a.table(rows)
		for _, p := range v.Problems {
			a.note("%s", clean(strings.Join(strings.Fields(p.Source+" "+p.UID+": "+p.Text), " ")))
		}
	})
}

// zoneOf is the owner's zone as the answer names it.
func zoneOf(name string) *time.Location {
	zone, err := calendar.ParseZone(name)
	if err != nil {
		return time.UTC
	}
	return zone
}

func span(from, to time.Time) string {
	return from.Format("Mon 2 Jan 15:04") + " - " + to.Format("Mon 2 Jan 15:04")
}

type calendarFreeCmd struct {
	Around   string `placeholder:"TIME" help:"Look around this time, such as 2026-02-21T10:00:00-08:00 (default: now)."`
	Duration string `default:"30m" help:"How long it is to be."`
	JSON     bool   `help:"Print the result as JSON."`
}

func (c *calendarFreeCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, get[calendarFree]("calendar/free", freeQuery(c.Around, c.Duration)), func(v calendarFree) {
		if len(v.Free) == 0 {
			a.note("no free time of %s within two weeks", clean(v.Duration))
		}
		for _, t := range v.Free {
			a.print("%s", t.Format(time.RFC3339))
		}
	})
}

func freeQuery(around, duration string) url.Values {
	return params("around", around, "duration", duration)
}

type calendarProposeCmd struct {
	Agent    string `arg:"" help:"Agent id or alias."`
	Title    string `arg:"" help:"What it is about."`
	Around   string `placeholder:"TIME" help:"Look around this time, such as 2026-02-21T10:00:00-08:00 (default: now)."`
	Duration string `default:"30m" help:"How long it is to be."`
	Location string `placeholder:"TEXT" help:"Where."`
	JSON     bool   `help:"Print the result as JSON."`
}

func (c *calendarProposeCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	raw, err := o.call(ctx, http.MethodGet, "calendar/free", freeQuery(c.Around, c.Duration), nil)
	if err := errors.Join(err, o.close()); err != nil {
		return err
	}
	free, err := decode[calendarFree](raw)
	if err != nil {
		return err
	}
	if len(free.Free) == 0 {
		return fail(exitNo, fmt.Errorf("no free time of %s within two weeks", c.Duration))
	}
	var times []string
	for _, t := range free.Free {
		times = append(times, t.Format(time.RFC3339))
	}
	event := []wire.Member{
		{Key: "title", Value: wire.Text(c.Title)}, {Key: "proposed_times", Value: wire.Texts(times)}, {Key: "duration", Value: wire.Text(c.Duration)},
	}
	if c.Location != "" {
		event = append(event, wire.Member{Key: "location", Value: wire.Text(c.Location)})
	}
	payload := wire.Obj(wire.Member{Key: "action", Value: wire.Text("propose")}, wire.Member{Key: "event", Value: wire.Obj(event...)})
	send := sendCmd{To: c.Agent, Payload: string(payload.JSON()), content: content{Intent: string(wire.Schedule), Wait: true, JSON: c.JSON}}
	return send.Run(ctx, a)
}

type calendarCancelCmd struct {
	Event  string `arg:"" help:"Id of the event, or the beginning of one; agentmesh calendar shows it."`
	Reason string `placeholder:"TEXT" help:"Why, for the other side."`
	Wait   bool   `help:"Wait until the other side was told."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *calendarCancelCmd) Run(ctx context.Context, a *app) error {
	return a.send(ctx, content{Wait: c.Wait, JSON: c.JSON}, func(wait int) owner.Call[owner.Sent] {
		return owner.CancelEvent.With(owner.Cancellation{Event: c.Event, Reason: c.Reason, WaitSeconds: wait})
	})
}
