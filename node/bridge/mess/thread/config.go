package thread

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

// ConfigEntry is a config entry. It sets up one of two things: an executor or the routing rules (MESS-37).
type ConfigEntry struct {
	Executor *ExecutorConfig
	Rules    wire.Value // the routing rules, a list; null if the entry does not set them
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
		r.allowOnly("rules")
		r.Check(r.has("rules"), "rules", "is required") // a misspelled key must not delete all rules
		for i, rule := range r.List("rules", maxRules) {
			r.checkRule(rule, fmt.Sprintf("rules[%d]", i))
		}
		c.Rules, _ = r.Get("rules")
	}
	f.Check(f.has("executor") != f.has("routing"), "", "must have exactly one of executor and routing")
	return c, f.Err()
}

// Faults of a schedule that does not fit the availability of its executor.
const (
	ScheduleMissing = "is required with availability: schedule"
	ScheduleAlone   = "needs availability: schedule"
)

func (f *Fields) readExecutor() *ExecutorConfig {
	e := &ExecutorConfig{
		ID:           f.Required("id", MaxID),
		Name:         f.Text("name", 200),
		Capabilities: f.Needs("capabilities"),
	}
	e.Availability, e.Schedule, e.Timezone = f.ReadAvailability()
	e.Availability = cmp.Or(e.Availability, "always")
	f.Check(IsExecutorID(e.ID), "id", "must be 1 to 64 characters from A-Z a-z 0-9 _ -, beginning with a letter or digit")
	f.Check(e.Schedule != "" || e.Availability != "schedule", "schedule", ScheduleMissing)
	f.Check(e.Schedule == "" || e.Availability == "schedule", "schedule", ScheduleAlone)
	return e
}

// ReadAvailability reads when an executor is available.
func (f *Fields) ReadAvailability() (availability, schedule, zone string) {
	availability = f.OneOf("availability", "", "always", "schedule", "on_demand")
	schedule, zone = f.Text("schedule", 128), f.Text("timezone", 64)
	if wrong := cronError(schedule); schedule != "" && wrong != "" {
		f.fail("schedule", wrong)
	}
	f.Check(zone == "" || IsZone(zone), "timezone", "must be a name such as Europe/Berlin")
	return availability, schedule, zone
}

// checkRule checks a routing rule: the order in which a request is offered to the executors (MESS-42).
func (f *Fields) checkRule(v wire.Value, key string) {
	g := f.In(v, key)
	g.allowOnly("match", "prefer", "default")
	isDefault := false
	if m := g.Sub("match"); m != nil {
		m.allowOnly("capability", "urgency", "precision")
		m.Text("capability", MaxID)
		m.OneOf("urgency", "", Urgencies...)
		m.OneOf("precision", "", Precisions...)
	} else {
		isDefault = g.has("default")
		g.Check(isDefault, "match", "is required in a rule without default")
	}
	member := "prefer"
	if isDefault && !g.has("prefer") { // the executors are the value of default
		member = "default"
	}
	value, _ := g.Get(member)
	if s, ok := value.Str(); ok {
		g.Check(slices.Contains([]string{"lower_latency", "higher_precision"}, s), member, "must be a list of executors, lower_latency or higher_precision")
	} else if value.Kind() == wire.Array {
		g.Texts(member, 1000)
	} else {
		g.Check(isDefault, member, "is required")
	}
}

var executorForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// IsExecutorID reports whether an executor may have this id.
func IsExecutorID(id string) bool { return len(id) <= 64 && executorForm.MatchString(id) }
