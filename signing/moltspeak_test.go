package signing

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// vectors holds what the public Python SDK signed and sealed.
type vectors struct {
	Keys map[string]struct {
		Seed    string `json:"ed25519_seed_b64"`
		Public  string `json:"ed25519_pub_b64"`
		Box     string `json:"x25519_priv_b64"`
		BoxOpen string `json:"x25519_pub_b64"`
	} `json:"keys"`
	Signed []struct {
		Name, Wire, Canonical, Sig string
	} `json:"signed"`
	Box []struct {
		Plaintext  string
		Nonce      string `json:"nonce_b64"`
		Ciphertext string `json:"ciphertext_b64"`
	} `json:"box"`
	Negative []struct {
		Name, Wire string
		Shallow    string `json:"shallow_canonical"`
	} `json:"negative"`
}

func moltspeakVectors(t *testing.T) vectors {
	t.Helper()
	dir := os.Getenv("AGENTMESH_CORPORA")
	if dir == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with moltspeak/vectors.json")
	}
	data, err := os.ReadFile(filepath.Join(dir, "moltspeak", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Signed) != 12 || len(v.Box) != 4 || len(v.Negative) != 4 {
		t.Fatalf("vectors: %d signed, %d boxes, %d negative", len(v.Signed), len(v.Box), len(v.Negative))
	}
	return v
}

func decodeBase64Text(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMoltSpeakSigned(t *testing.T) {
	v := moltspeakVectors(t)
	alice := v.Keys["alice"]
	private := NewEd25519FromSeed(decodeBase64Text(t, alice.Seed))
	public, err := ParseEd25519(alice.Public)
	if err != nil || public.Text64() != alice.Public {
		t.Fatalf("alice's key: %v, written %s", err, public.Text64())
	}
	for _, s := range v.Signed {
		tree, err := wire.ParseForeign([]byte(s.Wire), 50, 10000)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		canonical := Canonical(tree.Without("sig"), Python)
		if string(canonical) != s.Canonical {
			t.Errorf("%s: canonical text is\n%s\nwant\n%s", s.Name, canonical, s.Canonical)
		}
		sig := strings.TrimPrefix(s.Sig, "ed25519:")
		if err := public.VerifyStrict(canonical, sig); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if ours, err := private.Sign(canonical); err != nil || ours != sig {
			t.Errorf("%s: our signature is %s, %v, want %s", s.Name, ours, err, sig)
		}
		for i := range canonical {
			changed := bytes.Clone(canonical)
			changed[i] ^= 1
			if public.VerifyStrict(changed, sig) == nil {
				t.Fatalf("%s: verifies with byte %d changed", s.Name, i)
			}
		}
	}
	for _, n := range v.Negative {
		tree, err := wire.ParseForeign([]byte(n.Wire), 50, 10000)
		if err != nil {
			t.Fatalf("%s: %v", n.Name, err)
		}
		sig := strings.TrimPrefix(tree.GetStr("sig"), "ed25519:")
		if public.VerifyStrict(Canonical(tree.Without("sig"), Python), sig) == nil {
			t.Errorf("%s verifies", n.Name)
		}
		if n.Shallow != "" && public.VerifyStrict([]byte(n.Shallow), sig) != nil {
			t.Errorf("%s: the vector is not what it says", n.Name)
		}
	}
}

func TestMoltSpeakBoxes(t *testing.T) {
	v := moltspeakVectors(t)
	alice, bob := NewBoxKey(decodeBase64Text(t, v.Keys["alice"].Box)), NewBoxKey(decodeBase64Text(t, v.Keys["bob"].Box))
	if alice.Public().String() != v.Keys["alice"].BoxOpen {
		t.Errorf("alice's box key = %s", alice.Public())
	}
	for i, b := range v.Box {
		nonce := [NonceSize]byte(decodeBase64Text(t, b.Nonce))
		if got := alice.sealWith([]byte(b.Plaintext), bob.Public(), nonce); !bytes.Equal(got, decodeBase64Text(t, b.Ciphertext)) {
			t.Errorf("box %d is not reproduced", i)
		}
		plain, err := bob.Open(decodeBase64Text(t, b.Ciphertext), nonce, alice.Public())
		if err != nil || string(plain) != b.Plaintext {
			t.Errorf("box %d opens to %q, %v", i, plain, err)
		}
		bad := decodeBase64Text(t, b.Ciphertext)
		bad[0] ^= 1
		if _, err := bob.Open(bad, nonce, alice.Public()); err == nil {
			t.Errorf("box %d opens although it was changed", i)
		}
	}
}

func TestPythonNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "-0.0": "-0.0", "1.0": "1.0", "1e0": "1.0", "1E2": "100.0", "0.0001": "0.0001", "0.00001": "1e-05",
		"1e16": "1e+16", "9999999999999998.0": "9999999999999998.0", "123456789012345678901234567890": "123456789012345678901234567890",
		"1e-7": "1e-07", "1.5e300": "1.5e+300", "5e-324": "5e-324", "2.50": "2.5", "1e-400": "0.0", "12345678901234567.5": "1.2345678901234568e+16",
	} {
		v, err := wire.ParseForeign([]byte(in), 5, 5)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(Canonical(v, Python)); got != want {
			t.Errorf("%s is written %s, want %s", in, got, want)
		}
	}
}

func TestBoxKeyHidesItself(t *testing.T) {
	k, err := GenerateBoxKey()
	if err != nil {
		t.Fatal(err)
	}
	text, _ := k.MarshalText()
	back, err := ParseBoxKey(text)
	if err != nil || back.Public() != k.Public() {
		t.Fatalf("read back: %v", err)
	}
	asJSON, _ := json.Marshal(k)
	secret := strings.TrimSpace(strings.TrimPrefix(string(text), boxKeyPrefix))
	for _, shown := range []string{fmt.Sprint(k), fmt.Sprintf("%#v %+v %x", k, k, k), string(asJSON)} {
		if strings.Contains(shown, secret) || !strings.Contains(shown, redacted) {
			t.Errorf("shown as %s", shown)
		}
	}
	path := filepath.Join(t.TempDir(), "box.key")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if read, err := ReadBoxKeyFile(path); err != nil || read.Public() != k.Public() {
		t.Errorf("read the file: %v", err)
	}
}

func TestStrictKeys(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(NewEd25519FromSeed(bytes.Repeat([]byte{7}, 32)).Public().Canonical())
	if _, err := ParseEd25519(good); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", strings.TrimRight(good, "="), good + "\n", " " + good, good[:40],
		base64.StdEncoding.EncodeToString(make([]byte, 32)), base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...))} {
		if _, err := ParseEd25519(text); err == nil {
			t.Errorf("key %q was taken", text)
		}
	}
	for _, point := range [][]byte{make([]byte, 32), append([]byte{1}, make([]byte, 31)...)} {
		if _, err := ParseBoxPublic(base64.StdEncoding.EncodeToString(point)); err == nil {
			t.Errorf("box key %x of low order was taken", point)
		}
	}
}

// TestNoncesDiffer checks that nonces do not repeat: under one key, a repeated nonce reveals two plain texts (MS-20).
func TestNoncesDiffer(t *testing.T) {
	k := NewBoxKey(bytes.Repeat([]byte{9}, 32))
	const rounds = 2000 // each costs a scalar multiplication; more rounds would add nothing for 192 random bits
	seen := make(map[[NonceSize]byte]bool, rounds)
	for range rounds {
		_, nonce := k.Seal(nil, k.Public())
		if seen[nonce] {
			t.Fatal("a nonce was used twice")
		}
		seen[nonce] = true
	}
}
