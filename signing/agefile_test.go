package signing

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"filippo.io/age"
)

// TestAgeFile checks that the writer can read the file back, that the recipients and nobody else can open it, and that
// a shortened file is an error.
func TestAgeFile(t *testing.T) {
	mine, recipient, err := GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	other, second, err := GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("all that there is "), 10_000)
	none := func() ([]byte, error) { return nil, ErrNoPassphrase }
	say := func(s string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(s), nil } }
	for _, tt := range []struct {
		name          string
		recipients    []string
		passphrase    string
		opens, misses []string
		knows         func() ([]byte, error)
		wrong         func() ([]byte, error)
	}{
		{"recipients", []string{recipient, second}, "", []string{mine, other, "# a comment\n" + stranger + "\n" + mine}, []string{stranger, ""}, none, none},
		{"passphrase", nil, "correct horse", []string{""}, []string{""}, say("correct horse"), say("wrong")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := NewAgeFile(tt.recipients, []byte(tt.passphrase))
			if err != nil {
				t.Fatal(err)
			}
			var sealed bytes.Buffer
			w, err := f.Writer(&sealed)
			if err == nil {
				_, err = w.Write(text)
			}
			if err := errors.Join(err, w.Close()); err != nil {
				t.Fatal(err)
			}
			if !IsAgeFile(sealed.Bytes()) || bytes.Contains(sealed.Bytes(), []byte("there is")) {
				t.Error("the file is not encrypted")
			}
			all := func(r io.ReaderAt, n int64, err error) []byte {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(io.NewSectionReader(r, 0, n))
				if err != nil {
					t.Fatal(err)
				}
				return data
			}
			if !bytes.Equal(all(f.Reader(bytes.NewReader(sealed.Bytes()), int64(sealed.Len()))), text) {
				t.Error("the writer reads something else")
			}
			for _, identity := range tt.opens {
				if !bytes.Equal(all(OpenAgeFile(bytes.NewReader(sealed.Bytes()), int64(sealed.Len()), []byte(identity), tt.knows)), text) {
					t.Error("the owner reads something else")
				}
			}
			for _, identity := range tt.misses {
				if _, _, err := OpenAgeFile(bytes.NewReader(sealed.Bytes()), int64(sealed.Len()), []byte(identity), tt.wrong); !errors.Is(err, ErrAge) {
					t.Errorf("a stranger: %v", err)
				}
			}
			short := sealed.Bytes()[:sealed.Len()-1]
			if _, _, err := OpenAgeFile(bytes.NewReader(short), int64(len(short)), []byte(mine), tt.knows); err == nil {
				t.Error("a shortened file was opened")
			}
		})
	}
	if _, err := NewAgeFile([]string{"age1nonsense"}, nil); err == nil {
		t.Error("a text that is not a recipient was taken as one")
	}
	for _, identities := range []string{"# only a comment\n", "AGE-SECRET-KEY-1nonsense", mine + "\nnonsense"} {
		_, _, err := OpenAgeFile(strings.NewReader("x"), 1, []byte(identities), none)
		if !errors.Is(err, errNoIdentities) || strings.Contains(err.Error(), "nonsense") {
			t.Errorf("a text that is not an identity file: %v", err)
		}
	}
}

// TestAgeFileIsAge checks that the age library can read a file that [AgeFile] wrote.
func TestAgeFileIsAge(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewAgeFile([]string{id.Recipient().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sealed bytes.Buffer
	w, err := f.Writer(&sealed)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "text")
	w.Close()
	r, err := age.Decrypt(&sealed, id)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(r); err != nil || string(data) != "text" {
		t.Errorf("age reads %q, %v", data, err)
	}
}
