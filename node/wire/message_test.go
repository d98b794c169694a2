package wire

import (
	"errors"
	"strings"
	"testing"
	"time"
)

const goodMessage = `{"agentmesh":"0.1.0","message_id":"msg_1","conversation_id":"conv_1","from":"am_a","to":"am_b",` +
	`"timestamp":"2026-02-19T10:30:00.000Z","intent":"mesh.message","payload":{"action":"deliver"},"signature":"c2ln"}`

// TestParseMessage checks line 4: the nine fields, their types, the ids, the version, the syntax of the time and the
// alphabet of the intent.
func TestParseMessage(t *testing.T) {
	v := mustParse(t, goodMessage)
	m, err := ParseMessage(v)
	if err != nil {
		t.Fatal(err)
	}
	want := Message{ID: "msg_1", Conversation: "conv_1", From: "am_a", To: "am_b", Intent: Deliver, Signature: "c2ln",
		Time: time.Date(2026, 2, 19, 10, 30, 0, 0, time.UTC)}
	if m.ID != want.ID || m.Conversation != want.Conversation || m.From != want.From || m.To != want.To ||
		m.Intent != want.Intent || m.Signature != want.Signature || !m.Time.Equal(want.Time) || m.Action() != "deliver" {
		t.Errorf("ParseMessage = %+v", m)
	}
	if string(m.Tree.JSON()) != goodMessage {
		t.Errorf("the tree is not the text that came in: %s", m.Tree.JSON())
	}

	for _, key := range []string{"agentmesh", "message_id", "conversation_id", "from", "to", "timestamp", "intent", "payload", "signature"} {
		wrong := map[string]Value{"missing": v.Without(key), "null": v.With(key, Value{}), "number": v.With(key, Int(1)),
			"array": v.With(key, Arr()), "empty": v.With(key, Text("")), "boolean": v.With(key, Bool(true))}
		if key != "payload" {
			wrong["object"] = v.With(key, Obj())
		}
		// The right name in another case is another field.
		wrong["upper case"] = v.Without(key).With(strings.ToUpper(key), must(v.Get(key)))
		for name, bad := range wrong {
			_, err := ParseMessage(bad)
			field, ok := errors.AsType[*FieldError](err)
			if !ok || field.Field != key {
				t.Errorf("%s %s: ParseMessage = %v, want a *FieldError about it", key, name, err)
			}
		}
	}
}

func TestParseMessageValues(t *testing.T) {
	v := mustParse(t, goodMessage)
	tests := []struct {
		key, val string
		ok       bool
	}{
		{"agentmesh", "0.1.7-x", true},
		{"agentmesh", "0.2.0", false},
		{"message_id", "msg_" + strings.Repeat("a", 128), true},
		{"message_id", "msg_" + strings.Repeat("a", 129), false},
		{"message_id", "conv_1", false},
		{"conversation_id", "conv_", false},
		{"conversation_id", "msg_1", false},
		{"from", "am_\u0430", false},
		{"from", "sk_a", false},
		{"to", "am_a/b", false},
		{"timestamp", "2026-02-19T10:30:00+01:00", true},
		{"timestamp", "2026-02-19T10:30:00z", false},
		{"timestamp", "yesterday", false},
		{"intent", "com.example.invoice.request", true},
		{"intent", "mesh.unknown", true},
		{"intent", strings.Repeat("i", 128), true},
		{"intent", strings.Repeat("i", 129), false},
		{"intent", "mesh message", false},
		{"intent", "mesh.m\u0435ssage", false},
	}
	for _, tt := range tests {
		_, err := ParseMessage(v.With(tt.key, Text(tt.val)))
		if (err == nil) != tt.ok {
			t.Errorf("%s = %q: ParseMessage = %v, want ok %v", tt.key, tt.val, err, tt.ok)
		}
		if err != nil && strings.Contains(err.Error(), tt.val) {
			t.Errorf("%s: the error quotes the value: %v", tt.key, err)
		}
	}
	for _, bad := range []string{`[]`, `"x"`, `null`, `{}`} {
		if _, err := ParseMessage(mustParse(t, bad)); err == nil {
			t.Errorf("ParseMessage(%s) accepted", bad)
		}
	}
	if _, err := ParseMessage(v.With("extra", Text("x"))); err != nil {
		t.Errorf("an unknown field is kept, not refused: %v", err)
	}
}

func TestParseDraft(t *testing.T) {
	v := mustParse(t, goodMessage)
	for _, draft := range []Value{v, v.Without("signature"), v.With("signature", Int(1))} {
		if m, err := ParseDraft(draft); err != nil || m.Signature != "" {
			t.Errorf("ParseDraft = %+v, %v", m, err)
		}
	}
	if _, err := ParseDraft(v.Without("to")); err == nil {
		t.Error("ParseDraft accepted a message without to")
	}
}

func TestDraftTree(t *testing.T) {
	d := Draft{ID: NewMessageID(), Conversation: NewConversationID(), From: "am_a", To: "am_b", Intent: Schedule,
		Time:    time.Date(2026, 2, 19, 2, 30, 0, 5e6, time.FixedZone("", -8*3600)),
		Payload: Obj(Member{"action", Text("accept")}, Member{"metadata", Obj(Member{"in_reply_to", Text("msg_0")})})}
	m, err := ParseDraft(d.Tree())
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != d.ID || m.Conversation != d.Conversation || !m.Time.Equal(d.Time) || m.Action() != "accept" || m.Meta("in_reply_to") != "msg_0" {
		t.Errorf("read back %+v", m)
	}
	if got := m.Tree.GetStr("timestamp"); got != "2026-02-19T10:30:00.005Z" {
		t.Errorf("timestamp = %s", got)
	}
	if m.Meta("none") != "" || (Message{}).Meta("x") != "" || (Message{}).Action() != "" {
		t.Error("a member was found that does not exist")
	}
}
