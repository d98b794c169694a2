package message

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Payload is the parsed p of a message.
type Payload interface{ isPayload() }

// Hello opens a handshake.
type Hello struct {
	Versions []string
	Classes  []Class // empty: unknown
}

// Verify asks for proof of a key.
type Verify struct {
	Challenge string
	Time      time.Time
}

// Query asks for information.
type Query struct {
	Domain, Intent string
	Params         wire.Value
}

// Respond answers.
type Respond struct {
	Status string // success, error or partial
	Data   wire.Value
	Schema string
}

// Task delegates work.
type Task struct {
	Action, ID, Type string
	Params           wire.Value
	Deadline         time.Time
}

// Stream is a part of a stream.
type Stream struct {
	Action, ID, Type, ContentType string
	Seq, Total                    int64 // Total is -1 in an end that does not state it
	Data                          string
	Checksum                      string
}

// Tool calls or describes a tool, or lists all tools.
type Tool struct {
	Action, Tool string
}

// Consent requests, grants, revokes or verifies permission to use personal data. Human is the person whose data it is.
type Consent struct {
	Action, Purpose, Duration, Human, Token string
	Constraints                             Constraints
	Types                                   []string
}

// Constraints narrow a consent. We enforce one_time. The peer, which reads all three in its token, has to respect the
// other two.
type Constraints struct {
	OneTime   bool `json:"one_time,omitempty"`
	NoStorage bool `json:"no_storage,omitempty"`
	NoForward bool `json:"no_forward,omitempty"`
}

// Ping asks an agent for a sign of life.
type Ping struct{ Nonce wire.Value }

// Discover searches for agents.
type Discover struct {
	All, Any []string // capabilities: agents must have all of All, and one of Any if it is not empty
	Limit    int
}

// Ack is an answer that has no members of interest here.
type Ack struct{}

func (Hello) isPayload()    {}
func (Verify) isPayload()   {}
func (Query) isPayload()    {}
func (Respond) isPayload()  {}
func (Task) isPayload()     {}
func (Stream) isPayload()   {}
func (Tool) isPayload()     {}
func (Consent) isPayload()  {}
func (Ping) isPayload()     {}
func (Discover) isPayload() {}
func (Ack) isPayload()      {}

var payloads = map[Op]func(*reader) Payload{
	OpHello: parseHello, OpVerify: parseVerify, OpQuery: parseQuery, OpRespond: parseRespond, OpTask: parseTask,
	OpStream: parseStream, OpTool: parseTool, OpConsent: parseConsent, OpError: parseFault, OpPing: parsePing,
	OpDiscover: parseDiscover, OpRegister: parseRegister,
	OpHelloAck: parseHello, OpVerifyResponse: parseVerifyResponse, OpConsentResponse: parseRespond, OpTaskAck: parseRespond,
	OpPong: parseAck, OpEstablished: parseAck,
}

func isKnown(op Op) bool { return payloads[op] != nil }

// Payload parses the p of the message. It checks all members that the protocol defines, even those that the result
// leaves out (MS-31).
func (m Message) Payload() (Payload, *Error) {
	parse := payloads[m.Op]
	if parse == nil {
		return nil, FailAt(CodeSchema, "op", "is not an operation of the protocol")
	}
	r := &reader{v: m.P, path: "p.", bad: CodeInvalidParam}
	p := parse(r)
	return p, r.err
}

func parseHello(r *reader) Payload {
	h := Hello{Versions: r.texts("protocol_versions")}
	r.optTexts("extensions")
	r.capabilities()
	size, _ := r.optWhole("max_message_size")
	r.check(size >= 0, "max_message_size", "must not be negative")
	for _, c := range r.optTexts("supported_cls") {
		r.check(classNames[c] != "", "supported_cls", "must contain only classes")
		h.Classes = append(h.Classes, classNames[c])
	}
	return h
}

// capabilities checks the list of capabilities, each of which is a text or an object that may have an attestation. What
// the signature of an attestation covers is not defined, so nothing is kept of it (MS-29).
func (r *reader) capabilities() {
	const key = "capabilities"
	v, ok := r.opt(key, wire.Array)
	if !ok {
		return
	}
	r.check(v.Len() <= MaxList, key, "has too many entries")
	for e := range v.Elems() {
		if s, isText := e.Str(); isText {
			r.check(len(s) <= MaxText, key, "must contain only short texts and objects")
			continue
		}
		sub := r.at(key, e)
		sub.check(e.Kind() == wire.Object, "", "must contain only short texts and objects")
		sub.name("capability")
		if proof, ok := sub.opt("attestation", wire.Object); ok {
			in := sub.at("attestation", proof)
			in.oneOf("type", "org-signed")
			in.check(ValidName(in.name("org")), "org", "must be 1 to 128 characters from A-Z a-z 0-9 _ -")
			in.name("signature")
			in.optMillis("expires")
		}
	}
}

func parseVerify(r *reader) Payload {
	v := Verify{Challenge: r.challenge(), Time: r.optMillis("timestamp")}
	if v.Time.IsZero() {
		r.fail(CodeMissingField, "timestamp", "is required")
	}
	return v
}

func parseVerifyResponse(r *reader) Payload { return Verify{Challenge: r.challenge()} }

func (r *reader) challenge() string {
	text := r.text("challenge")
	raw, err := hex.DecodeString(text)
	r.check(err == nil && len(raw) == 32, "challenge", "must be 32 bytes in hex")
	return text
}

func parseQuery(r *reader) Payload {
	q := Query{Domain: r.name("domain"), Intent: r.optText("intent")}
	r.check(len(q.Intent) <= MaxText, "intent", "is too long")
	q.Params, _ = r.opt("params", wire.Object)
	if f, ok := r.opt("response_format", wire.Object); ok {
		sub := r.at("response_format", f)
		sub.optOneOf("type", "structured", "text", "stream")
		sub.optText("schema")
		sub.optTexts("fields")
	}
	return q
}

func parseRespond(r *reader) Payload {
	a := Respond{Status: r.oneOf("status", "success", "error", "partial"), Schema: r.optText("schema")}
	data, ok := r.v.Get("data")
	if !ok { // other members count as data
		data = r.v.Without("status", "schema")
	}
	a.Data = data
	return a
}

func parseTask(r *reader) Payload {
	t := Task{
		Action: r.oneOf("action", "create", "status", "cancel", "complete"), ID: r.name("task_id"), Type: r.optText("type"),
	}
	r.optText("description")
	t.Deadline = r.optMillis("deadline")
	r.optOneOf("priority", "low", "normal", "high", "urgent")
	r.check(len(t.Type) <= MaxText, "type", "is too long")
	t.Params, _ = r.opt("params", wire.Object)
	r.opt("constraints", wire.Object)
	if c, ok := r.opt("callback", wire.Object); ok {
		sub := r.at("callback", c)
		sub.optFlag("on_complete")
		sub.optFlag("on_progress")
	}
	if list, ok := r.opt("subtasks", wire.Array); ok {
		r.check(list.Len() <= MaxList, "subtasks", "has too many entries")
		for s := range list.Elems() {
			sub := r.at("subtasks", s)
			sub.check(s.Kind() == wire.Object, "", "must contain only objects")
			sub.name("id")
			sub.name("type")
		}
	}
	return t
}

func parseStream(r *reader) Payload {
	s := Stream{
		Action: r.oneOf("action", "start", "chunk", "end", "error"), ID: r.name("stream_id"), Type: r.optText("type"),
		ContentType: r.optText("content_type"), Checksum: r.optText("checksum"),
	}
	r.check(len(s.Type) <= MaxText, "type", "is too long")
	r.check(len(s.ContentType) <= MaxText, "content_type", "is too long")
	switch s.Action {
	case "chunk":
		s.Seq = r.whole("seq")
		s.Data = r.text("data")
		r.check(len(s.Data) <= MaxChunk, "data", "must have at most 64 KiB")
	case "end":
		s.Total = -1 // not stated
		if n, ok := r.optWhole("total_chunks"); ok {
			r.check(n >= 0, "total_chunks", "must not be negative")
			s.Total = n
		}
	}
	return s
}

func parseTool(r *reader) Payload {
	t := Tool{Action: r.oneOf("action", "invoke", "list", "describe")}
	if t.Action != "list" {
		t.Tool = r.name("tool")
	}
	r.opt("input", wire.Object)
	if t.Action == "invoke" {
		r.need("input", wire.Object)
	}
	if ms, ok := r.optWhole("timeout_ms"); ok {
		r.check(0 < ms && ms <= 3600_000, "timeout_ms", "must be 1 to 3600000")
	}
	return t
}

func parseConsent(r *reader) Payload {
	c := Consent{Action: r.oneOf("action", "request", "grant", "revoke", "verify"), Human: r.optText("human"), Token: r.optText("consent_token")}
	r.check(len(c.Human) <= MaxText, "human", "is too long")
	r.check(len(c.Token) <= 8<<10, "consent_token", "is too long")
	if c.Action == "revoke" || c.Action == "verify" {
		if c.Token == "" {
			r.fail(CodeMissingField, "consent_token", "is required")
		}
		return c
	}
	c.Types, c.Purpose = r.texts("data_types"), r.name("purpose")
	r.check(len(c.Types) > 0, "data_types", "must have at least one entry")
	c.Duration = r.oneOf("duration", "session", "24h", "7d", "permanent")
	if v, ok := r.opt("constraints", wire.Object); ok {
		sub := r.at("constraints", v)
		c.Constraints = Constraints{OneTime: sub.optFlag("one_time"), NoStorage: sub.optFlag("no_storage"), NoForward: sub.optFlag("no_forward")}
	}
	return c
}

func parsePing(r *reader) Payload {
	nonce, ok := r.v.Get("nonce")
	if !ok || nonce.IsNull() {
		r.fail(CodeMissingField, "nonce", "is required")
	}
	r.check(nonce.Kind() == wire.String || nonce.Kind() == wire.Number, "nonce", "must be a text or a number")
	return Ping{nonce}
}

// maxAny bounds the alternatives of a discover: each is a search in every directory.
const maxAny = 5

func parseDiscover(r *reader) Payload {
	d := Discover{Limit: 20}
	if one := r.optText("capability"); one != "" {
		d.All = []string{one}
	}
	if c, ok := r.opt("capabilities", wire.Object); ok {
		sub := r.at("capabilities", c)
		d.All, d.Any = append(d.All, sub.optTexts("all")...), sub.optTexts("any")
		sub.check(len(d.Any) <= maxAny, "any", fmt.Sprintf("must have at most %d capabilities", maxAny))
	}
	if len(d.All)+len(d.Any) == 0 {
		r.fail(CodeMissingField, "capability", "is required")
	}
	if n, ok := r.optWhole("limit"); ok {
		r.check(n > 0, "limit", "must be positive")
		d.Limit = int(min(max(n, 1), 50))
	}
	return d
}

func parseRegister(r *reader) Payload {
	r.oneOf("action", "create", "update", "delete", "renew")
	return Ack{}
}

func parseAck(*reader) Payload { return Ack{} }

// Value returns the p of a respond message.
func (a Respond) Value() wire.Value {
	return wire.Obj(wire.TextField("status", a.Status), wire.Field("data", a.Data)).WithOptional("schema", a.Schema)
}
