package signing

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeIdentities writes a key file with these identities.
func writeIdentities(t *testing.T, identities ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("# made by a test\n"+strings.Join(identities, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newIdentity(t *testing.T) string {
	t.Helper()
	identity, _, err := GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func readShared(t *testing.T, path string) *SharedKey {
	t.Helper()
	key, err := ReadSharedKey(path)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSharedKey seals with the first key of a file, and opens with any of them.
func TestSharedKey(t *testing.T) {
	first, second := newIdentity(t), newIdentity(t)
	one, both := readShared(t, writeIdentities(t, first)), readShared(t, writeIdentities(t, second, first))
	document := []byte("the keys of an agent")
	sealed, err := one.Seal("keys", document)
	if err != nil || bytes.Contains(sealed.Age, document) || sealed.Recipient != one.Recipient() {
		t.Fatalf("Seal = %+v, %v", sealed, err)
	}
	for _, key := range []*SharedKey{one, both} {
		if got, err := key.Open("keys", sealed); err != nil || !bytes.Equal(got, document) {
			t.Errorf("Open = %q, %v", got, err)
		}
	}
	newer, err := both.Seal("keys", document)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := one.Open("keys", newer); !errors.Is(err, ErrOtherKey) {
		t.Errorf("Open with another key = %q, %v, want ErrOtherKey", got, err)
	}
}

// TestSharedKeyRefusesForgeries: a document that was changed, was sealed for another purpose, or was encrypted by
// somebody who knows only the recipient, is refused.
func TestSharedKeyRefusesForgeries(t *testing.T) {
	key := readShared(t, writeIdentities(t, newIdentity(t)))
	sealed, err := key.Seal("keys", []byte("document"))
	if err != nil {
		t.Fatal(err)
	}
	changed := Sealed{sealed.Recipient, bytes.Clone(sealed.Age)}
	changed.Age[len(changed.Age)-1] ^= 1
	foreign, err := SealAge(key.Recipient(), append(make([]byte, macSize), "document"...))
	if err != nil {
		t.Fatal(err)
	}
	short, err := SealAge(key.Recipient(), []byte("short"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		purpose string
		sealed  Sealed
	}{
		"changed":         {"keys", changed},
		"another purpose": {"certificate", sealed},
		"foreign":         {"keys", Sealed{key.Recipient(), foreign}},
		"short":           {"keys", Sealed{key.Recipient(), short}},
		"cut":             {"keys", Sealed{key.Recipient(), sealed.Age[:40]}},
		"empty":           {"keys", Sealed{Recipient: key.Recipient()}},
	} {
		if got, err := key.Open(c.purpose, c.sealed); !errors.Is(err, ErrSeal) {
			t.Errorf("%s: Open = %q, %v, want ErrSeal", name, got, err)
		}
	}
}

// TestReadSharedKeyRefuses: a key file must hold age identities, and only its user may read it. No error quotes it.
func TestReadSharedKeyRefuses(t *testing.T) {
	identity := newIdentity(t)
	open := writeIdentities(t, identity)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSharedKey(open); !errors.Is(err, ErrKeyFileMode) {
		t.Errorf("a file with mode 0640: %v, want ErrKeyFileMode", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSharedKey(link); !errors.Is(err, ErrKeyFileMode) {
		t.Errorf("a link to a file with mode 0640: %v, want ErrKeyFileMode", err)
	}
	for name, path := range map[string]string{
		"missing": filepath.Join(t.TempDir(), "none"),
		"empty":   writeIdentities(t),
		"damaged": writeIdentities(t, identity[:len(identity)-1]),
		"another": writeIdentities(t, "-----BEGIN PRIVATE KEY-----"),
	} {
		if _, err := ReadSharedKey(path); err == nil || strings.Contains(err.Error(), "AGE-SECRET") || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
