package registration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// fakeDirectory is a directory that lists at most one card. Its cards live for two hours.
type fakeDirectory struct {
	mu     sync.Mutex
	listed bool
	down   bool
	key    string        // on the card that was registered or renewed last
	calls  []string      // method and status, and "proven" if the old key vouched for the new one
	gate   chan struct{} // the next PUT waits until the gate is closed. Later ones do not.
}

func (d *fakeDirectory) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gate := d.gate; req.Method == http.MethodPut && gate != nil {
		d.gate = nil
		d.mu.Unlock()
		<-gate
		d.mu.Lock()
	}
	body, _ := io.ReadAll(req.Body)
	card, _ := wire.ParseObject(body)
	id, status := strings.TrimPrefix(req.URL.Path, "/v1/agents/"), http.StatusOK
	switch {
	case d.down:
		status = http.StatusServiceUnavailable
	case req.Method == http.MethodPost:
		id, status, d.listed = card.GetStr("agent_id"), http.StatusCreated, true
	case !d.listed:
		status = http.StatusNotFound
	case req.Method == http.MethodDelete:
		status, d.listed = http.StatusNoContent, false
	}
	if status < 400 && len(body) > 0 {
		d.key = card.GetStr("public_key")
	}
	call := fmt.Sprint(req.Method, " ", status)
	if req.Header.Get(wire.HeaderPreviousKeyProof) != "" {
		call += " proven"
	}
	d.calls = append(d.calls, call)
	w.WriteHeader(status)
	if status >= 400 {
		w.Write(wire.ErrNoAgent.AppendJSON(nil))
	} else if status != http.StatusNoContent {
		fmt.Fprintf(w, `{"agent_id":%q,"expires_at":%q}`, id, wire.FormatTime(time.Now().Add(2*time.Hour)))
	}
}

// set changes the directory, and forgets its calls.
func (d *fakeDirectory) set(down bool, gate chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down, d.gate, d.calls = down, gate, nil
}

func (d *fakeDirectory) log() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// keys are the signing keys that the processes of a node share.
type keys struct {
	onSave func() // called before a key is saved; may be nil
	onRead func() // called after the current key was read, once; may be nil

	mu      sync.Mutex
	all     []*signing.PrivateKey
	refuses bool // keys that processes save, as if another process had replaced the key
}

func (k *keys) current() (*signing.PrivateKey, error) {
	k.mu.Lock()
	key, onRead := k.all[len(k.all)-1], k.onRead
	k.onRead = nil
	k.mu.Unlock()
	if onRead != nil {
		onRead()
	}
	return key, nil
}

func (k *keys) save(key *signing.PrivateKey, _ wire.Value) error {
	if k.onSave != nil {
		k.onSave()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuses {
		return errors.New("another process has replaced the key")
	}
	k.all = append(k.all, key)
	return nil
}

func (k *keys) retired(fingerprint string) (*signing.PrivateKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.all {
		if key.Public().Fingerprint() == fingerprint {
			return key, nil
		}
	}
	return nil, store.ErrNotFound
}

// newRegistrar returns the registrar of a process that starts now.
func newRegistrar(t *testing.T, s store.Store, k *keys, d *fakeDirectory) *registration.Registrar {
	t.Helper()
	http := client.NewHTTP(client.HTTPConfig{})
	t.Cleanup(http.Close)
	key, _ := k.current()
	card := meshtest.Card(t, "sarah", "https://sarah.test/v1")
	card, err := wire.ParseCard(card.Tree.With("public_key", wire.Text(key.PublicText())), wire.CardRules{})
	if err != nil {
		t.Fatal(err)
	}
	r := registration.New(registration.Config{
		Identity:    registration.Identity{Key: key, Card: card},
		Directories: []*client.Directory{client.NewDirectory("https://directory.test/v1", http, client.InProcess(d))},
		Credential:  "secret", Store: s, SaveKey: k.save, CurrentKey: k.current, RetiredKey: k.retired,
		Pause: func(int) time.Duration { return time.Minute }, Logger: slog.New(slog.DiscardHandler),
	})
	if err := r.Restore(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	return r
}

// openStore opens a database that closes with the test.
func openStore(t *testing.T) *bolt.Store {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// renewDuring starts two processes of a node. While the first one renews the card, do runs at the second one, and the
// directory is down for it if down is set. The first process learns nothing from hints.
func renewDuring(t *testing.T, down bool, do func(*registration.Registrar)) (first *registration.Registrar, d *fakeDirectory) {
	t.Helper()
	db, k := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}
	d = &fakeDirectory{}
	first = newRegistrar(t, db.Handle("first"), k, d)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { first.Run(ctx) })
	synctest.Wait()
	second := newRegistrar(t, db.Handle("second"), k, d)
	gate := make(chan struct{})
	d.set(false, gate)
	for waiting := true; waiting; { // for the renewal, which is due after about an hour
		time.Sleep(time.Second)
		d.mu.Lock()
		waiting = d.gate != nil
		d.mu.Unlock()
	}
	d.set(down, nil)
	do(second)
	close(gate)
	synctest.Wait()
	d.mu.Lock()
	d.down = false
	d.mu.Unlock()
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	stop()
	running.Wait()
	return first, d
}

// TestRotationDuringVisit: a process that visits a directory while another one rotates the key does not erase that the
// directory still needs a proof by the old key (AM-60).
func TestRotationDuringVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, d := renewDuring(t, true, func(second *registration.Registrar) {
			if list, err := second.RotateKey(t.Context()); err != nil || list[0].Error == "" {
				t.Errorf("RotateKey while the directory is down = %+v, %v", list, err)
			}
		})
		calls := d.log()
		i := slices.IndexFunc(calls, func(call string) bool { return strings.HasPrefix(call, "PUT 200") })
		if i < 0 || calls[i] != "PUT 200 proven" || first.Listings()[0].Error != "" {
			t.Errorf("calls %q, listing %+v: want the proof by the old key with the first renewal", calls, first.Listings()[0])
		}
		if first.Identity().Key.Public().Fingerprint() == meshtest.Key("sarah").Public().Fingerprint() {
			t.Error("the first process still has the old key")
		}
	})
}

// TestWithdrawalDuringVisit: if the owner withdraws the node at one process while another one visits the directory, the
// node stays withdrawn, also if that visit registered it again.
func TestWithdrawalDuringVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, d := renewDuring(t, false, func(second *registration.Registrar) {
			if list, err := second.Withdraw(t.Context(), ""); err != nil || list[0].State != owner.Withdrawn {
				t.Errorf("Withdraw = %+v, %v", list, err)
			}
		})
		if calls, state := d.log(), first.Listings()[0].State; d.listed || state != owner.Withdrawn {
			t.Errorf("the directory lists the card: %v, the node is %s, calls %q", d.listed, state, calls)
		}
	})
}

// failingStore fails changes of a registration while fails is set.
type failingStore struct {
	store.Store
	fails bool
}

func (s *failingStore) Records() store.Records { return failingRecords{s.Store.Records(), s} }

type failingRecords struct {
	store.Records
	s *failingStore
}

func (r failingRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if r.s.fails && strings.HasPrefix(changes[0].Record.Key, "directory/") {
		return store.ErrUnavailable
	}
	return r.Records.Apply(ctx, changes, now)
}

// TestRotationAfterStoreFailed: if a process cannot store anything after a new key, the next process still has the
// fingerprint of the key in the directory.
func TestRotationAfterStoreFailed(t *testing.T) {
	db, k := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}
	s, d := &failingStore{Store: db}, &fakeDirectory{}
	r := newRegistrar(t, s, k, d)
	if list, err := r.Register(t.Context(), ""); err != nil || list[0].Error != "" {
		t.Fatalf("Register = %+v, %v", list, err)
	}
	d.set(true, nil)
	k.onSave = func() { s.fails = true } // the process stores nothing any more
	if list, err := r.RotateKey(t.Context()); err != nil || list[0].Error == "" {
		t.Fatalf("RotateKey while the directory is down = %+v, %v", list, err)
	}
	d.set(false, nil)
	again := newRegistrar(t, db, k, d)
	if _, err := again.Register(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if calls := d.log(); !slices.Equal(calls, []string{"PUT 200 proven"}) {
		t.Errorf("calls %q, want a renewal with a proof by the old key", calls)
	}
}

// TestVisitDuringRotation: a process that renews the card with the old key, before another one has stored the new key,
// does not erase that the directory needs a proof by the old key.
func TestVisitDuringRotation(t *testing.T) {
	db, k, d := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
	first := newRegistrar(t, db.Handle("first"), k, d)
	register := func() {
		if list, err := first.Register(t.Context(), ""); err != nil || list[0].Error != "" {
			t.Errorf("Register = %+v, %v", list, err)
		}
	}
	register()
	k.onSave = register
	second := newRegistrar(t, db.Handle("second"), k, d)
	if list, err := second.RotateKey(t.Context()); err != nil || list[0].Error != "" {
		t.Errorf("RotateKey = %+v, %v", list, err)
	}
	if calls := d.log(); !slices.Equal(calls, []string{"POST 201", "PUT 200", "PUT 200 proven"}) {
		t.Errorf("calls %q, want the proof by the old key with the new one", calls)
	}
}

// TestRotationBeforeVisit: a rotation that begins before a directory has followed the one of another process needs a
// proof by the key of that process.
func TestRotationBeforeVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, k, d := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
		first, second := newRegistrar(t, db.Handle("first"), k, d), newRegistrar(t, db.Handle("second"), k, d)
		if list, err := first.Register(t.Context(), ""); err != nil || list[0].Error != "" {
			t.Fatalf("Register = %+v, %v", list, err)
		}
		gate := make(chan struct{})
		d.set(false, gate)
		rotate := func(r *registration.Registrar) {
			if list, err := r.RotateKey(t.Context()); err != nil || list[0].Error != "" {
				t.Errorf("RotateKey = %+v, %v", list, err)
			}
		}
		var rotating sync.WaitGroup
		rotating.Go(func() { rotate(first) })
		synctest.Wait()
		k.onSave = func() {
			close(gate)
			rotating.Wait()
		}
		rotate(second)
		if calls := d.log(); !slices.Equal(calls, []string{"PUT 200 proven", "PUT 200 proven"}) {
			t.Errorf("calls %q, want a proof by the key before with each new key", calls)
		}
	})
}

// TestRotationsAtOnce: a rotation that is refused because of another one leaves the key chain of the other one.
func TestRotationsAtOnce(t *testing.T) {
	for name, hook := range map[string]func(k *keys, refused, rotate func()){
		"while the other stores its key": func(k *keys, refused, rotate func()) {
			k.onSave = func() {
				k.onSave, k.refuses = nil, true
				refused()
				k.refuses = false
			}
			rotate()
		},
		"before the other, and goes on after it": func(k *keys, refused, rotate func()) {
			k.onRead = func() {
				rotate()
				k.refuses = true
			}
			refused()
		},
	} {
		db, k, d := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
		first, second := newRegistrar(t, db.Handle("first"), k, d), newRegistrar(t, db.Handle("second"), k, d)
		hook(k, func() {
			if _, err := first.RotateKey(t.Context()); err == nil {
				t.Errorf("%s: both rotations succeed", name)
			}
		}, func() {
			if _, err := second.RotateKey(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		for _, r := range []*registration.Registrar{second, newRegistrar(t, db.Handle("third"), k, d)} {
			own := r.Identity()
			if err := signing.ProvesID(own.Card, own.Key.Public(), time.Now()); err != nil || len(k.all) != 2 {
				t.Errorf("begun %s: of %d keys, the key chain %q does not lead to the last one: %v", name, len(k.all), own.Card.KeyChain(), err)
			}
		}
	}
}

// TestVisitAfterUnseenRotation: a process that has not learned of a rotation by another one renews the card with the
// new key. The old key would be a replacement, about which every peer asks its owner (AM-60).
func TestVisitAfterUnseenRotation(t *testing.T) {
	db, k, d := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
	first := newRegistrar(t, db.Handle("first"), k, d)
	register := func() {
		if list, err := first.Register(t.Context(), ""); err != nil || list[0].Error != "" {
			t.Fatalf("Register = %+v, %v", list, err)
		}
	}
	register()
	second := newRegistrar(t, db.Handle("second"), k, d)
	if list, err := second.RotateKey(t.Context()); err != nil || list[0].Error != "" {
		t.Fatalf("RotateKey = %+v, %v", list, err)
	}
	register()
	if d.key != second.Identity().Key.PublicText() {
		t.Errorf("the directory lists the old key again after the calls %q", d.log())
	}
}

// TestRotationAfterUnseenRotation: a process that has not learned of a rotation by another one rotates the key of that
// process, not the one before.
func TestRotationAfterUnseenRotation(t *testing.T) {
	db, k, d := openStore(t), &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
	first, second := newRegistrar(t, db.Handle("first"), k, d), newRegistrar(t, db.Handle("second"), k, d)
	for _, r := range []*registration.Registrar{second, first} {
		if list, err := r.RotateKey(t.Context()); err != nil || list[0].Error != "" {
			t.Fatalf("RotateKey = %+v, %v", list, err)
		}
	}
	own := first.Identity()
	if err := signing.ProvesID(own.Card, own.Key.Public(), time.Now()); err != nil || len(strings.Fields(own.Card.KeyChain())) != 2 {
		t.Errorf("the key chain %q does not lead over both rotations: %v", own.Card.KeyChain(), err)
	}
}

// TestRotationDuringReread: a rotation waits for a process that reads its identity again, so that the card keeps the
// key chain of the rotation.
func TestRotationDuringReread(t *testing.T) {
	k, d := &keys{all: []*signing.PrivateKey{meshtest.Key("sarah")}}, &fakeDirectory{}
	r := newRegistrar(t, openStore(t), k, d)
	rotated := make(chan error, 1)
	k.onRead = func() {
		go func() {
			_, err := r.RotateKey(t.Context())
			rotated <- err
		}()
		select {
		case err := <-rotated:
			rotated <- err
		case <-time.After(100 * time.Millisecond): // it waits
		}
	}
	if err := r.Reread(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-rotated; err != nil {
		t.Fatal(err)
	}
	own := r.Identity()
	if err := signing.ProvesID(own.Card, own.Key.Public(), time.Now()); err != nil {
		t.Errorf("the key chain %q does not lead to the new key: %v", own.Card.KeyChain(), err)
	}
}
