package thread

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/adhocore/gronx"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The values of MESS-13, in ascending order.
var (
	Precisions = []string{"loose", "guided", "exact"}
	Priorities = []string{"background", "normal", "elevated", "urgent"}
	Urgencies  = []string{"whenever", "soon", "now"}
)

// Need is a capability that a request requires or that an executor has, with its metadata. The metadata never excludes
// an executor (MESS-41).
type Need struct {
	ID   string     `json:"id"`
	Meta wire.Value `json:"meta,omitzero"`
}

// Request is the part of a request that the exchange understands. The full request is stored as sent (MESS-17).
type Request struct {
	ID            string
	Intent        string
	Priority      string
	Requires      []Need
	DependsOn     []string
	NotBefore     time.Time
	Deadline      time.Time // needed_by, or else timing.expires (MESS-15)
	ConfirmBefore bool
	Shells        int64 // the compensation that the requester offers
}

// ReadRequest reads a request and checks it against MESS-12 to MESS-15. Durations start at now.
func ReadRequest(v wire.Value, path string, now time.Time) (Request, error) {
	f := NewFields(v, path)
	r := Request{
		Intent:   f.Required("intent", maxIntent),
		ID:       f.Text("id", MaxID),
		Priority: f.OneOf("priority", "normal", Priorities...),
		Requires: f.Needs("requires"),
	}
	f.OneOf("precision", "", Precisions...)
	f.checkContents("context")
	f.checkHints()
	if c := f.Sub("compensation"); c != nil {
		r.Shells, _ = c.integer("shells", 0, wire.MaxSafeInteger)
		c.Text("note", MaxProse)
	}
	neededBy, hasNeededBy := f.time("needed_by")
	r.ConfirmBefore, _ = f.Boolean("confirm_before")
	if c := f.Sub("constraints"); c != nil {
		r.readConstraints(c, now)
	}
	if hasNeededBy {
		r.Deadline = neededBy
	}
	return r, f.Err()
}

// NeedsApproval reports whether the owner must approve the request before anybody acts, even if the policy would let it
// in: the requester wants to confirm, or offers a compensation.
func (r *Request) NeedsApproval() bool { return r.ConfirmBefore || r.Shells > 0 }

func (r *Request) readConstraints(c *Fields, now time.Time) {
	if v, ok := c.Get("location"); ok {
		if s, isText := v.Str(); !isText {
			g := c.In(v, "location")
			for _, key := range []string{"lat", "lng", "radius_km"} {
				g.checkNumber(key)
			}
		} else {
			c.Check(len(s) <= MaxProse && !hasControls(s), "location", "must be a text or {lat, lng, radius_km}")
		}
	}
	c.Texts("environment", 100)
	r.DependsOn = c.Texts("depends_on", 100)
	if t := c.Sub("timing"); t != nil {
		r.NotBefore, _ = t.time("not_before")
		r.Deadline, _ = t.timeOrSpan("expires", now)
		t.OneOf("urgency", "", Urgencies...)
	}
}

// Needs reads a list of capabilities: ids, or maps {id: metadata}.
func (f *Fields) Needs(key string) []Need {
	var out []Need
	for i, e := range f.List(key, 100) {
		n := Need{}
		if s, ok := e.Str(); ok {
			n.ID = s
		} else if e.Kind() == wire.Object && e.Len() == 1 {
			n = Need{ID: e.Members()[0].Key, Meta: e.At(0)}
		}
		f.Check(n.ID != "" && len(n.ID) <= MaxID && !hasControls(n.ID), fmt.Sprintf("%s[%d]", key, i), "must be a capability, or a map with one")
		out = append(out, n)
	}
	return out
}

// checkHints checks response_hint: types, or {type: spec}. Unknown types are kept (MESS-13).
func (f *Fields) checkHints() {
	for i, e := range f.List("response_hint", 100) {
		s, ok := e.Str()
		f.Check(ok && s != "" || e.Kind() == wire.Object && e.Len() == 1, fmt.Sprintf("response_hint[%d]", i), "must be a type, or a map with one")
	}
}

// ConfigEntry is a config entry. It sets up one of two things: an executor or the routing rules (MESS-37).
type ConfigEntry struct {
	Executor *ExecutorConfig
	Rules    wire.Value // the routing rules, a list as given; null if the entry does not set them
}

// ExecutorConfig is the configuration of an executor.
type ExecutorConfig struct {
	ID           string
	Name         string
	Capabilities []Need
	Availability string // always, schedule, on_demand
	Schedule     string // five-field cron
	Timezone     string
}

const maxRules = 200

// ReadConfig reads a config entry.
func ReadConfig(v wire.Value, path string) (ConfigEntry, error) {
	f := NewFields(v, path)
	var c ConfigEntry
	if e := f.Sub("executor"); e != nil {
		c.Executor = e.readExecutor()
	}
	if r := f.Sub("routing"); r != nil {
		r.Check(r.has("rules"), "rules", "is required") // a misspelled key must not delete all rules
		r.List("rules", maxRules)
		c.Rules, _ = r.Get("rules")
	}
	f.Check(f.has("executor") != f.has("routing"), "", "must have exactly one of executor and routing")
	return c, f.Err()
}

func (f *Fields) readExecutor() *ExecutorConfig {
	e := &ExecutorConfig{
		ID:           f.Required("id", MaxID),
		Name:         f.Text("name", 200),
		Capabilities: f.Needs("capabilities"),
	}
	e.Availability, e.Schedule, e.Timezone = f.ReadAvailability()
	e.Availability = cmp.Or(e.Availability, "always")
	f.Check(IsExecutorID(e.ID), "id", "must be 1 to 64 characters from A-Z a-z 0-9 _ -, beginning with a letter or digit")
	return e
}

// ReadAvailability reads when an executor is available.
func (f *Fields) ReadAvailability() (availability, schedule, zone string) {
	availability = f.OneOf("availability", "", "always", "schedule", "on_demand")
	schedule, zone = f.Text("schedule", 128), f.Text("timezone", 64)
	f.Check(schedule == "" || len(strings.Fields(schedule)) == 5 && gronx.IsValid(schedule), "schedule", "must be a cron expression of five fields: minute, hour, day of the month, month, day of the week")
	f.Check(zone == "" || IsZone(zone), "timezone", "must be a name such as Europe/Berlin")
	return availability, schedule, zone
}

// IsZone reports whether a name is that of a time zone.
func IsZone(name string) bool {
	_, err := time.LoadLocation(name)
	return err == nil && name != "Local"
}

var executorForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// IsExecutorID reports whether an executor may have this id.
func IsExecutorID(id string) bool { return len(id) <= 64 && executorForm.MatchString(id) }
