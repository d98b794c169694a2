package moltspeak

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestOrderOfChecks: of several errors in a message, the answer names the one whose check comes first in MS-50. Each
// row fixes the error of the row before.
func TestOrderOfChecks(t *testing.T) {
	r, n := newTestRig(t, nil)
	const blocked = "blocked@x"
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins its key
	if err := acl.NewRules(r.store.Records(), acl.Policy{}).Set(t.Context(), "moltspeak:inbound/"+blocked, acl.Blocked, time.Now()); err != nil {
		t.Fatal(err)
	}
	old := r.draft(cat, message.OpQuery, plainQuery)
	r.say(cat, old)

	d := r.draft(cat, message.OpQuery, `{}`)
	d.To = message.Agent{Agent: "x", Org: "y"}
	d.From = self(blocked)
	d.From.Key = self(dog).Key
	d.Time = time.Now().Add(-time.Hour)
	d.ID, d.Class, d.Cap = old.ID, message.Confidential, []string{"code.execute"}
	version, signer, envelope := "0.2", dog, true
	for _, step := range []struct {
		name  string
		want  message.Code
		field string
		mend  func()
	}{
		{"envelope", message.CodeSchema, "envelope.compressed", func() { envelope = false }},
		{"version", message.CodeVersion, "v", func() { version = message.Version }},
		{"payload", message.CodeMissingField, "p.domain", func() { d.P = mustTree(t, plainQuery) }},
		{"recipient", message.CodeInvalidParam, "to", func() { d.To = us }},
		{"block list", message.CodeCapability, "", func() { d.From = self(cat); d.From.Key = self(dog).Key }},
		{"key", message.CodeAuthFailed, "", func() { d.From.Key = "" }},
		{"signature", message.CodeSignature, "", func() { signer = cat }},
		{"window", message.CodeInvalidParam, "ts", func() { d.Time = time.Now() }},
		{"seen", message.CodeInvalidParam, "id", func() { d.ID = "fresh" }},
		{"class", message.CodeClassification, "cls", func() { d.Class = message.Internal }},
		{"capability", message.CodeCapability, "cap", func() { d.Cap = nil }},
		{"", "", "", nil},
	} {
		tree := message.Sign(d.Tree().With("v", wire.Text(version)), keyOf(signer))
		raw := tree.JSON()
		if envelope {
			raw = fmt.Appendf(nil, `{"moltspeak":"0.1","envelope":{"compressed":true},"message":%s}`, raw)
		}
		before := len(n.got)
		m, _ := r.sendRaw(cat, raw)
		if code := message.Code(m.P.GetStr("code")); code != step.want || m.P.GetStr("field") != step.field {
			t.Errorf("%s: %s %s, want %s %s", step.name, code, m.P.GetStr("field"), step.want, step.field)
		}
		if taken := len(n.got) - before; (taken == 1) != (step.want == "") {
			t.Errorf("%s: the node got %d messages", step.name, taken)
		}
		if step.mend != nil {
			step.mend()
		}
	}
}
