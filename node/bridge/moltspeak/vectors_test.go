package moltspeak

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentmesh/agentmesh/signing"
)

type vectorKey struct {
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

// readVectors reads what the public Python SDK signed and sealed.
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

// Every vector through bare message, envelope and box (MS-16).
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
		bare, e := ReadPacket([]byte(s.Wire), bob)
		if e != nil {
			t.Fatalf("%s: %v", s.Name, e)
		}
		for form, raw := range map[string][]byte{"bare": []byte(s.Wire), "envelope": wrap(bare.Tree, true), "box": seal(bare.Tree, alice, bob.Public())} {
			p, e := ReadPacket(raw, bob)
			if e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
				continue
			}
			m, e := ParseMessage(p.Tree)
			if e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
				continue
			}
			if _, e := m.Payload(); e != nil {
				t.Errorf("%s as %s: payload: %v", s.Name, form, e)
			}
			if e := m.verify(public); e != nil {
				t.Errorf("%s as %s: %v", s.Name, form, e)
			}
		}
		again, err := sign(bare.Tree, private)
		if err != nil || again.GetStr("sig") != s.Sig {
			t.Errorf("%s: signed anew it is %s, %v", s.Name, again.GetStr("sig"), err)
		}
	}
	for _, n := range v.Negative {
		p, e := ReadPacket([]byte(n.Wire), nil)
		if e != nil {
			t.Fatalf("%s: %v", n.Name, e)
		}
		m, e := ParseMessage(p.Tree)
		if e != nil {
			t.Fatalf("%s: %v", n.Name, e)
		}
		if e := m.verify(public); e == nil || e.Code != CodeSignature {
			t.Errorf("%s: %v, want E_SIGNATURE", n.Name, e)
		}
	}
	for i, b := range v.Box {
		p, e := ReadPacket(b.Envelope, bob)
		if json.Valid([]byte(b.Plaintext)) {
			if e != nil || !p.Boxed || p.Sealed != alice.Public() {
				t.Errorf("box %d: %+v, %v", i, p, e)
			}
		} else if e == nil || e.Code != CodeParse {
			t.Errorf("box %d holds no JSON: %v, want E_PARSE", i, e)
		}
	}
}
