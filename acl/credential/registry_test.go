package credential_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/store"
)

type account struct {
	credential.Account
	Text string `json:"text,omitempty"`
}

type accounts = credential.Registry[account, *account]

func newAccount(id string) *account { return &account{Account: credential.Account{ID: id}} }

func openAccounts(t *testing.T, records store.Records, change func(*credential.Config[*account])) *accounts {
	t.Helper()
	cfg := credential.Config[*account]{Records: records, NS: "test/accounts", Prefix: "tok_", Mode: credential.Open, PerHour: 100, Reserve: 365 * 24 * time.Hour}
	if change != nil {
		change(&cfg)
	}
	r := credential.NewRegistry[account](cfg)
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRegistryModes: who gets an account in each mode, and whether its key waits for the owner.
func TestRegistryModes(t *testing.T) {
	for _, tt := range []struct {
		mode    credential.Mode
		code    string
		want    error
		pending bool
	}{
		{credential.Open, "", nil, false},
		{credential.Closed, "issued", credential.ErrClosed, false},
		{"", "", credential.ErrClosed, false},
		{credential.Approval, "", nil, true},
		{credential.Invite, "", credential.ErrInvite, false},
		{credential.Invite, "wrong", credential.ErrInvite, false},
		{credential.Invite, "used", credential.ErrInvite, false},
		{credential.Invite, "issued", nil, false},
		{credential.Invite, "lasting", nil, false},
	} {
		t.Run(string(tt.mode)+" "+tt.code, func(t *testing.T) {
			records, asked := openRecords(t), 0
			r := openAccounts(t, records, func(c *credential.Config[*account]) {
				c.Mode, c.Code = tt.mode, "lasting"
				c.Invites = credential.Invites{Records: records, NS: "test/invites", Name: credential.Hash.Name, Forget: true}
				c.Ask = func(*account) ([]store.Change, error) { asked++; return nil, nil }
			})
			for _, code := range []string{"issued", "used"} {
				_, change := r.Invites().Issue(code, credential.Code{Expires: time.Now().Add(time.Hour)})
				if err := records.Apply(t.Context(), []store.Change{change}, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if tt.code == "used" {
				if _, err := r.Admit(t.Context(), newAccount("first"), "used", ""); err != nil {
					t.Fatal(err)
				}
			}
			key, err := r.Admit(t.Context(), newAccount("bob"), tt.code, "")
			if !errors.Is(err, tt.want) || (asked == 1) != tt.pending {
				t.Fatalf("%v, and the owner was asked %d times", err, asked)
			}
			if err != nil {
				return
			}
			if a := r.Find(key); a == nil || a.ID != "bob" || a.Pending != tt.pending || !strings.HasPrefix(key, "tok_") {
				t.Errorf("%q belongs to %+v", key, a)
			}
			again := openAccounts(t, records, nil)
			if a := again.Find(key); a == nil || a.Pending != tt.pending {
				t.Errorf("after a restart the key belongs to %+v", a)
			}
			if _, err := r.Admit(t.Context(), newAccount("bob"), "lasting", ""); !errors.Is(err, credential.ErrTaken) {
				t.Errorf("the same id again: %v", err)
			}
		})
	}
}

// TestRotate: a new key approves an account and replaces the old key.
func TestRotate(t *testing.T) {
	r := openAccounts(t, openRecords(t), func(c *credential.Config[*account]) { c.Mode = credential.Approval })
	old, err := r.Admit(t.Context(), newAccount("bob"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.Rotate(t.Context(), "bob")
	if a := r.Find(key); err != nil || a == nil || a.Pending || r.Find(old) != nil {
		t.Errorf("%v: the new key belongs to %+v, the old one to %+v", err, a, r.Find(old))
	}
	if _, err := r.Rotate(t.Context(), "eve"); !errors.Is(err, credential.ErrUnknown) {
		t.Errorf("a key for nobody: %v", err)
	}
	if r.Find("") != nil {
		t.Error("the empty key belongs to somebody")
	}
}

// TestReservedIDs: a removed account takes no room from others. Its id stays reserved for a time, within a bound: that
// of the account that was removed first is free first. An account that the owner rejects leaves nothing.
func TestReservedIDs(t *testing.T) { // AR-2, MS-55
	synctest.Test(t, func(t *testing.T) {
		records := openRecords(t)
		few := func(c *credential.Config[*account]) { c.Max = 3 }
		r := openAccounts(t, records, few)
		ids := []string{"e", "d", "c", "b", "a"} // not in the order of their names
		for _, id := range ids {
			key, err := r.Add(t.Context(), newAccount(id), "")
			if err != nil {
				t.Fatalf("add %s: %v", id, err)
			}
			if err := r.Remove(t.Context(), id); err != nil || r.Get(id) != nil || r.Find(key) != nil {
				t.Fatalf("remove %s: %v", id, err)
			}
			time.Sleep(time.Minute)
		}
		check := func(r *accounts) {
			t.Helper()
			for i, id := range ids {
				if r.IsTaken(id) != (i >= 2) {
					t.Errorf("%s is taken: %v", id, r.IsTaken(id))
				}
			}
			if _, err := r.Add(t.Context(), newAccount("a"), ""); !errors.Is(err, credential.ErrTaken) {
				t.Errorf("a reserved id: %v", err)
			}
			if n := r.Count(); n != 0 {
				t.Errorf("%d accounts are left", n)
			}
		}
		check(r)
		check(openAccounts(t, records, few))
		time.Sleep(366 * 24 * time.Hour)
		if _, err := r.Add(t.Context(), newAccount("a"), ""); err != nil {
			t.Errorf("a year later: %v", err)
		}
		strict := openAccounts(t, records, func(c *credential.Config[*account]) { c.Mode = credential.Approval })
		if _, err := strict.Admit(t.Context(), newAccount("rejected"), "", ""); err != nil {
			t.Fatal(err)
		}
		if err := strict.Remove(t.Context(), "rejected"); err != nil || strict.IsTaken("rejected") {
			t.Errorf("a rejected id is taken: %v", err)
		}
	})
}

// TestRegistryIsBounded: neither the number nor the size of accounts grows without bound, and an account that ends
// makes room.
func TestRegistryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openAccounts(t, openRecords(t), func(c *credential.Config[*account]) {
			c.Max = 2
			c.Expires = func(a *account) time.Time { return a.Created.Add(time.Hour) }
		})
		large := newAccount("large")
		large.Text = strings.Repeat("x", 32<<10)
		if _, err := r.Add(t.Context(), large, ""); !errors.Is(err, credential.ErrLarge) {
			t.Errorf("a large account: %v", err)
		}
		for i := range 3 {
			want := error(nil)
			if i == 2 {
				want = credential.ErrFull
			}
			if _, err := r.Add(t.Context(), newAccount(fmt.Sprint(i)), fmt.Sprint("key-", i)); !errors.Is(err, want) {
				t.Errorf("account %d: %v, want %v", i, err, want)
			}
		}
		if r.Get("0") == nil || r.Find("key-0") == nil {
			t.Error("an account is missing")
		}
		time.Sleep(time.Hour)
		if r.Get("0") != nil || r.Find("key-0") != nil {
			t.Error("an account that ended is still there")
		}
		if _, err := r.Add(t.Context(), newAccount("0"), ""); err != nil {
			t.Errorf("after the end of the others: %v", err)
		}
	})
}

// TestRegistryBytesAreBounded: the accounts together have a largest size, which also holds for changes.
func TestRegistryBytesAreBounded(t *testing.T) {
	r := openAccounts(t, openRecords(t), nil)
	text := strings.Repeat("x", 31<<10)
	for i := range 1060 { // about 32 MiB
		a := newAccount(fmt.Sprint(i))
		a.Text = text
		if _, err := r.Change(a); err != nil && i < 1000 { // sets the size
			t.Fatal(err)
		}
		r.Publish(a)
	}
	a := newAccount("one-more")
	a.Text = text
	if _, err := r.Add(t.Context(), a, ""); !errors.Is(err, credential.ErrFull) {
		t.Errorf("one more: %v", err)
	}
}

// TestKeepsTheNewest: an older version of an account never replaces a newer one.
func TestKeepsTheNewest(t *testing.T) {
	r, hash := openAccounts(t, openRecords(t), nil), credential.HashOf("key")
	for _, a := range []credential.Account{{Key: hash, Version: 1}, {Pending: true, Version: 3}, {Key: hash, Version: 2}} {
		a.ID = "eve"
		r.Publish(&account{Account: a})
	}
	if a := r.Get("eve"); !a.Pending || a.Key != (credential.Hash{}) || r.Find("key") != nil {
		t.Errorf("eve = %+v", a)
	}
}

// TestWrongKeysWait: an address with too many wrong keys must wait, and others need not.
func TestWrongKeysWait(t *testing.T) { // AM-43
	r, wrong := openAccounts(t, openRecords(t), nil), errors.New("wrong")
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	for i := range credential.MaxFailures {
		if err := r.Fail(a, wrong); err != wrong {
			t.Errorf("failure %d: %v", i, err)
		}
	}
	busy, ok := errors.AsType[*credential.Busy](r.Fail(a, wrong))
	if !ok || busy.Wait <= 0 || r.Fail(b, wrong) != wrong {
		t.Errorf("one more: %v", busy)
	}
}

// TestRegistrationsWait: an address may register a number of accounts in an hour, and a failed registration is free.
func TestRegistrationsWait(t *testing.T) { // AM-43
	r := openAccounts(t, openRecords(t), func(c *credential.Config[*account]) { c.PerHour = 2 })
	from, failed := netip.MustParseAddr("192.0.2.1"), errors.New("failed")
	for i, want := range []error{failed, nil, failed, nil} {
		if err := r.Charge(from, func() error { return want }); err != want {
			t.Errorf("registration %d: %v, want %v", i, err, want)
		}
	}
	err := r.Charge(from, func() error { t.Error("a registration too many"); return nil })
	if busy, ok := errors.AsType[*credential.Busy](err); !ok || busy.All || busy.Wait <= 0 {
		t.Errorf("one more: %v", err)
	}
}

// TestActivity: the activity of a busy account is stored every hour, and that of a removed account does not count.
func TestActivity(t *testing.T) { // AR-42
	records := openRecords(t)
	writes := 0
	counted := &during{Records: records}
	r := openAccounts(t, counted, nil)
	for _, id := range []string{"a", "b"} {
		if _, err := r.Add(t.Context(), newAccount(id), ""); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for minutes := range 121 {
		counted.do = func() { writes++ }
		for _, id := range []string{"a", "b"} {
			if err := r.MarkSeen(t.Context(), r.Get(id), began.Add(time.Duration(minutes)*time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	counted.do = nil
	if err := r.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*accounts{"before": r, "after": openAccounts(t, records, nil)} {
		if n := r.ActiveSince(began.Add(119 * time.Minute)); n != 1 {
			t.Errorf("%s a restart, %d accounts were active, want 1", name, n)
		}
	}
	if writes != 3 {
		t.Errorf("%d minutes had writes, want 3", writes)
	}
}

// during calls a function once, before changes are written.
type during struct {
	store.Records
	do func()
}

func (d *during) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if do := d.do; do != nil {
		d.do = nil
		do()
	}
	return d.Records.Apply(ctx, changes, now)
}

// TestConcurrentEdits: a key that the owner takes away does not come back with a change, or with the activity, that
// was made at the same moment.
func TestConcurrentEdits(t *testing.T) {
	for _, name := range []string{"edit", "activity"} {
		records := &during{Records: openRecords(t)}
		r := openAccounts(t, records, nil)
		key, err := r.Add(t.Context(), newAccount("bob"), "")
		if err != nil {
			t.Fatal(err)
		}
		records.do = func() {
			if _, err := r.Rotate(t.Context(), "bob"); err != nil {
				t.Error(err)
			}
		}
		if name == "edit" {
			err = r.Edit(t.Context(), "bob", func(a *account) error { a.Text = "new"; return nil })
		} else {
			err = r.MarkSeen(t.Context(), r.Get("bob"), time.Now())
		}
		if err != nil || r.Find(key) != nil || openAccounts(t, records, nil).Find(key) != nil {
			t.Errorf("%s: %v, or the old key is back", name, err)
		}
	}
}

// TestLoadAgain: a registry that another process changed forgets what is gone, and knows what is new.
func TestLoadAgain(t *testing.T) {
	records := openRecords(t)
	first := openAccounts(t, records, func(c *credential.Config[*account]) { c.Reserve = 0 })
	if _, err := first.Add(t.Context(), newAccount("old"), "old key"); err != nil {
		t.Fatal(err)
	}
	second := openAccounts(t, records, nil)
	if _, err := first.Add(t.Context(), newAccount("new"), "new key"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Remove(t.Context(), "old"), second.Load(t.Context())); err != nil {
		t.Fatal(err)
	}
	if second.Find("old key") != nil || second.IsTaken("old") || second.Find("new key") == nil || second.Count() != 1 {
		t.Errorf("%d accounts are left", second.Count())
	}
}

// TestClaim: a key of the configuration admits to one account, beside the key that the account has.
func TestClaim(t *testing.T) { // MEW-D5
	r := openAccounts(t, openRecords(t), nil)
	own, err := r.Add(t.Context(), newAccount("bob"), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(r.Claim("shared", newAccount("bob")), r.Claim("new", newAccount("eve"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Claim("shared", newAccount("eve")); !errors.Is(err, credential.ErrTaken) {
		t.Errorf("a key of two accounts: %v", err)
	}
	for key, want := range map[string]string{own: "bob", "shared": "bob", "new": "eve"} {
		if a := r.Find(key); a == nil || a.ID != want {
			t.Errorf("%q admits to %+v, want %s", key, a, want)
		}
	}
}

// TestIndex: the index of a network sees each change once.
func TestIndex(t *testing.T) {
	var seen []string
	r := openAccounts(t, openRecords(t), func(c *credential.Config[*account]) {
		c.Index = func(old, next *account) { seen = append(seen, fmt.Sprint(old != nil, next != nil)) }
		c.Reserve = 0
	})
	if _, err := r.Add(t.Context(), newAccount("bob"), ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Edit(t.Context(), "bob", func(*account) error { return nil }), r.Remove(t.Context(), "bob")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"false true", "true true", "true false"}; !slices.Equal(seen, want) {
		t.Errorf("the index saw %v, want %v", seen, want)
	}
}
