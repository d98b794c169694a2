package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

func TestRead(t *testing.T) {
	good := string(signMessage(t, sarah, "am_me", key(1), time.Now()).Tree.JSON())
	tests := []struct {
		name, body string
		want       error
	}{
		{"good", good, nil},
		{"not JSON", "hello", wire.ErrSyntax},
		{"no body", "", wire.ErrSyntax},
		{"duplicate key", `{"to":"am_a","to":"am_b"}`, wire.ErrSyntax},
		{"two values", good + good, wire.ErrSyntax},
		{"no message", `{}`, wire.ErrSchema},
		{"no signature", strings.Replace(good, `"signature"`, `"signatur"`, 1), wire.ErrSchema},
	}
	v := &Verifier{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := v.Read([]byte(tt.body))
			if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || m.From != sarah) {
				t.Errorf("Read() = %v, want %v", err, tt.want)
			}
		})
	}
}

// TestWindow checks that the ends of the window belong to the window (AM-20).
func TestWindow(t *testing.T) {
	now := time.Date(2026, 2, 19, 10, 35, 0, 0, time.UTC)
	tests := []struct {
		window Window
		at     time.Duration
		want   bool
	}{
		{Window{}, -15 * time.Minute, true},
		{Window{}, -15*time.Minute - time.Second, false},
		{Window{}, 5 * time.Minute, true},
		{Window{}, 5*time.Minute + time.Second, false},
		{Window{Past: time.Hour, Future: time.Minute}, -time.Hour, true},
		{Window{Past: time.Hour, Future: time.Minute}, 61 * time.Second, false},
		{Window{Past: 48 * time.Hour, Future: 48 * time.Hour}, -25 * time.Hour, false},
		{Window{Past: 48 * time.Hour, Future: 48 * time.Hour}, 24 * time.Hour, true},
	}
	for _, tt := range tests {
		err := tt.window.Check(now.Add(tt.at), now)
		if got := err == nil; got != tt.want || err != nil && !errors.Is(err, wire.ErrTimeWindow) {
			t.Errorf("Check(%v) with %v = %v, want %v", tt.at, tt.window, err, tt.want)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		l.put("am_chris", key(2))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		m := signMessage(t, sarah, "am_me", key(1), time.Now())
		checked, err := v.Authenticate(t.Context(), m, Origin{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if checked.Form != signing.JCS || checked.Digest != signing.Digest(m.Tree.Without("signature")) || checked.Card.ID != sarah {
			t.Errorf("Authenticate() = %+v", checked)
		}
		// THREATS 3: the signature covers every field, known or not.
		for _, member := range m.Tree.Members() {
			if member.Key == "signature" {
				continue
			}
			changed := m.Tree.With(member.Key, wire.Text("am_other"))
			if member.Key == "payload" {
				changed = m.Tree.With(member.Key, wire.Obj())
			}
			tampered := m
			tampered.Tree = changed
			if _, err := v.Authenticate(t.Context(), tampered, Origin{}, time.Now()); !errors.Is(err, wire.ErrSignature) {
				t.Errorf("with another %s: %v, want ErrSignature", member.Key, err)
			}
		}
		extra := m
		extra.Tree = m.Tree.With("extra", wire.Int(1))
		if _, err := v.Authenticate(t.Context(), extra, Origin{}, time.Now()); !errors.Is(err, wire.ErrSignature) {
			t.Errorf("with a field that was not signed: %v, want ErrSignature", err)
		}
		// This message is signed by another agent that the directory also lists.
		if _, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(2), time.Now()), Origin{}, time.Now()); !errors.Is(err, wire.ErrSignature) {
			t.Errorf("signed by another agent: %v, want ErrSignature", err)
		}
	})
}

// TestAuthenticateMail checks that a retired key signs only for messages that a mailbox received before the rotation.
func TestAuthenticateMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		time.Sleep(time.Hour)
		l := newListing()
		l.chain(t, sarah, key(1), key(2))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		now := time.Now()
		for _, tt := range []struct {
			name   string
			signer byte
			mailed time.Time
			want   bool
		}{
			{"the current key", 2, before, true},
			{"the retired key, before the rotation", 1, before, true},
			{"the retired key, after the rotation", 1, now.Add(6 * time.Minute), false},
			{"the retired key, without a mailbox", 1, time.Time{}, false},
			{"another key", 3, before, false},
		} {
			m := signMessage(t, sarah, "am_me", key(tt.signer), before)
			checked, err := v.Authenticate(t.Context(), m, Origin{Mailed: tt.mailed}, now.Add(10*time.Minute))
			if (err == nil) != tt.want || err == nil && checked.Key.Fingerprint() != key(2).Public().Fingerprint() {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
	})
}

// TestReply checks which messages are accepted as a reply (AM-18, THREATS 4).
func TestReply(t *testing.T) {
	me, sent := wire.AgentID("am_me"), wire.Message{}
	tests := []struct {
		name string
		edit func(d *wire.Draft, k **signing.PrivateKey)
		ok   bool
	}{
		{"good", func(*wire.Draft, **signing.PrivateKey) {}, true},
		{"from another agent", func(d *wire.Draft, k **signing.PrivateKey) { d.From, *k = "am_chris", key(2) }, false},
		{"from another agent by its key", func(d *wire.Draft, _ **signing.PrivateKey) { d.From = "am_chris" }, false},
		{"in its name by another key", func(_ *wire.Draft, k **signing.PrivateKey) { *k = key(2) }, false},
		{"to another agent", func(d *wire.Draft, _ **signing.PrivateKey) { d.To = "am_chris" }, false},
		{"of another conversation", func(d *wire.Draft, _ **signing.PrivateKey) { d.Conversation = "conv_2" }, false},
		{"with our message id", func(d *wire.Draft, _ **signing.PrivateKey) { d.ID = sent.ID }, false},
		{"too old", func(d *wire.Draft, _ **signing.PrivateKey) { d.Time = d.Time.Add(-15*time.Minute - time.Second) }, false},
		{"from the future", func(d *wire.Draft, _ **signing.PrivateKey) { d.Time = d.Time.Add(5*time.Minute + time.Second) }, false},
	}
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		l.put("am_chris", key(2))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		peer, err := v.Cards.Find(t.Context(), sarah, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		sent = signMessage(t, me, sarah, key(50), time.Now())
		draft := func() wire.Draft {
			return wire.Draft{ID: wire.NewMessageID(), Conversation: sent.Conversation, From: sarah, To: me, Time: time.Now(), Intent: sent.Intent, Payload: sent.Payload}
		}
		for _, tt := range tests {
			d, k := draft(), key(1)
			tt.edit(&d, &k)
			_, err := v.VerifyReply(t.Context(), sent, signDraft(t, d, k), peer, time.Now())
			if got := err == nil; got != tt.ok || err != nil && !errors.Is(err, ErrReplyUnverified) {
				t.Errorf("%s: Reply() = %v, want ok %v", tt.name, err, tt.ok)
			}
		}
		// Our own request sent back.
		if _, err := v.VerifyReply(t.Context(), sent, sent, peer, time.Now()); !errors.Is(err, ErrReplyUnverified) {
			t.Errorf("our own message as its reply = %v, want ErrReplyUnverified", err)
		}
		// The stored answer to the first attempt, received by a resend hours later.
		old := draft()
		old.Time = time.Now().Add(-3 * time.Hour)
		resent := signDraft(t, wire.Draft{
			ID: wire.NewMessageID(), Conversation: sent.Conversation, From: me, To: sarah, Time: time.Now(), Intent: sent.Intent,
			Payload: sent.Payload.With("metadata", wire.Obj(wire.Member{Key: "resend_of", Value: wire.Text(string(sent.ID))})),
		}, key(50))
		if _, err := v.VerifyReply(t.Context(), resent, signDraft(t, old, key(1)), peer, time.Now()); err != nil {
			t.Errorf("the stored reply to a resend = %v", err)
		}
		// The peer rotates its key between look-up and reply.
		time.Sleep(2 * time.Minute)
		l.rotate(t, home, testCard(sarah, key(3)), key(3), key(1), false)
		if _, err := v.VerifyReply(t.Context(), sent, signDraft(t, draft(), key(3)), peer, time.Now()); err != nil {
			t.Errorf("a reply by the rotated key = %v", err)
		}
	})
}

// TestExplainedRefusal checks that the refusal of a bad signature explains known mistakes, within its bounds (AM-27).
func TestExplainedRefusal(t *testing.T) {
	const plain = "the signature does not verify"
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		unsorted := func(payload wire.Value) wire.Message {
			m := signMessage(t, sarah, "am_me", key(1), time.Now())
			m.Tree = m.Tree.With("payload", payload)
			signature, err := key(1).Sign(m.Tree.Without("signature").JSON())
			if err != nil {
				t.Fatal(err)
			}
			m.Tree, m.Signature = m.Tree.With("signature", wire.Text(signature)), signature
			return m
		}
		refuse := func(m wire.Message) string {
			t.Helper()
			_, err := v.Authenticate(t.Context(), m, Origin{}, time.Now())
			refusal, ok := errors.AsType[*wire.Error](err)
			if !ok || !errors.Is(err, wire.ErrSignature) {
				t.Fatalf("Authenticate() = %v, want ErrSignature", err)
			}
			return refusal.Message
		}
		small := unsorted(wire.Obj(wire.TextField("action", "secret words")))
		if got := refuse(small); !strings.HasPrefix(got, plain+": the keys are not sorted; offset 22 is 0x6d and must be 0x63; sign the ") || strings.Contains(got, "secret") {
			t.Errorf("refusal = %q", got)
		}
		if got := refuse(unsorted(wire.Obj(wire.TextField("action", strings.Repeat("x", maxExplained))))); got != plain {
			t.Errorf("refusal of a large message = %q", got)
		}
		explained := 1
		for range 100 {
			if refuse(small) != plain {
				explained++
			}
		}
		if explained != 5 {
			t.Errorf("%d refusals were explained at once, want 5", explained)
		}
		time.Sleep(time.Second)
		if got := refuse(small); got == plain {
			t.Error("no refusal is explained after a second")
		}
		// While the pool for verification is full, nothing is explained.
		time.Sleep(time.Minute)
		peer, err := v.Cards.Find(t.Context(), sarah, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for range cap(v.Cards.pool.slots) {
			v.Cards.pool.slots <- struct{}{}
		}
		if got := v.explain(t.Context(), small, peer, &Origin{}, time.Now()).Message; got != plain {
			t.Errorf("refusal with a full pool = %q", got)
		}
		if got := v.explain(t.Context(), small, peer, nil, time.Now()).Message; got != plain {
			t.Errorf("refusal of a reply = %q", got)
		}
	})
}

// TestForgerCannotHideOwnersPeer: a stranger who registers the id of a peer that the owner added, and forges its
// messages, does not keep the peer's own messages out.
func TestForgerCannotHideOwnersPeer(t *testing.T) { // THREATS 32
	synctest.Test(t, func(t *testing.T) {
		for name, occupy := range map[string]func(*listing){
			"another key":   func(l *listing) { l.put(sarah, key(66)) },
			"unusable card": func(l *listing) { l.cards[sarah] = testCard(sarah, key(66)).With("public_key", wire.Text("x")) },
		} {
			l := newListing()
			v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
			if _, err := v.Cards.AddPeer(t.Context(), testCard(sarah, key(1)), time.Now()); err != nil {
				t.Fatal(err)
			}
			occupy(l)
			genuine := func(when string) {
				t.Helper()
				m := signMessage(t, sarah, "am_me", key(1), time.Now())
				if _, err := v.Authenticate(t.Context(), m, Origin{Known: true}, time.Now()); err != nil {
					t.Errorf("%s: the peer's message %s a forged one = %v", name, when, err)
				}
			}
			genuine("before")
			time.Sleep(2 * time.Minute)
			forged := signMessage(t, sarah, "am_me", key(66), time.Now())
			if _, err := v.Authenticate(t.Context(), forged, Origin{Known: true}, time.Now()); !errors.Is(err, wire.ErrSignature) {
				t.Errorf("%s: forged message = %v, want ErrSignature", name, err)
			}
			genuine("after")
		}
	})
}
