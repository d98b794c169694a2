package signing_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/signing"
)

// TestAgeBox checks that only the identity of the recipient opens a file, and only within the limit of the reader.
func TestAgeBox(t *testing.T) {
	mine, to, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := signing.AgeRecipient(mine); err != nil || got != to || !signing.ValidAgeRecipient(to) || signing.ValidAgeRecipient("age1x") {
		t.Errorf("AgeRecipient() = %s, %v, want %s", got, err, to)
	}
	plain := []byte(strings.Repeat("x", 1000))
	sealed, err := signing.SealAge(to, plain)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := signing.OpenAge(mine, sealed, 1000); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("OpenAge() = %d bytes, %v", len(got), err)
	}
	altered := bytes.Clone(sealed)
	altered[len(altered)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"too large":  func() ([]byte, error) { return signing.OpenAge(mine, sealed, 999) },
		"other key":  func() ([]byte, error) { return signing.OpenAge(other, sealed, 1000) },
		"altered":    func() ([]byte, error) { return signing.OpenAge(mine, altered, 1000) },
		"no file":    func() ([]byte, error) { return signing.OpenAge(mine, []byte("x"), 1000) },
		"cut in two": func() ([]byte, error) { return signing.OpenAge(mine, sealed[:len(sealed)/2], 1000) },
	} {
		if got, err := open(); !errors.Is(err, signing.ErrAge) || got != nil {
			t.Errorf("%s: %d bytes, %v, want ErrAge", name, len(got), err)
		}
	}
	if _, err := signing.OpenAge("AGE-SECRET-KEY-1BAD", sealed, 1000); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("a bad identity: %v", err)
	}
}
