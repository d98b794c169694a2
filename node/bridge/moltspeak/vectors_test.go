package moltspeak

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/signing"
)

type vectorKey struct {
	Agent  string `json:"agent"`
	Org    string `json:"org"`
	Seed   string `json:"ed25519_seed_b64"`
	Public string `json:"ed25519_pub_b64"`
	Box    string `json:"x25519_priv_b64"`
}

type vectorFile struct {
	Keys   map[string]vectorKey `json:"keys"`
	Signed []struct{ Name, Wire, Sig string }
	Box    []struct {
		Plaintext string
		Envelope  json.RawMessage
	}
	Negative []struct{ Name, Wire string }
}

// readVectors reads messages that the public Python SDK signed and encrypted.
func readVectors(t *testing.T) vectorFile {
	t.Helper()
	dir := os.Getenv("AGENTMESH_CORPORA")
	if dir == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with moltspeak/vectors.json")
	}
	data, err := os.ReadFile(filepath.Join(dir, "moltspeak", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectorFile
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unb64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors runs every vector as bare message, envelope and box (MS-16).
func TestVectors(t *testing.T) {
	v := readVectors(t)
	public, err := signing.ParseEd25519(v.Keys["alice"].Public)
	if err != nil {
		t.Fatal(err)
	}
	private := signing.NewEd25519FromSeed(unb64(t, v.Keys["alice"].Seed))
	bob := signing.NewBoxKey(unb64(t, v.Keys["bob"].Box))
	alice := signing.NewBoxKey(unb64(t, v.Keys["alice"].Box))
	for _, s := range v.Signed {
		bare, e := message.ReadPacket([]byte(s.Wire), bob)
		if e != nil {
			t.Fatalf("%s: %v", s.Name, e)
		}
		for form, raw := range map[string][]byte{"bare": []byte(s.Wire), "envelope": message.Wrap(bare.Tree, true), "box": message.Seal(bare.Tree, alice, bob.Public())} {
			p, e := message.ReadPacket(raw, bob)
			if e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
				continue
			}
			m, e := message.Parse(p.Tree)
			if e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
				continue
			}
			if _, e := m.Payload(); e != nil {
				t.Errorf("%s as %s: payload: %v", s.Name, form, e)
			}
			if e := m.Verify(public); e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
			}
		}
		again := message.Sign(bare.Tree, private)
		if again.GetStr("sig") != s.Sig {
			t.Errorf("%s: signed again it is %s", s.Name, again.GetStr("sig"))
		}
	}
	for _, n := range v.Negative {
		p, e := message.ReadPacket([]byte(n.Wire), nil)
		if e != nil {
			t.Fatalf("%s: %v", n.Name, e)
		}
		m, e := message.Parse(p.Tree)
		if e != nil {
			t.Fatalf("%s: %v", n.Name, e)
		}
		if e := m.Verify(public); e == nil || e.Code != message.CodeSignature {
			t.Errorf("%s: %v, want E_SIGNATURE", n.Name, e)
		}
	}
	for i, b := range v.Box {
		p, e := message.ReadPacket(b.Envelope, bob)
		if json.Valid([]byte(b.Plaintext)) {
			if e != nil || !p.Boxed || p.SenderKey != alice.Public() {
				t.Errorf("box %d: %+v, %v", i, p, e)
			}
		} else if e == nil || e.Code != message.CodeParse {
			t.Errorf("box %d contains no JSON: %v, want E_PARSE", i, e)
		}
	}
}

// TestVectorsAtTheDoors runs every vector through every door of the endpoint, as bob. A message that Python signed
// passes the signature check and is then refused because its time is January 2026. Other messages get E_SIGNATURE
// (MS-16).
func TestVectorsAtTheDoors(t *testing.T) {
	t.Parallel() // it mostly waits
	v := readVectors(t)
	if len(v.Signed) != 12 || len(v.Negative) != 4 || len(v.Box) != 4 {
		t.Fatalf("%d signed, %d negative, %d boxes", len(v.Signed), len(v.Negative), len(v.Box))
	}
	bob, _ := message.ParseName(v.Keys["bob"].Agent + "@" + v.Keys["bob"].Org)
	alice, _ := message.ParseName(v.Keys["alice"].Agent + "@" + v.Keys["alice"].Org)
	key, box := signing.NewEd25519FromSeed(unb64(t, v.Keys["alice"].Seed)), signing.NewBoxKey(unb64(t, v.Keys["alice"].Box))
	r, n := newTestRig(t, func(c *Config) { c.Agent, c.Box = bob, signing.NewBoxKey(unb64(t, v.Keys["bob"].Box)) })
	srv := r.serve()
	alice.Key, alice.EncKey = message.Ed25519Prefix+key.Public().Text64(), "x25519:"+box.Public().String()
	hello := message.Draft{ID: "hello", Op: message.OpHello, Time: time.Now(), From: alice, To: bob, P: mustTree(t, `{"protocol_versions":["0.1"]}`), Class: message.Internal}
	tree := message.Sign(hello.Tree(), key)
	conn := dial(t, srv)
	conn.Send(websocket.Text(tree.JSON())) // pins alice's keys
	if m, err := next(t, conn); err != nil || m.GetStr("op") != "respond" {
		t.Fatalf("hello: %v %s", err, m.JSON())
	}
	judge := func(name, form string, body []byte, code message.Code, field string) {
		t.Helper()
		p, e := message.ReadPacket(body, box)
		if e != nil {
			t.Fatalf("%s as %s: %v: %s", name, form, e, body)
		}
		payload, _ := p.Tree.Get("p")
		if message.Code(payload.GetStr("code")) != code || payload.GetStr("field") != field {
			t.Errorf("%s as %s: %s, want %s %s", name, form, payload.JSON(), code, field)
		}
	}
	through := func(name string, raw []byte, code message.Code, field string) {
		t.Helper()
		_, body, _ := post(t, srv.URL+"/moltspeak/v0.1/message", "application/json", raw)
		judge(name, "message", body, code, field)
		_, body, _ = post(t, srv.URL+"/moltspeak/v0.1/batch", "application/json", append(append([]byte("["), raw...), ']'))
		var answers []json.RawMessage
		if err := json.Unmarshal(body, &answers); err != nil || len(answers) != 1 {
			t.Fatalf("%s: %v %s", name, err, body)
		}
		judge(name, "batch", answers[0], code, field)
		conn.Send(websocket.Text(raw))
		_, body, err := conn.Read()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		judge(name, "frame", body, code, field)
	}
	for _, s := range v.Signed {
		bare, e := message.ReadPacket([]byte(s.Wire), nil)
		if e != nil {
			t.Fatalf("%s: %v", s.Name, e)
		}
		for _, raw := range [][]byte{[]byte(s.Wire), message.Wrap(bare.Tree, true), message.Seal(bare.Tree, box, r.b.cfg.Box.Public())} {
			through(s.Name, raw, message.CodeInvalidParam, "ts")
		}
	}
	for _, s := range v.Negative {
		through(s.Name, []byte(s.Wire), message.CodeSignature, "")
	}
	for i, s := range v.Box {
		code, field := message.CodeInvalidParam, "ts"
		if !json.Valid([]byte(s.Plaintext)) {
			code, field = message.CodeParse, ""
		}
		through(fmt.Sprint("box ", i), s.Envelope, code, field)
	}
	if len(n.got) != 0 {
		t.Errorf("the node got %d messages", len(n.got))
	}
	r.b.sockets.group.Close(stopPatience)
}
