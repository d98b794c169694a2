package thread

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Code is a status code (MESS section 4) in the spelling of the specification.
type Code string

// The status codes of MESS.
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

// Codes returns all codes in the order of the specification.
func Codes() []Code {
	return []Code{
		Received, Claimed, InProgress, Waiting, Held, Retrying, NeedsInput, NeedsConfirmation,
		Completed, Partial, Failed, Declined, Expired, Cancelled, Superseded, Delegated,
	}
}

// aliases are spellings that public servers use (MESS-21).
var aliases = map[string]Code{"pending": Received, "rejected": Declined, "canceled": Cancelled}

// ParseCode reads a code in any accepted spelling.
func ParseCode(s string) (Code, bool) {
	s = strings.ReplaceAll(s, "-", "_")
	if c, ok := aliases[s]; ok {
		return c, true
	}
	return Code(s), slices.Contains(Codes(), Code(s))
}

// Terminal reports whether no other state may follow. Partial is not terminal: it may become completed.
func (c Code) Terminal() bool {
	switch c {
	case Completed, Failed, Declined, Expired, Cancelled, Superseded, Delegated:
		return true
	}
	return false
}

// Open reports whether somebody still has something to do.
func (c Code) Open() bool { return !c.Terminal() && c != Partial }

// RESTName returns the code as envelopes and REST spell it (MESS-21).
func (c Code) RESTName() string {
	if c == Received {
		return "pending"
	}
	return string(c)
}

// Question is a question of a needs_input status.
type Question struct {
	ID       string   `json:"id"` // the member "field" of the specification, or "id" of the 1.1 draft
	Question string   `json:"question"`
	Options  []string `json:"options,omitempty"`
	Answered bool     `json:"answered,omitempty"`
}

// Status is the part of a status entry that the exchange understands.
type Status struct {
	Re        []string // the threads that the status is about
	Code      Code
	Message   string
	Reason    string
	Questions []Question
	Delegated string     // the executor to which the thread was delegated
	Body      wire.Value // the whole status, with the code in our spelling
}

// ReadStatus reads a status and checks it against MESS section 4. With lax, the status may omit its reference and the
// members that its code requires, because public clients of REST send bare codes (MESS-20).
func ReadStatus(v wire.Value, path string, lax bool) (Status, error) {
	f := NewFields(v, path)
	s := Status{Re: f.Refs("re", !lax), Message: f.Text("message", MaxProse), Body: v}
	code, ok := ParseCode(f.Required("code", 40))
	f.Check(ok, "code", "is not a status code")
	s.Code = code
	f.Text("executor", maxName)
	if check := statusFields[code]; check != nil {
		check(f, &s, lax)
	}
	if v.GetStr("code") != string(code) {
		s.Body = v.With("code", wire.Text(string(code)))
	}
	return s, f.Err()
}

// statusFields has, for each code, the function that checks the other members of a status: the table of MESS section 4.
var statusFields = map[Code]func(f *Fields, s *Status, lax bool){
	Received: func(f *Fields, _ *Status, _ bool) {
		f.integer("queue_position", 0, wire.MaxSafeInteger)
		f.Text("exchange_id", maxName)
	},
	Claimed: func(f *Fields, _ *Status, _ bool) { f.checkETA() },
	InProgress: func(f *Fields, _ *Status, _ bool) {
		if v, ok := f.Get("progress_pct"); ok {
			text, _ := v.Num()
			n, err := strconv.ParseFloat(text, 64)
			f.Check(err == nil && 0 <= n && n <= 100, "progress_pct", "must be a number from 0 to 100")
		}
		f.checkETA()
	},
	Waiting: func(f *Fields, _ *Status, lax bool) {
		w := f.Sub("waiting_for")
		if w == nil {
			f.Check(lax, "waiting_for", "is required")
			return
		}
		w.checkWaitingFor()
	},
	Held: func(f *Fields, s *Status, _ bool) {
		s.Reason = f.Text("reason", MaxProse)
		f.timeOrSpanText("resume_eta")
	},
	Retrying: func(f *Fields, _ *Status, lax bool) {
		_, hasAttempt := f.integer("attempt", 1, 1e6)
		_, hasMax := f.integer("max_attempts", 1, 1e6)
		f.Check(lax || hasAttempt, "attempt", "is required")
		f.Check(lax || hasMax, "max_attempts", "is required")
		f.Check(lax || f.has("next_attempt"), "next_attempt", "is required")
		f.Text("next_attempt", 64)
	},
	NeedsInput: func(f *Fields, s *Status, lax bool) { s.Questions = f.readQuestions(lax, s.Message) },
	NeedsConfirmation: func(f *Fields, _ *Status, lax bool) {
		action := f.Text("action", MaxProse)
		f.Check(lax || action != "", "action", "is required")
		f.Text("consequences", MaxProse)
		f.Boolean("reversible")
	},
	Partial: func(f *Fields, s *Status, lax bool) {
		for _, key := range []string{"completed", "remaining"} {
			f.Check(lax || f.has(key), key, "is required")
			f.List(key, 1000)
		}
		s.Reason = f.Reason(Optional)
	},
	Failed: func(f *Fields, s *Status, lax bool) {
		s.Reason = f.Reason(!lax)
		f.Boolean("recoverable")
		f.Text("suggestion", MaxProse)
	},
	Declined: func(f *Fields, s *Status, lax bool) { s.Reason = f.Reason(!lax) },
	Expired: func(f *Fields, _ *Status, lax bool) {
		_, present := f.time("expired_at")
		f.Check(lax || present, "expired_at", "is required")
	},
	Cancelled: func(f *Fields, s *Status, _ bool) { s.Reason = f.Reason(Optional) },
	Superseded: func(f *Fields, s *Status, lax bool) {
		f.Check(lax || f.has("superseded_by"), "superseded_by", "is required")
		s.Reason = f.OneOf("reason", "", "merge", "split", "replace")
		f.Check(lax || s.Reason != "", "reason", "is required")
	},
	Delegated: func(f *Fields, s *Status, lax bool) {
		s.Delegated = f.Text("delegated_to", maxName)
		f.Check(lax || s.Delegated != "", "delegated_to", "is required")
		s.Reason = f.Reason(Optional)
	},
}

// checkETA checks eta, a time or a duration (MESS-18), and estimate, an ISO 8601 duration. They are kept as sent.
func (f *Fields) checkETA() {
	f.timeOrSpanText("eta")
	estimate := f.Text("estimate", 64)
	_, isSpan := parseISOSpan(estimate)
	f.Check(estimate == "" || isSpan, "estimate", "must be an ISO 8601 duration")
}

// Reason reads a reason, which is a text or {type, detail}, as a text for people.
func (f *Fields) Reason(required bool) string {
	v, ok := f.Get("reason")
	f.Check(ok || !required, "reason", "is required")
	if v.Kind() != wire.Object {
		return f.Text("reason", MaxProse)
	}
	g := f.In(v, "reason")
	s := g.Required("type", maxName)
	if detail := g.Text("detail", MaxProse); detail != "" {
		s += ": " + detail
	}
	return s
}

// checkWaitingFor checks what a waiting status waits for (MESS-19).
func (f *Fields) checkWaitingFor() {
	switch f.OneOf("type", "", "dependency", "condition", "resource", "access", "schedule") {
	case "":
		f.fail("type", "is required")
	case "dependency":
		f.Refs("ref", Mandatory)
	case "condition":
		f.Required("condition", MaxProse)
	case "resource":
		f.Required("resource", MaxProse)
	case "access":
		f.Required("location", MaxProse)
	case "schedule":
		_, present := f.time("available_at")
		f.Check(present, "available_at", "is required")
	}
}

// readQuestions reads the questions of needs_input. Over REST a bare message is one unnamed question (MESS-20).
func (f *Fields) readQuestions(lax bool, message string) []Question {
	var out []Question
	for i, e := range f.List("questions", 50) {
		g := f.In(e, fmt.Sprintf("questions[%d]", i))
		id := g.Text("field", MaxID)
		if id == "" {
			id = g.Text("id", MaxID)
		}
		q := Question{ID: id, Question: g.Required("question", MaxProse)}
		g.Check(id != "", "field", "is required")
		for _, o := range g.List("options", 100) {
			if s, ok := o.Str(); ok {
				q.Options = append(q.Options, s)
			} else {
				q.Options = append(q.Options, string(o.JSON()))
			}
		}
		out = append(out, q)
	}
	if len(out) == 0 {
		f.Check(lax, "questions", "is required")
		out = []Question{{Question: message}}
	}
	return out
}

// QuestionTree returns the open questions as MESS writes them.
func (t *Thread) QuestionTree() wire.Value {
	var list []wire.Value
	for _, q := range t.Questions {
		if q.Answered {
			continue
		}
		v := wire.Obj(wire.TextField("field", q.ID), wire.TextField("question", q.Question))
		if len(q.Options) > 0 {
			v = v.With("options", wire.Texts(q.Options))
		}
		list = append(list, v)
	}
	return wire.Arr(list...)
}
