package mess

import (
	"cmp"
	"fmt"
	"slices"

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

// maxRules bounds the routing rules.
const maxRules = 200

func readConfig(v wire.Value, path string) (ConfigEntry, error) {
	f := in(v, path)
	var c ConfigEntry
	if e := f.sub("executor"); e != nil {
		c.Executor = e.executor()
		f.join(e)
	}
	if r := f.sub("routing"); r != nil {
		c.Routing = true
		r.only("rules")
		r.check(r.has("rules"), "rules", "is required") // none at all would be none from now on
		for i, rule := range r.list("rules", maxRules) {
			c.Rules = append(c.Rules, r.rule(rule, fmt.Sprintf("rules[%d]", i)))
		}
		f.join(r)
	}
	f.check((c.Executor != nil) != c.Routing, "", "must have executor or routing")
	return c, f.err
}

const (
	scheduleMissing = "is required with availability: schedule"
	scheduleAlone   = "needs availability: schedule"
)

func (f *fields) executor() *ExecutorConfig {
	e := &ExecutorConfig{
		ID:           f.need("id", maxID),
		Name:         f.text("name", 200),
		Capabilities: f.needs("capabilities"),
	}
	e.Availability, e.Schedule, e.Timezone = f.duty()
	e.Availability = cmp.Or(e.Availability, "always")
	f.check(validExecutorID(e.ID), "id", "must be 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit")
	f.check(e.Schedule != "" || e.Availability != "schedule", "schedule", scheduleMissing)
	f.check(e.Schedule == "" || e.Availability == "schedule", "schedule", scheduleAlone)
	return e
}

// duty reads when an executor is available.
func (f *fields) duty() (availability, schedule, zone string) {
	availability = f.oneOf("availability", "", "always", "schedule", "on_demand")
	schedule, zone = f.text("schedule", 128), f.text("timezone", 64)
	if wrong := cronError(schedule); schedule != "" && wrong != "" {
		f.fail("schedule", wrong)
	}
	f.check(zone == "" || validZone(zone), "timezone", "must be a name such as Europe/Berlin")
	return availability, schedule, zone
}

func (f *fields) rule(v wire.Value, key string) Rule {
	g := in(v, f.at(key))
	g.only("match", "prefer", "default")
	var r Rule
	if m := g.sub("match"); m != nil {
		m.only("capability", "urgency", "precision")
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

// tree writes a rule as it is sent (MESS-42).
func (r Rule) tree() wire.Value {
	prefer := wire.Texts(r.Prefer)
	if r.By != "" {
		prefer = wire.Text(r.By)
	}
	if r.Default {
		return wire.Obj(wire.Member{Key: "default", Value: prefer})
	}
	match := wire.Obj()
	for _, m := range []struct{ key, text string }{{"capability", r.Capability}, {"urgency", r.Urgency}, {"precision", r.Precision}} {
		if m.text != "" {
			match = match.With(m.key, wire.Text(m.text))
		}
	}
	return wire.Obj(wire.Member{Key: "match", Value: match}, wire.Member{Key: "prefer", Value: prefer})
}

// ParseRules reads routing rules and returns the block that sets them: the list of rules alone, a map with the one key
// rules, or a block of one config entry with routing. What sets anything else is refused.
func ParseRules(data []byte) (Block, error) {
	docs, err := documents(data)
	if err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, bad("", "must be one document: a list of rules, or a config block with routing")
	}
	v := docs[0].Value
	list, named := v.Get("rules")
	switch {
	case named && v.Len() == 1:
	case v.Kind() == wire.Array && !holdsEntries(v):
		list = v
	default:
		return routingBlock(v)
	}
	rules := wire.Obj(wire.Member{Key: "rules", Value: list})
	f := in(rules, "")
	for i, rule := range f.list("rules", maxRules) {
		f.rule(rule, fmt.Sprintf("rules[%d]", i))
	}
	if list.IsNull() {
		f.fail("rules", "must be a list")
	}
	return Block{{Type: "config", Body: wire.Obj(wire.Member{Key: "routing", Value: rules})}}, f.err
}

// holdsEntries says whether a list is one of entries of a block: what is no rule by any of its keys.
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

// routingBlock reads a block that sets routing rules and does nothing else.
func routingBlock(v wire.Value) (Block, error) {
	b, err := FromTree(v)
	if err != nil {
		return nil, bad("", "must be a list of rules, or a config block with routing")
	}
	routed := false
	for i, e := range b {
		if e.Type == "v" {
			continue
		}
		c, err := readConfig(e.Body, entryPath(i, e))
		if e.Type != "config" || err == nil && !c.Routing || routed {
			return nil, bad(entryPath(i, e), "does not belong to routing rules")
		}
		if err != nil {
			return nil, err
		}
		routed = true
	}
	if !routed {
		return nil, bad("", "must be a list of rules, or a config block with routing")
	}
	return b, nil
}

func validExecutorID(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '_' || id[0] == '-' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !isLetter(c) && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func (r Rule) matches(t *Thread) bool {
	return (r.Capability == "" || slices.ContainsFunc(t.Requires, func(n Need) bool { return n.ID == r.Capability })) &&
		(r.Urgency == "" || r.Urgency == t.Urgency) && (r.Precision == "" || r.Precision == t.Precision)
}
