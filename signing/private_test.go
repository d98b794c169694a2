package signing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"
)

// TestPrivateKeyRoundTrip checks that ParsePrivateKey reads the text that MarshalText writes, for each kind.
func TestPrivateKeyRoundTrip(t *testing.T) {
	for _, key := range keyOfEachKind(t) {
		kind := key.Public().Kind()
		again, err := ParsePrivateKey([]byte(mustText(key)))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if again.PublicText() != key.PublicText() || again.Public().Fingerprint() != key.Public().Fingerprint() {
			t.Errorf("%s: read back another key", kind)
		}
		sig, err := again.Sign([]byte("data"))
		if err != nil {
			t.Fatal(err)
		}
		if err := key.Public().Verify([]byte("data"), sig, AnyTime(), time.Now()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		public, err := ParsePublicKey(key.PublicText())
		if err != nil || public.Fingerprint() != key.Public().Fingerprint() {
			t.Errorf("%s: the public text is another key: %v", kind, err)
		}
	}
}

// TestReferenceKeys checks that we read and publish the same PEM as the reference implementation on node.
func TestReferenceKeys(t *testing.T) {
	const pkcs8 = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH\n-----END PRIVATE KEY-----\n"
	const spki = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=\n-----END PUBLIC KEY-----\n"
	key, err := ParsePrivateKey([]byte(pkcs8))
	if err != nil {
		t.Fatal(err)
	}
	if key.PublicText() != spki || mustText(key) != pkcs8 {
		t.Errorf("published as %s", key.PublicText())
	}
}

func TestParsePrivateKeyRefuses(t *testing.T) {
	first, second := newAgeKey(t), newAgeKey(t)
	locked := newEntity(t, nil)
	if err := locked.EncryptPrivateKeys([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":               "",
		"public PEM":          benchKey().PublicText(),
		"two PEM blocks":      mustText(benchKey()) + mustText(benchKey()),
		"PEM cut":             mustText(benchKey())[:60],
		"PEM of rubbish":      "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		"two age identities":  mustText(first) + mustText(second),
		"only comments":       "# nothing here\n",
		"age damaged":         strings.Replace(mustText(first), "1", "1Q", 1),
		"post-quantum age":    hybrid.String(),
		"age recipient":       first.PublicText(),
		"OpenPGP public":      publicArmor(t, newEntity(t, nil)),
		"OpenPGP locked":      privateArmor(t, locked),
		"OpenPGP two keys":    armorParts(t, armorPrivate, privateBytes(t, newEntity(t, nil)), privateBytes(t, newEntity(t, nil))),
		"OpenPGP cut":         privateArmor(t, newEntity(t, nil))[:200],
		"too long":            strings.Repeat("#", MaxKeyText+1),
		"seed in hex":         strings.Repeat("07", 32),
		"OpenSSH private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
	} {
		key, err := ParsePrivateKey([]byte(text))
		if _, ok := errors.AsType[*KeyError](err); !ok {
			t.Errorf("%s: ParsePrivateKey = %v, %v", name, key, err)
		}
		if body := strings.TrimSpace(text); err != nil && len(body) > 40 && strings.Contains(err.Error(), body[20:40]) {
			t.Errorf("%s: the error quotes the key: %v", name, err)
		}
	}
	if _, err := ParsePrivateKey([]byte("# created: 2026-02-19\n# public key: x\n" + mustText(first))); err != nil {
		t.Errorf("a file of age-keygen: %v", err)
	}
}

// TestSecretsArePrintedRedacted checks AM-77 and THREATS row 29.
func TestSecretsArePrintedRedacted(t *testing.T) {
	type holder struct {
		Name string
		Key  *PrivateKey
		key  *PrivateKey
	}
	for _, key := range keyOfEachKind(t) {
		h := holder{"x", key, key}
		var logs bytes.Buffer
		for _, handler := range []slog.Handler{slog.NewTextHandler(&logs, nil), slog.NewJSONHandler(&logs, nil)} {
			log := slog.New(handler)
			log.Info("key", "key", key, "holder", h, "pointer", &h, "any", []any{key})
		}
		asJSON, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		wrapped := fmt.Errorf("key %v", key)
		var out strings.Builder
		fmt.Fprint(&out, logs.String(), string(asJSON), wrapped, key, h, &h, []*PrivateKey{key}, map[string]*PrivateKey{"k": key})
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s"} {
			fmt.Fprintf(&out, verb+verb+verb, key, h, &h)
		}
		shown := out.String()
		if !strings.Contains(shown, redacted) {
			t.Error("nothing says [redacted]")
		}
		for line := range strings.Lines(mustText(key)) {
			if line = strings.TrimSpace(line); len(line) > 16 && !strings.HasPrefix(line, "-----") && strings.Contains(shown, line[:16]) {
				t.Errorf("%s: the secret is shown", key.Public().Kind())
			}
		}
	}
}

// shippedWork is the passphrase cost outside tests.
var shippedWork = PassphraseWork

func TestMain(m *testing.M) {
	PassphraseWork = 2
	os.Exit(m.Run())
}

// TestPassphraseIsExpensive checks that a try of one passphrase takes about a second, and that the file has this cost.
func TestPassphraseIsExpensive(t *testing.T) {
	if shippedWork < 18 {
		t.Errorf("log2 of the cost is %d, want 18", shippedWork)
	}
	locked, err := encryptArmored([]byte(mustText(benchKey())), []byte("correct horse"))
	if err != nil {
		t.Fatal(err)
	}
	header, err := io.ReadAll(io.LimitReader(agearmor.NewReader(bytes.NewReader(locked)), 80))
	if err != nil {
		t.Fatal(err)
	}
	if _, stanza, _ := strings.Cut(string(header), "-> scrypt "); !strings.Contains(strings.SplitN(stanza, "\n", 2)[0], " 2") {
		t.Errorf("the file does not have the cost: %q", header)
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	for _, key := range keyOfEachKind(t) {
		for _, passphrase := range []string{"", "correct horse"} {
			path := filepath.Join(dir, string(key.Public().Kind())+passphrase)
			if err := WriteKeyFile(path, key, []byte(passphrase)); err != nil {
				t.Fatal(err)
			}
			data := readFile(t, path)
			if locked := !bytes.Contains(data, []byte(mustText(key)[:20])); locked != (passphrase != "") {
				t.Errorf("%s: encrypted is %v", path, locked)
			}
			asked := 0
			ask := func() ([]byte, error) { asked++; return []byte(passphrase), nil }
			again, err := ReadKeyFile(path, ask)
			if err != nil || again.Public().Fingerprint() != key.Public().Fingerprint() {
				t.Errorf("%s: %v", path, err)
			}
			if (asked == 1) != (passphrase != "") {
				t.Errorf("%s: asked %d times", path, asked)
			}
			if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
			}
			if err := WriteKeyFile(path, key, nil); !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s: overwriting: %v", path, err)
			}
			if !bytes.Equal(readFile(t, path), data) {
				t.Errorf("%s was overwritten", path)
			}
		}
	}
	cheap, err := encryptArmored([]byte(mustText(benchKey())), []byte("correct horse"))
	if err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(dir, "locked")
	if err := os.WriteFile(locked, cheap, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKeyFile(locked, nil); !errors.Is(err, ErrNoPassphrase) {
		t.Errorf("no passphrase: %v", err)
	}
	if _, err := ReadKeyFile(locked, func() ([]byte, error) { return []byte("wrong"), nil }); err == nil {
		t.Error("a wrong passphrase opens the file")
	}
	failed := errors.New("no terminal")
	if _, err := ReadKeyFile(locked, func() ([]byte, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Errorf("the passphrase cannot be asked for: %v", err)
	}
	leftovers, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("temporary files are left: %v", leftovers)
	}
}

// TestKeyFileGuards checks AM-7 and THREATS row 29: key files that other users may read, links, and things that are not
// files.
func TestKeyFileGuards(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := WriteKeyFile(path, benchKey(), nil); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o700: true, 0o640: false, 0o604: false, 0o644: false, 0o620: false, 0o601: false, 0o666: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadKeyFile(path, nil)
		if (err == nil) != ok || !ok && !errors.Is(err, ErrKeyFileMode) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), dangling); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, maxKeyFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{"link": link, "directory": dir, "dangling link": dangling, "too large": large} {
		if _, err := ReadKeyFile(bad, nil); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if _, err := ReadKeyFile(filepath.Join(dir, "missing"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	for _, taken := range []string{link, dangling} {
		if err := WriteKeyFile(taken, benchKey(), nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("writing through a link: %v", err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a key was written where a link points")
	}
	if err := WriteKeyFile(filepath.Join(dir, "none", "key"), benchKey(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into no directory: %v", err)
	}
}
