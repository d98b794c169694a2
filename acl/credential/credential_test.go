package credential_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestHash(t *testing.T) {
	h := credential.HashOf("abc") // FIPS 180-2, appendix B.1
	const text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if h.String() != text || h.Name() != text[:32] || !h.Equal(credential.HashOf("abc")) || h.Equal(credential.HashOf("abd")) {
		t.Errorf("the hash of abc is %s, its name %s", h, h.Name())
	}
	type row struct {
		Hash credential.Hash `json:"hash,omitzero"`
	}
	for _, in := range []string{`{}`, `{"hash":"` + text + `"}`} {
		var r row
		if err := json.Unmarshal([]byte(in), &r); err != nil {
			t.Fatal(err)
		}
		if out, err := json.Marshal(r); string(out) != in || err != nil {
			t.Errorf("%s is written as %s, %v", in, out, err)
		}
	}
	for _, bad := range []string{"ab", text[:63], text + "00", strings.Repeat("x", 64)} {
		r := row{h}
		if err := r.Hash.UnmarshalText([]byte(bad)); err == nil || r.Hash != (credential.Hash{}) {
			t.Errorf("%q was read as %s, %v", bad, r.Hash, err)
		}
	}
	if err := h.UnmarshalText(nil); err != nil || h != (credential.Hash{}) {
		t.Errorf("an empty text was read as %s, %v", h, err)
	}
}

func TestNew(t *testing.T) {
	a, b := credential.New("tok_"), credential.New("tok_")
	if a == b || !strings.HasPrefix(a, "tok_") || len(a) != len("tok_")+32 {
		t.Errorf("New() = %q, then %q", a, b)
	}
}

func TestInvites(t *testing.T) {
	for _, forget := range []bool{false, true} {
		records, now := openRecords(t), time.Now().UTC().Truncate(time.Millisecond)
		v := credential.Invites{Records: records, NS: "test/invites", Name: credential.Hash.Name, Max: 2, Forget: forget}
		apply := func(c store.Change) error { return records.Apply(t.Context(), []store.Change{c}, now) }
		_, twice := v.Issue("twice", credential.Code{Created: now, Expires: now.Add(time.Hour), Uses: 2, Label: "friends"})
		_, once := v.Issue("once", credential.Code{Created: now, Expires: now.Add(time.Hour)})
		_, more := v.Issue("more", credential.Code{Created: now, Expires: now.Add(time.Hour)})
		if err := errors.Join(apply(twice), apply(once)); err != nil {
			t.Fatal(err)
		}
		if err := apply(more); !errors.Is(err, store.ErrQuota) {
			t.Errorf("a third code: %v", err)
		}
		for use := range 2 {
			c, first, err := v.Redeem(t.Context(), "twice", "am_one", now)
			_, second, err2 := v.Redeem(t.Context(), "twice", "am_two", now)
			if err != nil || err2 != nil || c.Count != use+1 || c.Left() != 1-use || c.UsedBy != "am_one" {
				t.Fatalf("use %d: %+v, %v, %v", use, c, err, err2)
			}
			if err := apply(first); err != nil {
				t.Fatal(err)
			}
			if err := apply(second); !errors.Is(err, store.ErrConflict) {
				t.Errorf("a use at the same moment: %v", err)
			}
		}
		want := credential.ErrSpent
		if forget {
			want = store.ErrNotFound
		}
		if _, _, err := v.Redeem(t.Context(), "twice", "am_three", now); !errors.Is(err, want) {
			t.Errorf("a third use: %v, want %v", err, want)
		}
		if _, _, err := v.Redeem(t.Context(), "never", "am_three", now); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an unknown code: %v", err)
		}
		gone, err := v.Revoke(t.Context(), credential.HashOf("once").Name(), now)
		if err != nil || apply(gone) != nil {
			t.Fatal(err)
		}
		codes, next, err := v.List(t.Context(), "", 10, now)
		if left := map[bool]int{true: 0, false: 1}[forget]; err != nil || next != "" || len(codes) != left {
			t.Errorf("%+v are left, %q, %v, want %d", codes, next, err, left)
		}
	}
}

func openRecords(t *testing.T) store.Records {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s.Records()
}
