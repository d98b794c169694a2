package config

import (
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
)

// Calendar lets the node answer mesh.schedule from the owner's calendars. It is on as soon as files or url is set,
// and then comes before every hook.
type Calendar struct {
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

func defaultCalendar() Calendar {
	return Calendar{
		Hours: calendar.DefaultHours, Notice: 2 * time.Hour, Horizon: 60 * day, MaxDuration: time.Hour, PerDay: 4,
	}
}

// On says whether the node answers mesh.schedule from a calendar.
func (c Calendar) On() bool { return len(c.Files) > 0 || c.URL != "" }

func (c Calendar) check(p *problems) {
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
