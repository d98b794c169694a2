package mess

import (
	"fmt"
	"slices"

	"github.com/adhocore/gronx"

	"github.com/agentmesh/agentmesh/node/wire"
)

// ConfigEntry is one of the two things a config entry may set up (MESS-37).
type ConfigEntry struct {
	Executor *ExecutorConfig
	Rules    []Rule
	Routing  bool
}

// ExecutorConfig is what an executor says of itself.
type ExecutorConfig struct {
	ID           string
	Name         string
	Capabilities []Need
	Availability string // always, schedule, on_demand
	Schedule     string // five-field cron
	Timezone     string
}

// Rule orders who is told of a request first (MESS-42).
type Rule struct {
	Capability string   `json:"capability,omitempty"`
	Urgency    string   `json:"urgency,omitempty"`
	Precision  string   `json:"precision,omitempty"`
	Default    bool     `json:"default,omitempty"`
	Prefer     []string `json:"prefer,omitempty"`
	By         string   `json:"by,omitempty"` // lower_latency, higher_precision
}

func readConfig(v wire.Value, path string) (ConfigEntry, error) {
	f := in(v, path)
	var c ConfigEntry
	if e := f.sub("executor"); e != nil {
		c.Executor = e.executor()
		f.join(e)
	}
	if r := f.sub("routing"); r != nil {
		c.Routing = true
		for i, rule := range r.list("rules", 200) {
			c.Rules = append(c.Rules, r.rule(rule, fmt.Sprintf("rules[%d]", i)))
		}
		f.join(r)
	}
	f.check((c.Executor != nil) != c.Routing, "", "must have executor or routing")
	return c, f.err
}

func (f *fields) executor() *ExecutorConfig {
	e := &ExecutorConfig{
		ID:           f.need("id", maxID),
		Name:         f.text("name", 200),
		Capabilities: f.needs("capabilities"),
		Availability: f.oneOf("availability", "always", "always", "schedule", "on_demand"),
		Schedule:     f.text("schedule", 128),
		Timezone:     f.text("timezone", 64),
	}
	f.check(validExecutorID(e.ID), "id", "must be 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit")
	f.check((e.Availability == "schedule") == (e.Schedule != ""), "schedule", "goes with availability: schedule")
	f.check(e.Schedule == "" || validCron(e.Schedule), "schedule", "must be a cron expression of five fields")
	f.check(e.Timezone == "" || validZone(e.Timezone), "timezone", "must be a name such as Europe/Berlin")
	return e
}

func (f *fields) rule(v wire.Value, key string) Rule {
	g := in(v, f.at(key))
	var r Rule
	if m := g.sub("match"); m != nil {
		r.Capability = m.text("capability", maxID)
		r.Urgency = m.oneOf("urgency", "", urgencies...)
		r.Precision = m.oneOf("precision", "", precisions...)
		g.join(m)
	} else {
		r.Default = g.has("default")
		g.check(r.Default, "match", "is required, or default")
	}
	list, word := "prefer", g.v
	if v, ok := g.get("default"); ok && r.Default && !g.has("prefer") {
		list, word = "default", wire.Obj(wire.Member{Key: "default", Value: v})
	}
	h := &fields{v: word, path: g.path}
	value, _ := h.get(list)
	if s, ok := value.Str(); ok {
		h.check(slices.Contains([]string{"lower_latency", "higher_precision"}, s), list, "must be a list of executors, lower_latency or higher_precision")
		r.By = s
	} else if value.Kind() == wire.Array {
		r.Prefer = h.texts(list, 1000)
	} else {
		h.check(r.Default, list, "is required")
	}
	g.join(h)
	f.join(g)
	return r
}

func validExecutorID(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '_' || id[0] == '-' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !letter(c) && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// validCron takes exactly the five fields of MESS-43; the library takes more.
func validCron(expr string) bool {
	return len(splitCron(expr)) == 5 && gronx.IsValid(expr)
}
