package mess

import (
	"cmp"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The words of MESS-13.
var (
	precisions = []string{"loose", "guided", "exact"}
	priorities = []string{"background", "normal", "elevated", "urgent"}
	urgencies  = []string{"whenever", "soon", "now"}
)

// Need is a required or claimed capability with its metadata, which never excludes anybody (MESS-41).
type Need struct {
	ID   string     `json:"id"`
	Meta wire.Value `json:"meta,omitzero"`
}

// Request is what the exchange understands of a request. The request itself is kept verbatim beside it (MESS-17).
type Request struct {
	ID            string
	Intent        string
	Priority      string
	Precision     string
	Urgency       string
	Requires      []Need
	DependsOn     []string
	NotBefore     time.Time
	Deadline      time.Time // needed_by, else timing.expires (MESS-15)
	ConfirmBefore bool
	Shells        int64
}

// readRequest holds a request to MESS-12 to MESS-15. Durations are judged from now.
func readRequest(v wire.Value, path string, now time.Time) (Request, error) {
	f := in(v, path)
	r := Request{
		Intent:    f.need("intent", maxIntent),
		ID:        f.text("id", maxID),
		Precision: f.oneOf("precision", "", precisions...),
		Priority:  f.oneOf("priority", "normal", priorities...),
		Requires:  f.needs("requires"),
	}
	f.content("context", false)
	f.hints()
	if c := f.sub("compensation"); c != nil {
		r.Shells, _ = c.integer("shells", 0, wire.MaxSafeInteger)
		c.text("note", maxProse)
		f.join(c)
	}
	neededBy, hard := f.time("needed_by")
	r.ConfirmBefore, _ = f.boolean("confirm_before")
	if c := f.sub("constraints"); c != nil {
		r.constraints(c, now)
		f.join(c)
	}
	if hard {
		r.Deadline = neededBy
	}
	return r, f.err
}

// wantsOwner says whether the owner must approve before anybody acts, whatever the policy: the requester wants to confirm,
// or offers something for it.
func (r *Request) wantsOwner() bool { return r.ConfirmBefore || r.Shells > 0 }

func (r *Request) constraints(c *fields, now time.Time) {
	if v, ok := c.get("location"); ok {
		if s, isText := v.Str(); !isText {
			g := in(v, c.at("location"))
			for _, key := range []string{"lat", "lng", "radius_km"} {
				g.number(key)
			}
			c.join(g)
		} else {
			c.check(len(s) <= maxProse && !controls(s), "location", "must be a text or {lat, lng, radius_km}")
		}
	}
	c.texts("environment", 100)
	r.DependsOn = c.texts("depends_on", 100)
	if t := c.sub("timing"); t != nil {
		r.NotBefore, _ = t.time("not_before")
		r.Deadline, _ = t.moment("expires", now)
		r.Urgency = t.oneOf("urgency", "", urgencies...)
		c.join(t)
	}
}

// needs reads a list of capabilities: ids, or maps {id: metadata}.
func (f *fields) needs(key string) []Need {
	var out []Need
	for i, e := range f.list(key, 100) {
		n := Need{}
		if s, ok := e.Str(); ok {
			n.ID = s
		} else if e.Kind() == wire.Object && e.Len() == 1 {
			n = Need{ID: e.Members()[0].Key, Meta: e.At(0)}
		}
		f.check(n.ID != "" && len(n.ID) <= maxID && !controls(n.ID), fmt.Sprintf("%s[%d]", key, i), "must be a capability, or a map with one")
		out = append(out, n)
	}
	return out
}

// hints checks response_hint: a type, or {type: spec}; unknown types are kept (MESS-13).
func (f *fields) hints() {
	for i, e := range f.list("response_hint", 100) {
		s, ok := e.Str()
		f.check(ok && s != "" || e.Kind() == wire.Object && e.Len() == 1, fmt.Sprintf("response_hint[%d]", i), "must be a type, or a map with one")
	}
}

// rank orders priorities.
func rank(priority string) int {
	for i, p := range priorities {
		if p == cmp.Or(priority, "normal") {
			return i
		}
	}
	return 1
}
