package wire

import "time"

// MaxMessage is the default limit for the size of a message in bytes.
const MaxMessage = 256 << 10

// Message is a message of the specification (§5), filled from Tree. We send and verify trees, never the fields (AM-13).
type Message struct {
	ID           MessageID
	Conversation ConversationID
	From, To     AgentID
	Time         time.Time
	Intent       Intent
	Payload      Value
	Signature    string // empty in a draft

	Tree Value // the whole message as received, including unknown fields and the signature
}

// Draft is the content of a message to send. [Draft.Tree] makes the message.
type Draft struct {
	ID           MessageID
	Conversation ConversationID
	From, To     AgentID
	Time         time.Time
	Intent       Intent
	Payload      Value
}

// Tree returns the unsigned message in the field order of the specification.
func (d Draft) Tree() Value {
	return Obj(
		Member{"agentmesh", Text(Version)},
		Member{"message_id", Text(string(d.ID))},
		Member{"conversation_id", Text(string(d.Conversation))},
		Member{"from", Text(string(d.From))},
		Member{"to", Text(string(d.To))},
		Member{"timestamp", Text(FormatTime(d.Time))},
		Member{"intent", Text(string(d.Intent))},
		Member{"payload", d.Payload},
	)
}

// ParseMessage fills a message from a tree. It is line 4 of the receive table in docs/protocol.md: the nine fields,
// their types, the ids, the version, the syntax of the time and the alphabet of the intent. It does not check the shape
// of the payload or whether the time is recent. The error is a *[FieldError].
func ParseMessage(v Value) (Message, error) {
	m, err := ParseDraft(v)
	if err != nil {
		return Message{}, err
	}
	f := fields{v: v}
	m.Signature = f.text("signature")
	if f.err == nil && m.Signature == "" {
		f.fail("signature", "is empty")
	}
	return m, f.result()
}

// ParseDraft is [ParseMessage], but ignores the signature, which may be missing.
func ParseDraft(v Value) (Message, error) {
	f := fields{v: v}
	if v.Kind() != Object {
		f.fail("message", "must be an object")
	}
	f.version()
	m := Message{
		ID:           MessageID(f.text("message_id")),
		Conversation: ConversationID(f.text("conversation_id")),
		From:         AgentID(f.text("from")),
		To:           AgentID(f.text("to")),
		Intent:       Intent(f.text("intent")),
		Tree:         v,
	}
	f.check(m.ID.Valid(), "message_id", badID)
	f.check(m.Conversation.Valid(), "conversation_id", badID)
	f.check(m.From.Valid(), "from", badID)
	f.check(m.To.Valid(), "to", badID)
	stamp := f.text("timestamp")
	var ok bool
	m.Time, ok = ParseTime(stamp)
	f.check(ok, "timestamp", "must be an RFC 3339 time")
	f.check(m.Intent.Valid(), "intent", "must be 1 to 128 of A-Z a-z 0-9 . _ -")
	m.Payload = f.object("payload")
	return m, f.result()
}

// Action returns the action that the payload names, or "".
func (m Message) Action() string { return m.Payload.GetStr("action") }

// Meta returns the string with this key in payload.metadata, which contains our extensions (AM-16), or "".
func (m Message) Meta(key string) string {
	meta, _ := m.Payload.Get("metadata")
	return meta.GetStr(key)
}
