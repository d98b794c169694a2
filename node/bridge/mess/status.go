package mess

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Code is a status code (MESS section 4), in the specification's spelling.
type Code string

// The codes.
const (
	Received          Code = "received"
	Claimed           Code = "claimed"
	InProgress        Code = "in_progress"
	Waiting           Code = "waiting"
	Held              Code = "held"
	Retrying          Code = "retrying"
	NeedsInput        Code = "needs_input"
	NeedsConfirmation Code = "needs_confirmation"
	Completed         Code = "completed"
	Partial           Code = "partial"
	Failed            Code = "failed"
	Declined          Code = "declined"
	Expired           Code = "expired"
	Cancelled         Code = "cancelled"
	Superseded        Code = "superseded"
	Delegated         Code = "delegated"
)

// Codes lists them in the order of the specification.
func Codes() []Code {
	return []Code{
		Received, Claimed, InProgress, Waiting, Held, Retrying, NeedsInput, NeedsConfirmation,
		Completed, Partial, Failed, Declined, Expired, Cancelled, Superseded, Delegated,
	}
}

// aliases are spellings that public code uses (MESS-21).
var aliases = map[string]Code{"pending": Received, "rejected": Declined, "canceled": Cancelled}

// ParseCode reads a code in any accepted spelling.
func ParseCode(s string) (Code, bool) {
	s = strings.ReplaceAll(s, "-", "_")
	if c, ok := aliases[s]; ok {
		return c, true
	}
	return Code(s), slices.Contains(Codes(), Code(s))
}

// Terminal says whether nothing may follow. Partial is not: it may still become completed.
func (c Code) Terminal() bool {
	switch c {
	case Completed, Failed, Declined, Expired, Cancelled, Superseded, Delegated:
		return true
	}
	return false
}

// Open says whether somebody still has something to do.
func (c Code) Open() bool { return !c.Terminal() && c != Partial }

// rest is the code as envelopes and REST spell it (MESS-21).
func (c Code) rest() string {
	if c == Received {
		return "pending"
	}
	return string(c)
}

// Question is one of a needs_input status.
type Question struct {
	ID       string   `json:"id"` // field (S) or id (F)
	Question string   `json:"question"`
	Options  []string `json:"options,omitempty"`
	Answered bool     `json:"answered,omitempty"`
}

// Status is what the exchange understands of a status entry.
type Status struct {
	Re         []string
	Code       Code
	Message    string
	Reason     string
	Questions  []Question
	ResumeETA  string
	WaitingFor string // type
	Delegated  string // to whom
	Body       wire.Value
}

// readStatus holds a status to MESS section 4. lax is for REST, where public clients send bare codes (MESS-20).
func readStatus(v wire.Value, path string, lax bool) (Status, error) {
	f := in(v, path)
	s := Status{Re: f.refs("re", !lax), Message: f.text("message", maxProse), Body: v}
	code, ok := ParseCode(f.need("code", 40))
	f.check(ok, "code", "is no status code")
	s.Code = code
	f.text("executor", maxName)
	if check := statusFields[code]; check != nil {
		check(f, &s, lax)
	}
	if written := v.GetStr("code"); written != string(code) {
		s.Body = v.With("code", wire.Text(string(code))) // we emit the specification's spelling
	}
	return s, f.err
}

// statusFields is the table of MESS section 4.
var statusFields = map[Code]func(f *fields, s *Status, lax bool){
	Received: func(f *fields, _ *Status, _ bool) {
		f.integer("queue_position", 0, wire.MaxSafeInteger)
		f.text("exchange_id", maxName)
	},
	Claimed: func(f *fields, _ *Status, _ bool) { f.eta() },
	InProgress: func(f *fields, _ *Status, _ bool) {
		if v, ok := f.get("progress_pct"); ok {
			n, isNumber := v.Num()
			f.check(isNumber && percent(n), "progress_pct", "must be a number from 0 to 100")
		}
		f.eta()
	},
	Waiting: func(f *fields, s *Status, lax bool) {
		w := f.sub("waiting_for")
		if w == nil {
			f.check(lax, "waiting_for", "is required")
			return
		}
		s.WaitingFor = w.waitingFor()
		f.join(w)
	},
	Held: func(f *fields, s *Status, _ bool) {
		s.Reason = f.text("reason", maxProse)
		s.ResumeETA = f.text("resume_eta", 64)
		_, isTime := wire.ParseTime(s.ResumeETA)
		_, isSpan := ParseSpan(s.ResumeETA)
		f.check(s.ResumeETA == "" || isTime || isSpan, "resume_eta", "must be a time or a duration")
	},
	Retrying: func(f *fields, _ *Status, lax bool) {
		_, attempt := f.integer("attempt", 1, 1e6)
		_, most := f.integer("max_attempts", 1, 1e6)
		f.check(lax || attempt, "attempt", "is required")
		f.check(lax || most, "max_attempts", "is required")
		f.check(lax || f.has("next_attempt"), "next_attempt", "is required")
		f.text("next_attempt", 64)
	},
	NeedsInput: func(f *fields, s *Status, lax bool) { s.Questions = f.questions(lax, s.Message) },
	NeedsConfirmation: func(f *fields, _ *Status, lax bool) {
		f.check(lax || f.text("action", maxProse) != "", "action", "is required")
		f.text("action", maxProse)
		f.text("consequences", maxProse)
		f.boolean("reversible")
	},
	Partial: func(f *fields, s *Status, lax bool) {
		for _, key := range []string{"completed", "remaining"} {
			f.check(lax || f.has(key), key, "is required")
			f.list(key, 1000)
		}
		s.Reason = f.reason(false)
	},
	Failed: func(f *fields, s *Status, lax bool) {
		s.Reason = f.reason(!lax)
		f.boolean("recoverable")
		f.text("suggestion", maxProse)
	},
	Declined: func(f *fields, s *Status, lax bool) { s.Reason = f.reason(!lax) },
	Expired: func(f *fields, _ *Status, lax bool) {
		_, there := f.time("expired_at")
		f.check(lax || there, "expired_at", "is required")
	},
	Cancelled: func(f *fields, s *Status, _ bool) { s.Reason = f.reason(false) },
	Superseded: func(f *fields, s *Status, lax bool) {
		f.check(lax || f.has("superseded_by"), "superseded_by", "is required")
		s.Reason = f.oneOf("reason", "", "merge", "split", "replace")
		f.check(lax || s.Reason != "", "reason", "is required")
	},
	Delegated: func(f *fields, s *Status, lax bool) {
		s.Delegated = f.text("delegated_to", maxName)
		f.check(lax || s.Delegated != "", "delegated_to", "is required")
		s.Reason = f.reason(false)
	},
}

// eta keeps its text as sent: a time or a duration (MESS-18).
func (f *fields) eta() {
	for _, key := range []string{"eta", "estimate"} {
		s := f.text(key, 64)
		if s == "" {
			continue
		}
		_, isTime := wire.ParseTime(s)
		_, isSpan := ParseSpan(s)
		if key == "estimate" {
			f.check(spanISO(s), key, "must be an ISO 8601 duration")
			continue
		}
		f.check(isTime || isSpan, key, "must be a time or a duration")
	}
}

func percent(token string) bool {
	n, rest, _ := strings.Cut(token, ".")
	if len(n) > 3 || strings.Trim(n, "0123456789") != "" || strings.Trim(rest, "0123456789") != "" {
		return false
	}
	return len(n) < 3 || n == "100" && strings.Trim(rest, "0") == ""
}

// reason is a text or {type, detail}; as a text for people.
func (f *fields) reason(required bool) string {
	v, ok := f.get("reason")
	if !ok {
		f.check(!required, "reason", "is required")
		return ""
	}
	if s, ok := v.Str(); ok {
		f.check(len(s) <= maxProse && !controls(s), "reason", "must be a text")
		return s
	}
	g := in(v, f.at("reason"))
	s := g.need("type", maxName)
	if detail := g.text("detail", maxProse); detail != "" {
		s += ": " + detail
	}
	f.join(g)
	return s
}

// waitingFor is MESS-19.
func (f *fields) waitingFor() string {
	kind := f.oneOf("type", "", "dependency", "condition", "resource", "access", "schedule")
	switch kind {
	case "":
		f.fail("type", "is required")
	case "dependency":
		f.refs("ref", true)
	case "condition":
		f.need("condition", maxProse)
	case "resource":
		f.need("resource", maxProse)
	case "access":
		f.need("location", maxProse)
	case "schedule":
		_, there := f.time("available_at")
		f.check(there, "available_at", "is required")
	}
	return kind
}

// questions reads those of needs_input. Over REST a bare message is one unnamed question (MESS-20).
func (f *fields) questions(lax bool, message string) []Question {
	var out []Question
	for i, e := range f.list("questions", 50) {
		g := in(e, f.at("questions["+itoa(i)+"]"))
		id := g.text("field", maxID)
		if id == "" {
			id = g.text("id", maxID)
		}
		q := Question{ID: id, Question: g.need("question", maxProse)}
		g.check(id != "", "field", "is required")
		for _, o := range g.list("options", 100) {
			if s, ok := o.Str(); ok {
				q.Options = append(q.Options, s)
			} else {
				q.Options = append(q.Options, string(o.JSON()))
			}
		}
		f.join(g)
		out = append(out, q)
	}
	if len(out) == 0 {
		f.check(lax, "questions", "is required")
		out = []Question{{Question: message}}
	}
	return out
}

// openTree lists the questions that are open, as MESS writes them.
func (t *Thread) openTree() wire.Value {
	var list []wire.Value
	for _, q := range t.Questions {
		if q.Answered {
			continue
		}
		v := wire.Obj(wire.Member{Key: "field", Value: wire.Text(q.ID)}, wire.Member{Key: "question", Value: wire.Text(q.Question)})
		if len(q.Options) > 0 {
			v = v.With("options", wire.Texts(q.Options))
		}
		list = append(list, v)
	}
	return wire.Arr(list...)
}
