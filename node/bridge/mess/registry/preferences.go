package registry

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Preferences are the settings of an executor: which requests it wants notices of, and when (MESS-45), and which
// requests it claims automatically. They never give it the right to claim.
type Preferences struct {
	MinPriority string     `json:"min_priority,omitempty"`
	Quiet       QuietHours `json:"quiet_hours,omitzero"`
	Filter      []string   `json:"capability_filter,omitempty"`
	AutoClaim   []string   `json:"auto_claim_patterns,omitempty"`
}

// QuietHours are hours in which an executor wants notices of urgent requests only. They may cross midnight.
type QuietHours struct {
	Enabled  bool   `json:"enabled,omitempty"`
	Start    string `json:"start,omitempty"` // 22:00
	End      string `json:"end,omitempty"`
	Timezone string `json:"timezone,omitempty"`
}

// Notification is a channel for notices. Only channels of the types ntfy, slack, google_chat and webhook get any.
type Notification struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

// wantsNotice reports whether the executor wants a notice of the request t now.
func (c *Candidate) wantsNotice(t *thread.Thread, now time.Time) bool {
	p := c.Preferences
	isUrgent := t.Priority == "urgent"
	switch {
	case thread.PriorityRank(t.Priority) < thread.PriorityRank(p.MinPriority): // "" ranks as normal
		return false
	// a request that requires nothing passes every filter
	case len(p.Filter) > 0 && len(t.Requires) > 0 && !slices.ContainsFunc(t.Requires, func(n thread.Need) bool { return slices.Contains(p.Filter, n.ID) }):
		return false
	}
	return isUrgent || !p.Quiet.contains(now, c.quietZone)
}

// contains reports whether now is within the quiet hours, in their time zone.
func (q QuietHours) contains(now time.Time, zone *time.Location) bool {
	if !q.Enabled {
		return false
	}
	clock := now.In(zone).Format("15:04")
	if q.Start <= q.End {
		return q.Start <= clock && clock < q.End
	}
	return clock >= q.Start || clock < q.End
}

var clockForm = regexp.MustCompile(`^([01]\d|2[0-3]):[0-5]\d$`)

// readPreferences parses the preferences of a registration.
func readPreferences(f *thread.Fields, key string) Preferences {
	g := f.Sub(key)
	if g == nil {
		return Preferences{}
	}
	p := Preferences{MinPriority: g.OneOf("min_priority", "", thread.Priorities...), Filter: g.Texts("capability_filter", 100)}
	for i, pattern := range g.List("auto_claim_patterns", 20) {
		s, ok := pattern.Str()
		g.Check(ok && len(s) <= 256, fmt.Sprintf("auto_claim_patterns[%d]", i), "must be a text of at most 256 bytes")
		p.AutoClaim = append(p.AutoClaim, s)
	}
	if g.Err() == nil {
		_, _, err := compilePatterns(p.AutoClaim)
		g.Check(err == nil, "auto_claim_patterns", "must be regular expressions (RE2), and not too large together")
	}
	if q := g.Sub("quiet_hours"); q != nil {
		p.Quiet.Enabled, _ = q.Boolean("enabled")
		p.Quiet.Start, p.Quiet.End = q.Text("start", 5), q.Text("end", 5)
		p.Quiet.Timezone = q.Text("timezone", 64)
		q.Check(!p.Quiet.Enabled || clockForm.MatchString(p.Quiet.Start) && clockForm.MatchString(p.Quiet.End), "start", "start and end must be times such as 22:00")
		q.Check(p.Quiet.Timezone == "" || thread.IsZone(p.Quiet.Timezone), "timezone", "must be a name such as Europe/Berlin")
	}
	return p
}

// readNotifications parses the channels of a registration. It also keeps channels to which no notices are sent.
func readNotifications(f *thread.Fields, key string) []Notification {
	var out []Notification
	for i, e := range f.List(key, 20) {
		g := f.In(e, fmt.Sprintf("%s[%d]", key, i))
		n := Notification{Type: g.Required("type", 40)}
		for _, name := range []string{"url", "webhook_url", "webhook"} {
			if s := g.Text(name, thread.MaxURI); s != "" && n.URL == "" {
				n.URL = s
			}
		}
		if topic := g.Text("topic", 200); n.Type == "ntfy" && topic != "" {
			server := cmp.Or(g.Text("server", thread.MaxURI), "https://ntfy.sh")
			n.URL = strings.TrimSuffix(server, "/") + "/" + topic
		}
		out = append(out, n)
	}
	return out
}

// Bounds of auto-claim patterns. Without them, every new request could be slow: it is matched with the patterns of all
// executors that it is offered to, and a pattern of 30 bytes may compile to a thousand instructions, each of which looks
// at every byte.
const (
	maxPatternCode = 1000                // compiled instructions of all patterns of one executor
	maxMatchedCode = 20 * maxPatternCode // compiled instructions of all patterns that are tried on one request
	maxMatched     = 1 << 10             // bytes of an intent that are matched
)

// compilePatterns compiles an executor's patterns and counts their instructions. It fails if they are too large.
func compilePatterns(list []string) (out []*regexp.Regexp, size int, err error) {
	for _, pattern := range list {
		tree, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil, 0, err
		}
		code, err := syntax.Compile(tree.Simplify())
		if err != nil {
			return nil, 0, err
		}
		if size += len(code.Inst); size > maxPatternCode {
			return nil, 0, errors.New("the patterns are too large")
		}
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, re)
	}
	return out, size, nil
}

// FindAutoClaim returns the first executor that gets a notice and has an auto-claim pattern that matches the intent of
// t, or "". It stops before the patterns that it tries have more than maxMatchedCode instructions together.
func (r *Executors) FindAutoClaim(offers []Offer, t *thread.Thread) string {
	intent, code := t.Intent[:min(len(t.Intent), maxMatched)], 0
	for _, o := range offers {
		c := r.get(o.ID)
		if !o.Notify || c == nil {
			continue
		}
		patterns, size := c.patterns()
		if code += size; code > maxMatchedCode {
			break
		}
		if slices.ContainsFunc(patterns, func(re *regexp.Regexp) bool { return re.MatchString(intent) }) {
			return c.ID
		}
	}
	return ""
}

// Tree returns the preferences as a JSON tree.
func (p Preferences) Tree() wire.Value {
	v, err := wire.ValueOf(p)
	if err != nil {
		return wire.Value{}
	}
	return v
}
