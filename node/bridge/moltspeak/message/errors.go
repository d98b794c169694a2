package message

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Code is one of the fourteen error codes of the protocol.
type Code string

// The codes.
const (
	CodeParse          Code = "E_PARSE"
	CodeVersion        Code = "E_VERSION"
	CodeSchema         Code = "E_SCHEMA"
	CodeMissingField   Code = "E_MISSING_FIELD"
	CodeInvalidParam   Code = "E_INVALID_PARAM"
	CodeAuthFailed     Code = "E_AUTH_FAILED"
	CodeSignature      Code = "E_SIGNATURE"
	CodeCapability     Code = "E_CAPABILITY"
	CodeConsent        Code = "E_CONSENT"
	CodeClassification Code = "E_CLASSIFICATION"
	CodeRateLimit      Code = "E_RATE_LIMIT"
	CodeTimeout        Code = "E_TIMEOUT"
	CodeTaskFailed     Code = "E_TASK_FAILED"
	CodeInternal       Code = "E_INTERNAL"
)

// codeRow is the definition of a code in the protocol: its category, its HTTP status, and how to recover.
type codeRow struct {
	Code        Code
	Category    string
	Status      int
	Recoverable bool
	Action      string // in the suggestion
	Message     string // public: quotes nothing (MS-52)
}

// Codes is the only table of codes.
var Codes = []codeRow{
	{CodeParse, "protocol", 400, true, "retry", "the message is not one strict JSON object"},
	{CodeVersion, "protocol", 400, false, "upgrade", "the protocol version is not supported"},
	{CodeSchema, "validation", 400, true, "retry", "the message does not match the schema"},
	{CodeMissingField, "validation", 400, true, "retry", "a required field is missing"},
	{CodeInvalidParam, "validation", 400, true, "retry", "a value is not valid"},
	{CodeAuthFailed, "auth", 401, false, "", "authentication failed"},
	{CodeSignature, "auth", 401, true, "retry", "the signature does not verify"},
	{CodeCapability, "auth", 403, true, "request_capability", "a required capability is not held"},
	{CodeConsent, "privacy", 403, true, "request_consent", "personal data without a consent that covers it"},
	{CodeClassification, "privacy", 403, true, "retry", "the classification does not fit the way this was sent"},
	{CodeRateLimit, "transport", 429, true, "retry_after", "too many requests"},
	{CodeTimeout, "transport", 504, true, "retry_after", "the operation timed out"},
	{CodeTaskFailed, "execution", 200, false, "", "the task could not be completed"},
	{CodeInternal, "execution", 500, true, "retry_after", "internal error"},
}

// RowOf returns the definition of a code.
func RowOf(c Code) (codeRow, bool) {
	for _, r := range Codes {
		if r.Code == c {
			return r, true
		}
	}
	return codeRow{}, false
}

// IsTemporary reports whether the same message may succeed later.
func (c Code) IsTemporary() bool {
	row, _ := RowOf(c)
	return row.Action == "retry_after"
}

// Error is a refusal in terms of the protocol. Its cause is for the log and is never sent.
type Error struct {
	Code        Code
	Status      int
	Field       string
	Fix         string // one of our fixed texts
	Recoverable bool
	Delay       time.Duration
	Types       []string // data types for which a consent would help
	Capability  string

	cause error
}

// Fail returns a refusal with a code.
func Fail(c Code) *Error {
	r, ok := RowOf(c)
	if !ok {
		panic("moltspeak: no such code") // a programming mistake
	}
	return &Error{Code: c, Status: r.Status, Recoverable: r.Recoverable}
}

// FailAt returns a refusal that names a member and how to fix it.
func FailAt(c Code, field, fix string) *Error {
	e := Fail(c)
	e.Field, e.Fix = field, fix
	return e
}

// Because sets the private cause.
func (e *Error) Because(err error) *Error { e.cause = err; return e }

func (e *Error) Error() string {
	text := string(e.Code)
	if e.Field != "" {
		text += " " + e.Field
	}
	if e.Fix != "" {
		text += ": " + e.Fix
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Payload returns the p of an error message. If brief is set, it tells the code, but neither the field nor how to fix it.
func (e *Error) Payload(brief bool) wire.Value {
	row, _ := RowOf(e.Code)
	v := wire.Obj(wire.TextField("code", string(e.Code)), wire.TextField("category", row.Category),
		wire.TextField("message", row.Message))
	if e.Field != "" && !brief {
		v = v.With("field", wire.Text(e.Field))
	}
	v = v.With("recoverable", wire.Bool(e.Recoverable))
	if row.Action == "" || row.Recoverable && !e.Recoverable { // the usual advice does not help here
		return v
	}
	hint := wire.Obj(wire.TextField("action", row.Action))
	if row.Action == "retry_after" {
		hint = hint.With("delay_ms", wire.Int(max(e.Delay, time.Second).Milliseconds()))
	}
	if !brief {
		hint = hint.WithOptional("capability", e.Capability)
		if len(e.Types) > 0 {
			hint = hint.With("data_types", wire.Texts(e.Types))
		}
		hint = hint.WithOptional("fix", e.Fix)
	}
	return v.With("suggestion", hint)
}

// Fault is the p of an error message from a peer, without the peer's texts.
type Fault struct {
	Code        Code
	Field       string
	Recoverable bool
	Delay       time.Duration
}

func (Fault) isPayload() {}

func (f Fault) Error() string { return fmt.Sprintf("the peer answered %s", f.Code) }

// otherCodes maps codes from other public documents to those of the fourteen with the same meaning (MS-51).
var otherCodes = map[string]Code{
	"E_PII": CodeConsent, "E_AGENT_NOT_FOUND": CodeTimeout, "E_CAPABILITY_UNKNOWN": CodeCapability,
	"E_REGISTRATION_EXPIRED": CodeAuthFailed, "E_REGISTRATION_CONFLICT": CodeInvalidParam, "E_VISIBILITY_DENIED": CodeCapability,
	"E_REGISTRY_UNAVAILABLE": CodeTimeout, "E_RATE_LIMIT_DISCOVERY": CodeRateLimit, "E_INVALID_PROFILE": CodeInvalidParam,
}

func parseFault(r *reader) Payload {
	r.optText("category")
	r.optText("message")
	f := Fault{Field: r.optText("field")}
	text := r.text("code")
	row, ok := RowOf(Code(text))
	if !ok {
		row, ok = RowOf(otherCodes[text])
	}
	r.check(ok, "code", "must be one of the codes of the protocol")
	f.Code, f.Recoverable = row.Code, row.Recoverable
	if recoverable, ok := r.v.Get("recoverable"); ok {
		f.Recoverable, _ = recoverable.Boolean()
	}
	if hint, ok := r.v.Get("suggestion"); ok {
		if ms, ok := integer(hint, "delay_ms"); ok && ms > 0 {
			f.Delay = time.Duration(min(ms, int64(24*time.Hour/time.Millisecond))) * time.Millisecond
		}
	}
	return f
}

// FromWire translates a refusal of the node into terms of the protocol.
func FromWire(err error) *Error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return Fail(CodeInternal).Because(err)
	}
	var out *Error
	switch e.Code {
	case wire.InvalidMessage:
		out = Fail(CodeInvalidParam)
		if e.Status == http.StatusConflict {
			out.Field, out.Status = "id", http.StatusConflict
		}
		if e.Status == http.StatusRequestEntityTooLarge {
			out = Fail(CodeSchema)
			out.Status = e.Status
		}
	case wire.InvalidSignature:
		out = Fail(CodeSignature)
	case wire.IntentNotSupported, wire.Unauthorized:
		out = Fail(CodeCapability)
	case wire.OwnerRejected:
		out = Fail(CodeCapability)
		out.Recoverable = false
	case wire.RateLimited:
		out = Fail(CodeRateLimit)
		out.Delay = e.RetryAfter
	case wire.ConversationClosed:
		out = Fail(CodeTaskFailed)
	case wire.Code(CodeConsent), wire.Code(CodeClassification): // the bridge blocked the answer of a hook
		out = Fail(Code(e.Code))
	default:
		out = Fail(CodeTimeout)
		out.Delay = e.RetryAfter
	}
	return out.Because(err)
}

// Wire translates a peer's error into terms of AgentMesh, for the outbox.
func (f Fault) Wire() *wire.Error {
	row, _ := RowOf(f.Code)
	e := &wire.Error{Code: wire.AgentUnavailable, Status: row.Status, Retry: f.Recoverable, Message: "the MoltSpeak peer answered " + string(f.Code)}
	switch f.Code {
	case CodeParse, CodeVersion, CodeSchema, CodeMissingField, CodeInvalidParam:
		e.Code = wire.InvalidMessage
	case CodeAuthFailed, CodeSignature:
		e.Code = wire.InvalidSignature
	case CodeCapability:
		e.Code = wire.IntentNotSupported
	case CodeConsent, CodeClassification:
		e.Code = wire.OwnerRejected
	case CodeRateLimit:
		e.Code = wire.RateLimited
	case CodeTaskFailed:
		e.Code = wire.ConversationClosed
	}
	if row.Category == "transport" || f.Code == CodeInternal {
		e.Retry = true
	}
	return e
}
