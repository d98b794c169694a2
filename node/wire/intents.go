package wire

import (
	"slices"
	"strings"
	"time"
)

// Intent is the purpose of a message.
type Intent string

// The standard intents (§6).
const (
	Schedule    Intent = "mesh.schedule"
	Deliver     Intent = "mesh.message"
	RequestInfo Intent = "mesh.request_info"
	Negotiate   Intent = "mesh.negotiate"
	Handoff     Intent = "mesh.handoff"
)

// StandardIntents returns the intents of the specification, in its order.
func StandardIntents() []Intent {
	return []Intent{Schedule, Deliver, RequestInfo, Negotiate, Handoff}
}

// OrCustom returns the name of a standard intent, and "custom" for every other, whose name its sender may have made up.
func (i Intent) OrCustom() string {
	if slices.Contains(StandardIntents(), i) {
		return string(i)
	}
	return "custom"
}

// Valid reports whether the name passes line 4 of the receive table in docs/protocol.md.
func (i Intent) Valid() bool { return validName(string(i)) }

// IsStandard reports whether the name is in the namespace of the specification.
func (i Intent) IsStandard() bool { return strings.HasPrefix(string(i), "mesh.") }

// IsCustom reports whether the name is a custom intent: a reversed domain with at least two labels (AM-70).
func (i Intent) IsCustom() bool {
	return i.Valid() && !i.IsStandard() && strings.Contains(strings.Trim(string(i), "."), ".") &&
		!strings.Contains(string(i), "..") && !strings.HasPrefix(string(i), ".") && !strings.HasSuffix(string(i), ".")
}

// The actions that the protocol itself interprets.
const (
	ActionClose    = "close"            // §5, AM-39
	ActionPending  = "pending_approval" // §7, AM-32
	ActionReceived = "received"         // AM-71
	ActionSealed   = "sealed"           // AM-85: the payload is encrypted for the recipient
)

// receiptActions are the actions of a receipt, and receiptMembers all members that it may have (AM-91).
var (
	receiptActions = []string{ActionReceived, "confirmed", "acknowledged", ActionPending, ActionClose}
	receiptMembers = []string{"action", "status", "reason", "estimated_response", "metadata"}
)

// IsReceipt reports whether a payload only says what became of the message that it answers (AM-91). A custom intent may
// use most of these actions for something else, but every node answers with received and pending_approval.
func IsReceipt(intent Intent, payload Value) bool {
	action := payload.GetStr("action")
	if !intent.IsStandard() && action != ActionReceived && action != ActionPending {
		return false
	}
	return slices.Contains(receiptActions, action) && payload.Without(receiptMembers...).Len() == 0
}

// CheckPayload checks a payload against the shape of its intent (§6, AM-69): the action is a string, and the required
// fields of a known action are present and have their types. null counts as absent for optional fields, and extra
// fields are allowed. For an unknown action, known is false and err is nil. An intent outside of mesh.* has no shape:
// any payload passes, and known is true. The error is a *[FieldError].
func CheckPayload(intent Intent, payload Value) (known bool, err error) {
	if !intent.IsStandard() {
		return true, nil
	}
	f := fields{v: payload, path: "payload."}
	action := f.text("action")
	if f.err != nil {
		return false, f.err
	}
	if action == ActionClose || action == ActionPending || action == ActionReceived {
		return true, nil
	}
	check, known := shapes[intent][action]
	if known && check != nil {
		check(&f)
	}
	return known, f.result()
}

// shapes is the table of AM-69: the fields that each action of each standard intent must have.
var shapes = map[Intent]map[string]func(*fields){
	Schedule: {
		"propose": func(f *fields) {
			event := f.event()
			times := event.array("proposed_times")
			event.check(times.Len() > 0, "proposed_times", "must have at least one entry")
			event.text("duration")
			event.text("title")
			f.join(event)
		},
		"counter": func(f *fields) { f.join(f.event()) },
		"accept":  func(f *fields) { f.optText("selected_time") },
		"decline": nil, // these two have no other fields to check
		"cancel":  nil,
	},
	Deliver: {
		"deliver": func(f *fields) {
			m := f.sub("message")
			m.text("body")
			m.optText("subject")
			m.oneOf("priority", "must be low, normal or high", "low", "normal", "high")
			m.optBool("reply_requested")
			f.join(m)
		},
	},
	RequestInfo: {
		"ask": func(f *fields) {
			f.text("question")
			f.optText("context")
			f.oneOf("response_format", "must be text, json or structured", "text", "json", "structured")
		},
	},
	Negotiate: {
		"propose":  func(f *fields) { f.terms() },
		"counter":  func(f *fields) { f.terms() },
		"accept":   nil,
		"reject":   nil,
		"withdraw": nil,
	},
	Handoff: {
		"request_human": func(f *fields) {
			f.text("reason")
			f.oneOf("preferred_channel", "must be email, phone or chat", "email", "phone", "chat")
		},
	},
}

// event checks the types of an event and returns its fields. The action decides which of them are required. The caller
// must join them.
func (f *fields) event() *fields {
	e := f.sub("event")
	e.optText("title")
	e.optText("duration")
	e.optText("location")
	e.optText("notes")
	if times, ok := e.opt("proposed_times", Array, "must be an array"); ok {
		for _, s := range e.texts("proposed_times", times) {
			_, ok := ParseISO8601(s)
			e.check(ok, "proposed_times", "must hold ISO 8601 times")
		}
	}
	return e
}

// terms checks the member terms.
func (f *fields) terms() {
	t := f.sub("terms")
	t.text("description")
	t.optText("price")
	if list, ok := t.opt("conditions", Array, "must be an array"); ok {
		t.texts("conditions", list)
	}
	f.join(t)
}

// isoLayouts are the ISO 8601 forms in payloads. Only those with an offset give an instant.
var isoLayouts = [...]string{
	time.RFC3339Nano, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00",
	"2006-01-02T15:04:05", "2006-01-02T15:04",
	"2006-01-02",
}

const offsetLayouts = 3 // number of isoLayouts with an offset, which come first

// ParseISO8601 reads a time of a payload. Peers write it more freely than a timestamp: seconds, zone or the whole time
// of day may be missing. A time without a zone counts as UTC.
func ParseISO8601(s string) (time.Time, bool) { return parseTime(s, isoLayouts[:]) }

// ParseInstant reads a time that has an offset. Without an offset, people in two zones would agree on two different
// times.
func ParseInstant(s string) (time.Time, bool) { return parseTime(s, isoLayouts[:offsetLayouts]) }

func parseTime(s string, layouts []string) (time.Time, bool) {
	if len(s) > 64 {
		return time.Time{}, false
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, inUTC(t)
		}
	}
	return time.Time{}, false
}
