package thread

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	"github.com/adhocore/gronx"

	"github.com/agentmesh/agentmesh/node/wire"
)

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
