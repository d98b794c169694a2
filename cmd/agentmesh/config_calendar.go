package main

import (
	"context"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
)

// CalendarConfig lets the node answer mesh.schedule from the owner's calendars. It is on as soon as files or url is set,
// and then comes before every hook.
type CalendarConfig struct {
	// Files and folders of .ics files in which the owner's busy times stand.
	Files []string `key:"files"`
	// URL of a CalDAV calendar, https or on this machine.
	URL string `key:"url"`
	// User name at the CalDAV server.
	User string `key:"user"`
	// File with the password of the CalDAV server.
	PasswordFile string `key:"password_file"`
	// Environment variable with the same content.
	PasswordEnv string `key:"password_env"`
	// Folder that agreed events are written to as .ics files. Empty: they go to url, where it is set.
	Folder string `key:"folder"`

	// The owner's time zone, such as Europe/Berlin. Empty: that of the machine.
	Zone string `key:"zone"`
	// When the owner may be met, such as "mon-thu 09:00-12:00 13:00-17:00, fri 09:00-12:00".
	Hours string `key:"hours"`
	// Time kept free before and after an event.
	Buffer time.Duration `key:"buffer"`
	// How far ahead an event must be at least.
	Notice time.Duration `key:"notice"`
	// How far ahead an event may be at most.
	Horizon time.Duration `key:"horizon"`

	// Agree to times that fit without asking the owner. Otherwise only other times are offered.
	// Danger: an agent that is let in may then fill free time, within the limits below.
	Accept bool `key:"accept"`
	// Agree also with senders that the owner has not let in for good.
	Strangers bool `key:"strangers"`
	// How long an event may be that is agreed to without asking.
	MaxDuration time.Duration `key:"max_duration"`
	// How many events may be agreed to for one day without asking.
	PerDay int `key:"per_day"`
}

func defaultCalendar() CalendarConfig {
	return CalendarConfig{
		Hours: calendar.DefaultHours, Notice: 2 * time.Hour, Horizon: 60 * day, MaxDuration: time.Hour, PerDay: 4,
	}
}

// on says whether the node answers mesh.schedule from a calendar.
func (c CalendarConfig) on() bool { return len(c.Files) > 0 || c.URL != "" }

func (c CalendarConfig) check(p *problems) {
	if _, err := calendar.ParseZone(c.Zone); err != nil {
		p.add("calendar.zone", err.Error())
	}
	if _, err := calendar.ParseHours(c.Hours); err != nil {
		p.add("calendar.hours", err.Error())
	}
	if c.URL != "" {
		if _, err := calendar.NewCalDAV(c.URL, "", "", nil); err != nil {
			p.add("calendar.url", err.Error())
		}
	}
	if c.PasswordFile != "" && c.PasswordEnv != "" {
		p.add("calendar", "has both password_file and password_env")
	}
	if c.MaxDuration > day {
		p.add("calendar.max_duration", "must be at most 24h")
	}
}

// addCalendar makes what answers from the owner's calendars, nil where there is none.
func (p *process) addCalendar() (*calendar.Scheduler, error) {
	c := p.cfg.Calendar
	if !c.on() {
		return nil, nil
	}
	book := calendar.BookConfig{Records: p.store.Records(), Failed: p.eventNotWritten, Logger: p.log}
	var sources []calendar.Source
	for _, f := range c.Files {
		sources = append(sources, calendar.Files{Path: p.app.beside(f)})
	}
	if c.URL != "" {
		password, err := p.app.secret("calendar", c.PasswordFile, c.PasswordEnv)
		if err != nil {
			return nil, fail(exitConfig, err)
		}
		dav, err := calendar.NewCalDAV(c.URL, c.User, password, p.doForOwner)
		if err != nil {
			return nil, fail(exitConfig, err)
		}
		sources = append(sources, dav)
		book.Writer = dav
	}
	if c.Folder != "" {
		book.Writer = calendar.Folder{Path: p.app.beside(c.Folder)}
	}
	p.events = calendar.NewBook(book)
	zone, err := calendar.ParseZone(c.Zone)
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	hours, err := calendar.ParseHours(c.Hours)
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	planner, err := calendar.NewPlanner(calendar.Config{
		Sources: append(sources, p.events), Zone: zone, Hours: hours, Buffer: c.Buffer, Notice: c.Notice, Horizon: c.Horizon,
	})
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	return &calendar.Scheduler{Planner: planner, Book: p.events, Limits: calendar.Limits{
		Accept: c.Accept, Strangers: c.Strangers, MaxDuration: c.MaxDuration, PerDay: c.PerDay,
	}}, nil
}

// doForOwner calls a URL that the owner configured.
func (p *process) doForOwner(req *http.Request) (*http.Response, error) {
	return p.http.Do(req.Context(), client.Owner, req)
}

// eventNotWritten tells the owner that an agreed event did not reach the calendar; it is tried again.
func (p *process) eventNotWritten(ctx context.Context, e calendar.Event, _ error) {
	p.tell(ctx, notify.Notice{
		Kind: "calendar", Title: "an agreed event could not be written to the calendar", At: time.Now(),
		Text: e.Start.Format("Mon 2 Jan 2006 15:04 -07:00") + "; it is tried again",
	})
}

// scheduled puts the calendar before the hooks.
func scheduled(s *calendar.Scheduler, hooks []node.Route) []node.Route {
	if s == nil {
		return hooks
	}
	route := node.Route{Pattern: string(wire.Schedule), Name: "calendar", Handler: hook.Calendar{Scheduler: s}, Repeatable: true, Replies: true}
	return append([]node.Route{route}, hooks...)
}
