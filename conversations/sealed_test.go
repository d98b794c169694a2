package conversations

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

func ageKey(t testing.TB) *signing.PrivateKey {
	t.Helper()
	text, _, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParsePrivateKey([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func object(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseObject([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSealAndOpen checks that opening returns what was sealed, that the extensions that the protocol reads stay
// outside, and that their values inside are ignored.
func TestSealAndOpen(t *testing.T) {
	ours, theirs := ageKey(t), ageKey(t)
	by := Sealer{Agent: "am_chris", Recipient: theirs.PublicText()}
	for _, c := range []struct{ payload, outside string }{
		{`{"action":"accept"}`, ""},
		{`{"action":"accept","metadata":{"note":"n"}}`, ""},
		{`{"action":"accept","metadata":{"in_reply_to":"msg_1","note":"n"}}`, `{"in_reply_to":"msg_1"}`},
		{`{"action":"x","metadata":{"in_reply_to":"msg_1"}}`, `{"in_reply_to":"msg_1"}`},
		{`{"a":[1,2.5,"<>&é😀"],"action":"x"}`, ""},
	} {
		sealed, key, err := by.Seal(object(t, c.payload), ours.PublicText())
		if err != nil {
			t.Fatal(err)
		}
		meta, _ := sealed.Get("metadata")
		if got := string(meta.JSON()); c.outside != "" && got != c.outside || c.outside == "" && meta.Len() > 0 {
			t.Errorf("%s: the outer metadata is %s, want %s", c.payload, got, c.outside)
		}
		o, err := Unseal([]*signing.PrivateKey{ours}, sealed, "am_chris")
		if err != nil || o.By != by || !bytes.Equal(o.Key, key) {
			t.Fatalf("Unseal = %+v, %v", o, err)
		}
		if got := signing.Canonical(o.Payload, signing.JCS); string(got) != string(signing.Canonical(object(t, c.payload), signing.JCS)) {
			t.Errorf("opened %s, want %s", got, c.payload)
		}
		content, ok := ReadContent(store.Entry{Raw: wire.Obj(wire.Member{Key: "payload", Value: sealed}).JSON(), Key: key})
		if !ok || !content.Sealed || string(content.Payload.JSON()) != string(o.Payload.JSON()) {
			t.Errorf("ReadContent = %+v, %v", content, ok)
		}
		if content, ok := ReadContent(store.Entry{Raw: wire.Obj(wire.Member{Key: "payload", Value: sealed}).JSON()}); !ok || !IsSealed(content.Payload) {
			t.Errorf("without the key = %+v", content)
		}
		for name, keys := range map[string][]*signing.PrivateKey{"another": {theirs}, "no": nil, "a signing": {mustEd25519(t), theirs}} {
			if _, err := Unseal(keys, sealed, "am_chris"); !errors.Is(err, ErrSealed) {
				t.Errorf("%s key: %v", name, err)
			}
		}
		if _, err := Unseal([]*signing.PrivateKey{theirs, ours}, sealed, "am_chris"); err != nil {
			t.Errorf("with an older key as well: %v", err)
		}
		if _, err := Unseal([]*signing.PrivateKey{ours}, sealed, "am_mallory"); !errors.Is(err, ErrSealed) {
			t.Errorf("taken over: %v", err)
		}
	}
}

func mustEd25519(t *testing.T) *signing.PrivateKey {
	t.Helper()
	key, err := signing.GenerateEd25519()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSealedOverride checks that in_reply_to and resend_of count only outside of the seal.
func TestSealedOverride(t *testing.T) {
	mine := ageKey(t)
	file, err := signing.SealAge(mine.PublicText(), []byte(`{"action":"x","metadata":{"in_reply_to":"msg_inside","resend_of":"msg_inside","sealed_by":{"agent_id":"am_chris","age_recipient":7}}}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Unseal([]*signing.PrivateKey{mine}, sealedForm(file), "am_chris")
	if err != nil || string(o.Payload.JSON()) != `{"action":"x"}` {
		t.Errorf("opened %s, %v", o.Payload.JSON(), err)
	}
}

// TestSealedByNobody checks that a seal that does not name its sender is not opened, because anybody could have copied
// it. In a transcript it can still be opened.
func TestSealedByNobody(t *testing.T) {
	mine := ageKey(t)
	for _, metadata := range []string{``, `,"metadata":{}`, `,"metadata":{"sealed_by":7}`, `,"metadata":{"sealed_by":{}}`, `,"metadata":{"sealed_by":{"agent_id":""}}`,
		`,"metadata":{"sealed_by":{"agent_id":["am_chris"]}}`, `,"metadata":{"sealed_by":{"agent_id":"AM_CHRIS"}}`, `,"metadata":null`} {
		file, key, err := signing.SealAgeFileKey(mine.PublicText(), []byte(`{"action":"x"`+metadata+`}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []wire.AgentID{"am_chris", ""} {
			if o, err := Unseal([]*signing.PrivateKey{mine}, sealedForm(file), from); !errors.Is(err, ErrSealed) {
				t.Errorf("%s from %q: opened %s, %v", metadata, from, o.Payload.JSON(), err)
			}
		}
		if v, err := openWith(key, sealedForm(file)); err != nil || v.GetStr("action") != "x" {
			t.Errorf("%s in a transcript: %s, %v", metadata, v.JSON(), err)
		}
	}
}

func sealedForm(file []byte) wire.Value {
	return wire.Obj(wire.Member{Key: "action", Value: wire.Text("sealed")}, wire.Member{Key: "age", Value: wire.Text(base64.StdEncoding.EncodeToString(file))})
}

// FuzzUnseal checks that opening any content ends in one strict object or in ErrSealed, and that the key of the message
// opens the same content again.
func FuzzUnseal(f *testing.F) {
	mine := ageKey(f)
	for _, s := range []string{`{}`, `{"action":"accept"}`, `{"action":"sealed"}`, `{"action":"close","status":"failed"}`, `[]`, ` {"a":1} `,
		`{"metadata":null}`, `{"metadata":[]}`, `{"metadata":{"sealed_by":{"agent_id":"am_x"}}}`, `{"a":1,"metadata":{"sealed_by":{"agent_id":"am_chris"}}}`, `{"a":1,"a":2}`, strings.Repeat("[", 100)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		if len(plain) > 64<<10 {
			return
		}
		file, err := signing.SealAge(mine.PublicText(), plain)
		if err != nil {
			t.Fatal(err)
		}
		sealed := sealedForm(file)
		o, err := Unseal([]*signing.PrivateKey{mine}, sealed, "am_chris")
		if err != nil {
			if !errors.Is(err, ErrSealed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if o.Payload.Kind() != wire.Object || IsSealed(o.Payload) || o.Payload.GetStr("action") == wire.ActionClose {
			t.Fatalf("opened %s", o.Payload.JSON())
		}
		again, err := openWith(o.Key, sealed)
		if err != nil || string(again.JSON()) != string(o.Payload.JSON()) {
			t.Fatalf("again %s, %v", again.JSON(), err)
		}
		o.Key[0] ^= 1
		if _, err := openWith(o.Key, sealed); !errors.Is(err, ErrSealed) {
			t.Fatalf("with another key: %v", err)
		}
	})
}
