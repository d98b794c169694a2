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
	Routing  bool // the entry sets the routing rules, possibly to none
	Rules    []Rule
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

// Rule is a routing rule: the order in which a request is offered to the executors (MESS-42).
type Rule struct {
	Capability string   `json:"capability,omitempty"`
	Urgency    string   `json:"urgency,omitempty"`
	Precision  string   `json:"precision,omitempty"`
	Default    bool     `json:"default,omitempty"`
	Prefer     []string `json:"prefer,omitempty"`
	By         string   `json:"by,omitempty"` // lower_latency or higher_precision, instead of a list in Prefer
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
		c.Routing = true
		r.allowOnly("rules")
		r.Check(r.has("rules"), "rules", "is required") // a misspelled key must not delete all rules
		for i, rule := range r.List("rules", maxRules) {
			c.Rules = append(c.Rules, r.readRule(rule, fmt.Sprintf("rules[%d]", i)))
		}
	}
	f.Check((c.Executor != nil) != c.Routing, "", "must have exactly one of executor and routing")
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

func (f *Fields) readRule(v wire.Value, key string) Rule {
	g := f.In(v, key)
	g.allowOnly("match", "prefer", "default")
	var r Rule
	if m := g.Sub("match"); m != nil {
		m.allowOnly("capability", "urgency", "precision")
		r.Capability = m.Text("capability", MaxID)
		r.Urgency = m.OneOf("urgency", "", Urgencies...)
		r.Precision = m.OneOf("precision", "", Precisions...)
	} else {
		r.Default = g.has("default")
		g.Check(r.Default, "match", "is required in a rule without default")
	}
	member := "prefer"
	if r.Default && !g.has("prefer") { // the executors are the value of default
		member = "default"
	}
	value, _ := g.Get(member)
	if s, ok := value.Str(); ok {
		g.Check(slices.Contains([]string{"lower_latency", "higher_precision"}, s), member, "must be a list of executors, lower_latency or higher_precision")
		r.By = s
	} else if value.Kind() == wire.Array {
		r.Prefer = g.Texts(member, 1000)
	} else {
		g.Check(r.Default, member, "is required")
	}
	return r
}

// Tree returns a rule as MESS writes it (MESS-42).
func (r Rule) Tree() wire.Value {
	prefer := wire.Texts(r.Prefer)
	if r.By != "" {
		prefer = wire.Text(r.By)
	}
	if r.Default {
		return wire.Obj(wire.Field("default", prefer))
	}
	match := wire.Obj().WithOptional("capability", r.Capability).WithOptional("urgency", r.Urgency).WithOptional("precision", r.Precision)
	return wire.Obj(wire.Field("match", match), wire.Field("prefer", prefer))
}

// ParseRules reads routing rules and returns the block (list of entries) that sets them. It accepts the bare list of
// rules, a map whose only key is rules, or a block with one config entry for routing. It refuses all other blocks.
func ParseRules(data []byte) (Block, error) {
	docs, err := ParseDocuments(data)
	if err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, Bad("", "must be one document: a list of rules, or a config block with routing")
	}
	v := docs[0].Value
	list, hasList := v.Get("rules")
	switch {
	case hasList && v.Len() == 1:
	case v.Kind() == wire.Array && !holdsEntries(v):
		list = v
	default:
		return readRoutingBlock(v)
	}
	rules := wire.Obj(wire.Field("rules", list))
	f := NewFields(rules, "")
	for i, rule := range f.List("rules", maxRules) {
		f.readRule(rule, fmt.Sprintf("rules[%d]", i))
	}
	if list.IsNull() {
		f.fail("rules", "must be a list")
	}
	return Block{{Type: "config", Body: wire.Obj(wire.Field("routing", rules))}}, f.Err()
}

// holdsEntries reports whether a list contains the entries of a block rather than routing rules.
func holdsEntries(list wire.Value) bool {
	for e := range list.Elems() {
		if e.Kind() != wire.Object || e.Len() != 1 {
			return false
		}
		if key := e.Members()[0].Key; slices.Contains([]string{"match", "default", "prefer"}, key) {
			return false
		}
	}
	return list.Len() > 0
}

// readRoutingBlock reads a block that sets routing rules and does nothing else.
func readRoutingBlock(v wire.Value) (Block, error) {
	b, err := FromTree(v)
	if err != nil {
		return nil, Bad("", "must be a list of rules, or a config block with routing")
	}
	hasRules := false
	for i, e := range b {
		if e.Type == "v" { // the version
			continue
		}
		c, err := ReadConfig(e.Body, EntryPath(i, e))
		if e.Type != "config" || err == nil && !c.Routing || hasRules {
			return nil, Bad(EntryPath(i, e), "does not belong to routing rules")
		}
		if err != nil {
			return nil, err
		}
		hasRules = true
	}
	if !hasRules {
		return nil, Bad("", "must be a list of rules, or a config block with routing")
	}
	return b, nil
}

var executorForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// IsExecutorID reports whether an executor may have this id.
func IsExecutorID(id string) bool { return len(id) <= 64 && executorForm.MatchString(id) }

// Matches reports whether the rule applies to the thread.
func (r Rule) Matches(t *Thread) bool {
	return (r.Capability == "" || slices.ContainsFunc(t.Requires, func(n Need) bool { return n.ID == r.Capability })) &&
		(r.Urgency == "" || r.Urgency == t.Urgency) && (r.Precision == "" || r.Precision == t.Precision)
}
