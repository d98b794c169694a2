// Package zone has the time zone of the owner, in which people read and write times. It is the zone of the machine unless the
// configuration names another one, as on a server that is far away.
package zone

import (
	"fmt"
	"sync/atomic"
	"time"
)

var current atomic.Pointer[time.Location]

// Load loads a zone by its name in the time zone database. For an empty name it returns the zone of the machine.
func Load(name string) (*time.Location, error) {
	if name == "" {
		return time.Local, nil
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is unknown: write a name such as Europe/Berlin", name)
	}
	return loc, nil
}

// Set sets the owner's zone for the whole process.
func Set(loc *time.Location) { current.Store(loc) }

// Owner returns the owner's zone.
func Owner() *time.Location {
	if loc := current.Load(); loc != nil {
		return loc
	}
	return time.Local
}

// In returns t in the owner's zone.
func In(t time.Time) time.Time { return t.In(Owner()) }
