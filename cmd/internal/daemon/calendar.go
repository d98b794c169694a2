package daemon

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const calendarSpan = 14 * 24 * time.Hour // how far ahead the owner sees busy times

type calendarBusy struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// CalendarView is the answer to GET /owner/calendar.
type CalendarView struct {
	Zone     string             `json:"zone"`
	Busy     []calendarBusy     `json:"busy"` // in the next 14 days
	Agreed   []calendar.Event   `json:"agreed"`
	Problems []calendar.Problem `json:"problems"`
}

// CalendarFree is the answer to GET /owner/calendar/free.
type CalendarFree struct {
	Duration string      `json:"duration"`
	Free     []time.Time `json:"free"` // start times
}

// The operations of the calendar.
var (
	ShowCalendar  = owner.Endpoint[owner.None, CalendarView]{Method: http.MethodGet, Path: "/calendar", Right: owner.Read}
	ListFreeTimes = owner.Endpoint[owner.None, CalendarFree]{Method: http.MethodGet, Path: "/calendar/free", Right: owner.Read}
)

// calendarOperations returns the operations of the owner API for the calendar.
func (p *Process) calendarOperations(s *calendar.Scheduler) []owner.Operation {
	look := func(c echo.Context) (calendar.View, error) {
		view, err := s.Planner.Look(c.Request().Context(), time.Now())
		if err != nil {
			return view, owner.Fault(http.StatusConflict, err.Error(), "")
		}
		return view, nil
	}
	return []owner.Operation{
		ShowCalendar.Serve(func(c echo.Context, _ owner.None) (CalendarView, error) {
			view, err := look(c)
			if err != nil {
				return CalendarView{}, err
			}
			agreed, err := s.Book.Events(c.Request().Context(), time.Now())
			if err != nil {
				return CalendarView{}, err
			}
			out := CalendarView{Zone: s.Planner.Zone().String(), Busy: []calendarBusy{}, Agreed: agreed, Problems: view.Problems}
			for _, b := range view.Busy() {
				if now := time.Now(); b.End.After(now) && b.Start.Before(now.Add(calendarSpan)) {
					out.Busy = append(out.Busy, calendarBusy{b.Start.In(s.Planner.Zone()), b.End.In(s.Planner.Zone())})
				}
			}
			return out, nil
		}),
		ListFreeTimes.Serve(func(c echo.Context, _ owner.None) (CalendarFree, error) {
			near, length, err := freeParams(c)
			if err != nil {
				return CalendarFree{}, err
			}
			if !p.cfg.Calendar.On() {
				return CalendarFree{}, owner.Fault(http.StatusNotFound, "no calendar is configured", "set calendar.files or calendar.url")
			}
			view, err := look(c)
			if err != nil {
				return CalendarFree{}, err
			}
			out := CalendarFree{Duration: length.String(), Free: []time.Time{}}
			for _, t := range view.Near(near, length, 3, time.Time{}) { // as many as one counterproposal offers
				out.Free = append(out.Free, t.In(s.Planner.Zone()))
			}
			return out, nil
		}),
	}
}

// freeParams reads the query parameters "around" (RFC 3339, default now) and "duration" (default 30m).
func freeParams(c echo.Context) (near time.Time, length time.Duration, err error) {
	near, length = time.Now(), 30*time.Minute
	if text := c.QueryParam("around"); text != "" {
		var ok bool
		if near, ok = wire.ParseTime(text); !ok {
			return near, 0, owner.Fault(http.StatusBadRequest, "around must be a time such as 2026-02-21T10:00:00-08:00", "")
		}
	}
	if text := c.QueryParam("duration"); text != "" {
		var ok bool
		if length, ok = calendar.ParseLength(text); !ok {
			return near, 0, owner.Fault(http.StatusBadRequest, "duration must be a length such as 45m or 1h30m, of at most 24 hours", "")
		}
	}
	return near, length, nil
}
