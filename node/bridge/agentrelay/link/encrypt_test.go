package link

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// TestPinnedKeysBounded: keys that strangers announce take no room from the owner's records, and a peer that changes
// its key again and again costs one record (AR-49).
func TestPinnedKeysBounded(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	var keys []string
	for range 3 {
		_, recipient, err := signing.GenerateAge()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, recipient)
	}
	for n := range maxPinned + 10 {
		x.link.peers.pin(fmt.Sprintf("agent-%d", n), keys[0])
	}
	kept, err := x.link.peers.all(t.Context())
	if err != nil || len(kept) != maxPinned {
		t.Errorf("%d keys are kept, %v, want %d", len(kept), err, maxPinned)
	}
	if err := x.link.peers.put(t.Context(), Peer{Peer: "friend", Agent: "am_friend"}); err != nil {
		t.Errorf("the owner's own entry: %v", err)
	}
	for n := range 10 {
		x.link.peers.pin("agent-0", keys[1+n%2])
	}
	if p, err := x.link.peers.get(t.Context(), "agent-0"); err != nil || p.Recipient != keys[0] || p.Pending != keys[1] {
		t.Errorf("peer %+v, %v, want the first key, and the second one pending", p, err)
	}
}

// TestEncrypted: encryption works both ways; a wrong key, algorithm or size becomes a note to the owner; a changed key
// waits for the owner (AR-47 to AR-49).
func TestEncrypted(t *testing.T) {
	mine, myRecipient, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	theirs, theirRecipient, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	_, otherRecipient, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	x, n := newLinkedNode(t, nil, Config{Identity: mine})
	x.from("agent-042", `{"id":"d1","type":"discovery","to":["*"],"payload":{"skills":[],"age_recipient":"%s"}}`, theirRecipient)
	x.from("agent-042", `{"id":"d2","type":"discovery","to":["*"],"payload":{"age_recipient":"%s"}}`, otherRecipient)
	if p, err := x.link.peers.get(t.Context(), "agent-042"); err != nil || p.Recipient != theirRecipient || p.Pending != otherRecipient || p.ByOwner {
		t.Errorf("peer %+v, %v", p, err)
	}
	f := x.send(newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"a secret"}}`))
	sealed, _ := f.Get("payload")
	if f.GetStr("type") != "encrypted" || sealed.GetStr("algorithm") != "age" || sealed.GetStr("recipient_key") != theirRecipient ||
		strings.Contains(string(f.JSON()), "conv_") {
		t.Fatalf("left as %s", f.JSON())
	}
	reader := &Link{cfg: Config{Identity: theirs}}
	inner, err := reader.decrypt(&incoming{payload: sealed})
	if err != nil || inner.GetStr("payload") != "a secret" || inner.GetStr("type") != "thought" {
		t.Errorf("the peer reads %s, %v", inner.JSON(), err)
	}
	seal := func(to, plain string) string {
		t.Helper()
		b, err := signing.SealAge(to, []byte(plain))
		if err != nil {
			t.Fatal(err)
		}
		return string(wire.Text(encode64(b)).JSON())
	}
	good := seal(myRecipient, `{"type":"question","payload":"psst?"}`)
	x.from("agent-042", `{"id":"e1","type":"encrypted","payload":{"encrypted_data":%s,"algorithm":"age","recipient_key":"%s"}}`, good, myRecipient)
	if got := n.all(); len(got) != 1 || got[0].Payload.GetStr("question") != "psst?" || got[0].Verified != bridge.VerifiedNone {
		t.Fatalf("the node got %+v", got)
	}
	for name, payload := range map[string]string{
		"wrong key":  fmt.Sprintf(`{"encrypted_data":%s,"algorithm":"age","recipient_key":"%s"}`, seal(theirRecipient, `{"payload":1}`), myRecipient),
		"other key":  fmt.Sprintf(`{"encrypted_data":%s,"algorithm":"age","recipient_key":"%s"}`, good, theirRecipient),
		"algorithm":  fmt.Sprintf(`{"encrypted_data":%s,"algorithm":"rot13","recipient_key":"%s"}`, good, myRecipient),
		"oversize":   fmt.Sprintf(`{"encrypted_data":"%s","algorithm":"age","recipient_key":"%s"}`, strings.Repeat("A", 62<<10), myRecipient),
		"no base64":  fmt.Sprintf(`{"encrypted_data":"***","algorithm":"age","recipient_key":"%s"}`, myRecipient),
		"no object":  fmt.Sprintf(`{"encrypted_data":%s,"algorithm":"age","recipient_key":"%s"}`, seal(myRecipient, `null`), myRecipient),
		"no payload": fmt.Sprintf(`{"encrypted_data":%s,"algorithm":"age","recipient_key":"%s"}`, seal(myRecipient, `{}`), myRecipient),
		"text":       `"x"`,
	} {
		before := len(x.link.itemLog.latest(100))
		x.from("agent-042", `{"id":"bad-%s","type":"encrypted","payload":%s}`, name, payload)
		after := x.link.itemLog.latest(100)
		if len(n.all()) != 1 || len(after) != before+1 || after[0].Note == "" {
			t.Errorf("%s: the node got %d messages, the owner %+v", name, len(n.all()), after[0])
		}
	}
}

func encode64(b []byte) string {
	out, _ := json.Marshal(b)
	return strings.Trim(string(out), `"`)
}

// TestEncryptAlways: with the policy "always", nothing leaves in clear text (AR-49).
func TestEncryptAlways(t *testing.T) {
	x, _ := newLinkedNode(t, func(l *bridge.Link) { l.Policy.Encrypt = encryptAlways }, Config{})
	_, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"a secret"}}`))
	if _, again := err.(*client.SendError); err == nil || again {
		t.Errorf("Deliver() = %v, want a final error", err)
	}
}

// hookedStore is a store that calls a function once, right after a peer was read.
type hookedStore struct {
	store.Store
	then *func()
}

func (m hookedStore) Records() store.Records { return hookedRecords{m.Store.Records(), m.then} }

type hookedRecords struct {
	store.Records
	then *func()
}

func (m hookedRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	rec, err := m.Records.Get(ctx, ns, key, now)
	if ns == nsPeers && *m.then != nil {
		then := *m.then
		*m.then = nil
		then()
	}
	return rec, err
}

// TestOwnersKeyIsNotOverwritten: the owner's key stays, even if the peer announces another key at the same moment
// (AR-49).
func TestOwnersKeyIsNotOverwritten(t *testing.T) {
	var keys []string
	for range 3 {
		_, recipient, err := signing.GenerateAge()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, recipient)
	}
	for _, before := range []string{"", keys[0]} {
		var then func()
		x := newTestLink(t, Config{Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: hookedStore{openStore(t), &then}}, nil)
		if before != "" {
			x.link.peers.pin("friend", before)
		}
		then = func() {
			if _, err := x.link.peers.change(t.Context(), "friend", func(p *Peer) bool {
				p.Recipient, p.ByOwner, p.Pending = keys[1], true, ""
				return true
			}); err != nil {
				t.Error(err)
			}
		}
		x.link.peers.pin("friend", keys[2])
		if p, err := x.link.peers.get(t.Context(), "friend"); err != nil || p.Recipient != keys[1] || !p.ByOwner || p.Pending != keys[2] {
			t.Errorf("announced before %q: %+v, %v, want the owner's key and the last one pending", before, p, err)
		}
	}
}

// TestFilterReadsEncrypted: the owner's filter applies to the type and the words of an encrypted message that only the
// decrypted message has (AR-26).
func TestFilterReadsEncrypted(t *testing.T) {
	identity, recipient, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	filter := bridge.LinkFilter{Types: []string{"question"}, From: []string{"agent-042"}, Keywords: []string{"Go"}}
	x, n := newLinkedNode(t, func(l *bridge.Link) { l.Policy.Filter = filter }, Config{Identity: identity})
	for id, tt := range []struct{ from, kind, text string }{
		{"agent-042", "question", "nothing"}, {"agent-042", "question", "I like go"}, {"agent-042", "thought", "I like go"}, {"agent-007", "question", "I like go"},
	} {
		sealed, err := signing.SealAge(recipient, fmt.Appendf(nil, `{"type":%q,"payload":%q}`, tt.kind, tt.text))
		if err != nil {
			t.Fatal(err)
		}
		x.from(tt.from, `{"id":"%d","type":"encrypted","payload":{"encrypted_data":%q,"algorithm":"age","recipient_key":%q}}`, id, encode64(sealed), recipient)
	}
	if got := n.all(); len(got) != 1 || got[0].Payload.GetStr("question") != "I like go" || got[0].Name != "agent-042" {
		t.Errorf("the node got %+v, want only the question with the keyword", got)
	}
}
