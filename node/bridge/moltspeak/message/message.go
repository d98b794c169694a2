package message

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Version is the protocol version that we speak.
const Version = "0.1"

// The limits of the protocol (MS-9).
const (
	MaxMessage = 1 << 20
	MaxBatch   = 10 << 20
	MaxChunk   = 64 << 10
	MaxNesting = 50
	MaxEntries = 100 // in a batch (MS-46)
)

// Op is an operation.
type Op string

// The operations.
const (
	OpHello    Op = "hello"
	OpVerify   Op = "verify"
	OpQuery    Op = "query"
	OpRespond  Op = "respond"
	OpTask     Op = "task"
	OpStream   Op = "stream"
	OpTool     Op = "tool"
	OpConsent  Op = "consent"
	OpError    Op = "error"
	OpRegister Op = "register"
	OpDiscover Op = "discover"
	OpPing     Op = "ping"

	OpHelloAck        Op = "hello_ack"
	OpVerifyResponse  Op = "verify_response"
	OpConsentResponse Op = "consent_response"
	OpTaskAck         Op = "task_ack"
	OpPong            Op = "pong"
	OpEstablished     Op = "session_established"
)

// Agent is a sender or recipient.
type Agent struct {
	Agent, Org string
	Key        string // signing key "ed25519:…", as claimed
	EncKey     string // encryption key "x25519:…", as claimed
}

// Name returns agent@org.
func (a Agent) Name() string { return a.Agent + "@" + a.Org }

// ParseName reads agent@org.
func ParseName(s string) (Agent, bool) {
	agent, org, ok := strings.Cut(s, "@")
	return Agent{Agent: agent, Org: org}, ok && ValidName(agent) && ValidName(org)
}

// ValidName reports whether s may name an agent or an organization.
func ValidName(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// Message is a message of the protocol. Its fields are read from Tree; signatures cover Tree.
type Message struct {
	ID       string // empty if a hello or verify has none
	Time     time.Time
	Op       Op
	From, To Agent      // zero if absent
	P        wire.Value // the payload
	Class    Class
	Sig      string
	Re       string // the id of the message that this one answers
	Expires  time.Time
	Cap      []string
	PII      *PIIMeta
	Ext      wire.Value

	Tree wire.Value
}

// Parse reads the members that every message has (MS-1 to MS-6). It ignores unknown members; the signature covers them.
func Parse(tree wire.Value) (Message, *Error) {
	m := Message{Tree: tree}
	if tree.Kind() != wire.Object {
		return m, Fail(CodeParse)
	}
	r := &reader{v: tree, bad: CodeSchema}
	version, ok := tree.Get("v")
	if !ok {
		return m, FailAt(CodeMissingField, "v", "is required")
	}
	if s, _ := version.Str(); s != Version {
		return m, FailAt(CodeVersion, "v", `must be the text "0.1"`)
	}
	m.Op = Op(r.text("op"))
	if r.err == nil && !isKnown(m.Op) {
		return m, FailAt(CodeSchema, "op", "is not an operation of the protocol")
	}
	opensHandshake := m.Op == OpHello || m.Op == OpVerify // id, to and cls are optional (MS-2)
	if !opensHandshake || r.has("id") {
		m.ID = r.text("id")
		r.check(ValidID(m.ID), "id", "must have 1 to 128 printable bytes")
	}
	if ms := r.whole("ts"); r.err == nil {
		r.check(0 < ms && ms < maxMillis, "ts", "must be Unix milliseconds")
		m.Time = time.UnixMilli(ms).UTC()
	}
	m.From, m.To = r.agent("from"), r.agent("to")
	// Without a recipient, anybody could replay the message to another agent.
	if !opensHandshake && m.Op != OpPing && m.To.Agent == "" {
		r.fail(CodeMissingField, "to", "is required")
	}
	m.P = r.need("p", wire.Object)
	m.Class = r.class(opensHandshake)
	m.Sig = r.text("sig")
	m.Re = r.optText("re")
	if m.Re != "" {
		r.check(ValidID(m.Re), "re", "must have 1 to 128 printable bytes")
	}
	// An error or hello_ack may answer a message without an id (MS-2, MS-52).
	if m.Op.IsAnswer() && m.Op != OpError && m.Op != OpHelloAck && m.Re == "" {
		r.fail(CodeMissingField, "re", "is required in an answer")
	}
	m.Expires = r.optMillis("exp")
	m.Cap = r.optTexts("cap")
	m.PII = r.piiMeta()
	m.Ext, _ = r.opt("ext", wire.Object)
	return m, r.err
}

// Content returns the members that may hold personal data: the payload, ext and members that the protocol does not
// know.
func (m Message) Content() wire.Value {
	return m.Tree.Without("v", "id", "ts", "op", "from", "to", "cls", "sig", "re", "exp", "cap", "pii_meta")
}

// Mask returns the tree in the form that the transcript may show. It is for messages with personal data. Mask masks
// the content, and leaves out members of from, to and pii_meta that the protocol does not know, because they may hold
// personal data, too.
func (m Message) Mask() wire.Value {
	replacements := map[string]wire.Value{"from": m.From.Value(), "to": m.To.Value(), "pii_meta": m.PII.value()}
	content := m.PII.Mask(m.Content()).Members() // in the order of the tree
	members := slices.Clone(m.Tree.Members())
	for i, member := range members {
		if v, ok := replacements[member.Key]; ok {
			members[i].Value = v
		} else if len(content) > 0 && content[0].Key == member.Key {
			members[i].Value, content = content[0].Value, content[1:]
		}
	}
	return wire.Obj(members...)
}

// IsAnswer reports whether the operation answers a message.
func (op Op) IsAnswer() bool {
	switch op {
	case OpRespond, OpError, OpHelloAck, OpVerifyResponse, OpConsentResponse, OpTaskAck, OpPong:
		return true
	}
	return false
}

// IsCore reports whether the operation is one of the nine that the public SDKs know (MS-25).
func (op Op) IsCore() bool {
	switch op {
	case OpHello, OpVerify, OpQuery, OpRespond, OpTask, OpStream, OpTool, OpConsent, OpError:
		return true
	}
	return false
}

// ValidID reports whether a peer may use s as a message id (MS-3).
func ValidID(s string) bool {
	bad := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, bad)
}

func (r *reader) agent(key string) Agent {
	v, ok := r.opt(key, wire.Object)
	if !ok {
		return Agent{}
	}
	sub := r.at(key, v)
	a := Agent{Agent: sub.text("agent"), Org: sub.text("org"), Key: sub.optText("key"), EncKey: sub.optText("enc_key")}
	sub.check(ValidName(a.Agent), "agent", "must be 1 to 128 characters from A-Z a-z 0-9 _ -")
	sub.check(ValidName(a.Org), "org", "must be 1 to 128 characters from A-Z a-z 0-9 _ -")
	return a
}

// Draft is the content of one of our messages.
type Draft struct {
	ID, Re   string
	Op       Op
	Time     time.Time
	From, To Agent
	P        wire.Value
	Class    Class
	Expires  time.Time
	Cap      []string
	PII      *PIIMeta
	Ext      wire.Value
}

// Tree returns the unsigned message without empty optional members, because Python peers fail to verify a message
// that has them (MS-7).
func (d Draft) Tree() wire.Value {
	v := wire.Obj(
		wire.TextField("v", Version), wire.TextField("id", d.ID), wire.Field("ts", wire.Int(d.Time.UnixMilli())),
		wire.TextField("op", string(d.Op)), wire.Field("from", d.From.Value()), wire.Field("to", d.To.Value()),
		wire.Field("p", d.P), wire.TextField("cls", string(d.Class)),
	).WithOptional("re", d.Re)
	if !d.Expires.IsZero() {
		v = v.With("exp", wire.Int(d.Expires.UnixMilli()))
	}
	if len(d.Cap) > 0 {
		v = v.With("cap", wire.Texts(d.Cap))
	}
	if d.PII != nil {
		v = v.With("pii_meta", d.PII.value())
	}
	if d.Ext.Len() > 0 {
		v = v.With("ext", d.Ext)
	}
	return v
}

// Value returns the agent as a member of a message.
func (a Agent) Value() wire.Value {
	return wire.Obj(wire.TextField("agent", a.Agent), wire.TextField("org", a.Org)).WithOptional("key", a.Key).WithOptional("enc_key", a.EncKey)
}

// ToCore returns an answer that uses only the core operations, for peers that know no others (MS-25). It turns any
// other answer into a respond message, whose data is the old payload unless that has the form of a respond already.
func (d Draft) ToCore() Draft {
	switch d.Op {
	case OpHelloAck, OpVerifyResponse, OpPong, OpEstablished:
		d.Op, d.P = OpRespond, Respond{Status: "success", Data: d.P}.Value()
	case OpConsentResponse, OpTaskAck: // their p is already that of a respond
		d.Op = OpRespond
	}
	return d
}

// ReadableID returns the id of a message that is otherwise invalid, for the error about it (MS-52).
func ReadableID(tree wire.Value) string {
	if id := tree.GetStr("id"); ValidID(id) {
		return id
	}
	return ""
}
