package signing_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/signing"
)

// TestAgeBox checks that only the key of the recipient opens a file, and only within the limit of the reader.
func TestAgeBox(t *testing.T) {
	generate := func() (*signing.PrivateKey, string) {
		t.Helper()
		identity, recipient, err := signing.GenerateAge()
		if err != nil {
			t.Fatal(err)
		}
		key, err := signing.ParsePrivateKey([]byte(identity))
		if err != nil {
			t.Fatal(err)
		}
		return key, recipient
	}
	mine, to := generate()
	other, _ := generate()
	if !signing.ValidAgeRecipient(to) || signing.ValidAgeRecipient("age1x") {
		t.Errorf("ValidAgeRecipient(%s) is wrong", to)
	}
	plain := []byte(strings.Repeat("x", 1000))
	sealed, err := signing.SealAge(to, plain)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := mine.Unseal(sealed, 1000); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("Unseal() = %d bytes, %v", len(got), err)
	}
	altered := bytes.Clone(sealed)
	altered[len(altered)-1] ^= 1
	for name, tt := range map[string]struct {
		key   *signing.PrivateKey
		file  []byte
		limit int
	}{
		"too large": {mine, sealed, 999}, "other key": {other, sealed, 1000}, "altered": {mine, altered, 1000}, "no file": {mine, []byte("x"), 1000},
		"cut in two": {mine, sealed[:len(sealed)/2], 1000},
	} {
		if got, _, err := tt.key.Unseal(tt.file, tt.limit); !errors.Is(err, signing.ErrAge) || got != nil {
			t.Errorf("%s: %d bytes, %v, want ErrAge", name, len(got), err)
		}
	}
}
