package thread

import (
	"fmt"
	"time"

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
