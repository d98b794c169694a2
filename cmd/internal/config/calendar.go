package config

import (
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
)

// Calendar lets the node answer messages of the intent mesh.schedule from the owner's calendars. Setting files or url
// turns this on. A hook gets messages of this intent only if it names the intent.
type Calendar struct {
	// .ics files, and folders of them, with the owner's busy times.
	Files []string `key:"files"`
	// URL of a CalDAV calendar: https, or on this machine.
	URL string `key:"url"`
	// User name at the CalDAV server.
	User string `key:"user"`
	// File with the password of the CalDAV server.
	PasswordFile string `key:"password_file"`
	// Folder to which the node writes agreed events as .ics files. Empty: it writes them to url, if url is set.
	Folder string `key:"folder"`

	// The hours in which the owner can meet, such as "mon-thu 09:00-12:00 13:00-17:00, fri 09:00-12:00".
	Hours string `key:"hours"`
	// Time to keep free before and after an event.
	Buffer time.Duration `key:"buffer"`
	// The earliest start of an event, counted from now.
	Notice time.Duration `key:"notice" default:"2h"`
	// The latest end of an event, counted from now.
	Horizon time.Duration `key:"horizon" default:"60d" min:"1ms"`

	// Accept a proposed time that fits, without asking the owner. If false, the owner decides about a time that fits. If
	// no proposed time fits, the node offers other times in either case.
	// Danger: an agent that you have let in permanently can then fill your free time, within the limits below.
	Accept bool `key:"accept"`
	// Also accept times of senders that the owner has not let in permanently.
	Strangers bool `key:"strangers"`
	// The longest event that the node accepts without asking.
	MaxDuration time.Duration `key:"max_duration" default:"1h" min:"1ms" max:"24h"`
	// The number of events per day that the node accepts without asking. If it is to accept none, set accept to false.
	PerDay int `key:"per_day" default:"4" min:"1"`
}

// On reports whether the node answers mesh.schedule from a calendar.
func (c Calendar) On() bool { return len(c.Files) > 0 || c.URL != "" }

func (c Calendar) check(p *problems) {
	if _, err := calendar.ParseHours(c.Hours); err != nil {
		p.add("calendar.hours", err.Error())
	}
	if c.URL != "" {
		if _, err := calendar.NewCalDAV(c.URL, "", "", nil); err != nil {
			p.add("calendar.url", err.Error())
		}
	}
}
