//go:build slow

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

func newKeyFile(t *testing.T) string {
	t.Helper()
	key, err := datadir.GenerateKey("age")
	path := filepath.Join(t.TempDir(), "key")
	if err == nil {
		err = signing.WriteKeyFile(path, key, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func instance(t *testing.T, database, keyFile, dir string) *KeyStore {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: database, Name: "test", LeaseTTL: time.Second, AllowUnsafe: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	cfg := config.Default()
	cfg.Store.KeyFile = keyFile
	k, err := OpenKeyStore(Options{Config: cfg, Dir: datadir.Dir(dir), Logger: log}, db, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func addAgent(keys datadir.Keys) error {
	if keys.HasAgent() {
		return nil
	}
	keys[datadir.FileCard] = datadir.CardFile(wire.Obj(wire.Member{Key: "agentmesh", Value: wire.Text(wire.Version)}))
	return keys.AddNew(nil)
}

func update(t *testing.T, k *KeyStore, change func(datadir.Keys) error) (written []string) {
	t.Helper()
	written, err := k.Update(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func keysIn(t *testing.T, k *KeyStore) datadir.Keys {
	t.Helper()
	keys, err := k.dir.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func rotate(t *testing.T, k *KeyStore) func(datadir.Keys) error {
	return func(keys datadir.Keys) error {
		old, err := k.dir.ParseKeys(keys, nil)
		if err != nil {
			return err
		}
		key, err := signing.GenerateEd25519()
		if err != nil {
			return err
		}
		return keys.Rotate(key, old.Key, nil, datadir.CardFile(wire.Obj(wire.Member{Key: "public_key", Value: wire.Text(key.PublicText())})))
	}
}

func sharedRecord(t *testing.T, k *KeyStore) store.Record {
	t.Helper()
	record, err := k.db.Records().Get(t.Context(), registration.Namespace, registration.SharedKeys, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func putShared(t *testing.T, k *KeyStore, body []byte) {
	t.Helper()
	change := store.Change{Record: store.Record{NS: registration.Namespace, Key: registration.SharedKeys, Body: body}, IfRev: store.Any}
	if err := k.db.Records().Apply(t.Context(), []store.Change{change}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// TestKeysStartAtOnce: instances that start at once have the same keys, and the database has no secret in clear.
func TestKeysStartAtOnce(t *testing.T) {
	database, keyFile := pgtest.Database(t), newKeyFile(t)
	var all []*KeyStore
	for range 4 {
		all = append(all, instance(t, database, keyFile, t.TempDir()))
	}
	var starting sync.WaitGroup
	for _, k := range all {
		starting.Go(func() {
			if _, err := k.Update(t.Context(), addAgent); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	want := keysIn(t, all[0])
	for _, k := range all[1:] {
		if !maps.EqualFunc(keysIn(t, k), want, bytes.Equal) {
			t.Errorf("the keys in %s and %s differ", k.dir, all[0].dir)
		}
	}
	for record, err := range store.AllRecords(t.Context(), all[0].db.Records(), registration.Namespace, "", time.Now()) {
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range want {
			for line := range bytes.Lines(data) {
				if line = bytes.TrimSpace(line); name != datadir.FileCard && len(line) > 20 && bytes.Contains(record.Body, line) {
					t.Errorf("the record %s has a part of %s in clear", record.Key, name)
				}
			}
		}
	}
	secrets, err := all[1].dir.Secrets(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := all[1].CheckAgent(t.Context(), secrets); err != nil {
		t.Error(err)
	}
}

// TestKeysRefuseARecord: damaged keys in the database, keys that somebody without the key file encrypted, and keys that
// are sealed for another key file are refused. The record stays as it is.
func TestKeysRefuseARecord(t *testing.T) {
	database, keyFile := pgtest.Database(t), newKeyFile(t)
	k := instance(t, database, keyFile, t.TempDir())
	update(t, k, addAgent)
	good := sharedRecord(t, k).Body
	var sealed signing.Sealed
	if err := json.Unmarshal(good, &sealed); err != nil {
		t.Fatal(err)
	}
	encode := func(s signing.Sealed) []byte {
		body, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	theirs := datadir.Keys{}
	if err := addAgent(theirs); err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := signing.SealAge(sealed.Recipient, append(make([]byte, 32), plain...))
	if err != nil {
		t.Fatal(err)
	}
	cut := sealed
	cut.Age = cut.Age[:len(cut.Age)-1]
	for name, body := range map[string][]byte{
		"cut": encode(cut), "no JSON": []byte("x"), "empty": {}, "forged": encode(signing.Sealed{Recipient: sealed.Recipient, Age: forged}),
	} {
		putShared(t, k, body)
		for _, k := range []*KeyStore{k, instance(t, database, keyFile, t.TempDir())} {
			if _, err := k.Update(t.Context(), addAgent); !goldentest.Refuses(t, name, err) {
				t.Errorf("%s: Update = %v", name, err)
			}
		}
		if got := sharedRecord(t, k).Body; !bytes.Equal(got, body) {
			t.Errorf("%s: the record was replaced", name)
		}
	}
	putShared(t, k, good)
	other := instance(t, database, newKeyFile(t), t.TempDir())
	if _, err := other.Update(t.Context(), addAgent); err == nil || !strings.Contains(err.Error(), "sealed for "+sealed.Recipient) {
		t.Errorf("another key file: Update = %v", err)
	}
	if len(keysIn(t, other)) != 0 || !bytes.Equal(sharedRecord(t, k).Body, good) {
		t.Error("an instance with another key file wrote keys")
	}
}

// TestKeysRotation interrupts a rotation after each file that it writes. The instance then gets the new key from the
// database. An older record that somebody puts back does not bring the old key back.
func TestKeysRotation(t *testing.T) {
	database, keyFile := pgtest.Database(t), newKeyFile(t)
	k, behind := instance(t, database, keyFile, t.TempDir()), instance(t, database, keyFile, t.TempDir())
	update(t, k, addAgent)
	update(t, behind, nil)
	before, old := keysIn(t, k), sharedRecord(t, k).Body
	written := update(t, k, rotate(t, k))
	after := keysIn(t, k)
	if bytes.Equal(before[datadir.FileKey], after[datadir.FileKey]) || len(written) != 3 {
		t.Fatalf("the rotation wrote %q", written)
	}
	for i := range len(written) + 1 {
		dir := datadir.Dir(t.TempDir())
		state := maps.Clone(before)
		for _, name := range written[:i] {
			state[name] = after[name]
		}
		if _, err := dir.SaveKeys(state); err != nil {
			t.Fatal(err)
		}
		again := instance(t, database, keyFile, string(dir))
		update(t, again, nil)
		for name := range after {
			if name != datadir.FileCard && !bytes.Equal(keysIn(t, again)[name], after[name]) {
				t.Errorf("after %d of %d files: %s is not that of the rotation", i, len(written), name)
			}
		}
	}
	update(t, behind, nil)
	if !maps.EqualFunc(keysIn(t, behind), after, bytes.Equal) {
		t.Error("another instance has not got the new key")
	}
	putShared(t, k, old)
	update(t, behind, nil)
	fresh := instance(t, database, keyFile, t.TempDir())
	update(t, fresh, nil)
	for _, k := range []*KeyStore{behind, fresh} {
		if !bytes.Equal(keysIn(t, k)[datadir.FileKey], after[datadir.FileKey]) {
			t.Error("an old record brought the old key back")
		}
	}
}

// TestKeysRotateOnce: two rotations at the same time both take effect, one after the other.
func TestKeysRotateOnce(t *testing.T) {
	database, keyFile := pgtest.Database(t), newKeyFile(t)
	all := []*KeyStore{instance(t, database, keyFile, t.TempDir()), instance(t, database, keyFile, t.TempDir())}
	update(t, all[0], addAgent)
	var rotating sync.WaitGroup
	for _, k := range all {
		rotating.Go(func() {
			if _, err := k.Update(t.Context(), rotate(t, k)); err != nil {
				t.Error(err)
			}
		})
	}
	rotating.Wait()
	retired := 0
	for _, k := range all {
		update(t, k, nil)
		retired = len(keysIn(t, k)) - 4
	}
	if retired != 2 || !maps.EqualFunc(keysIn(t, all[0]), keysIn(t, all[1]), bytes.Equal) {
		t.Errorf("%d retired keys, want 2, and the same keys in both directories", retired)
	}
}

// TestKeysOfDirectories: keys from before the key file are taken into the database. Those of another agent are refused
// and stay. Without the key file, the process does not use old copies.
func TestKeysOfDirectories(t *testing.T) {
	database, keyFile := pgtest.Database(t), newKeyFile(t)
	first := instance(t, database, "", t.TempDir())
	update(t, first, addAgent)
	secrets, err := first.dir.Secrets(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.CheckAgent(t.Context(), secrets); err != nil {
		t.Fatal(err)
	}
	early := instance(t, database, keyFile, t.TempDir())
	if _, err := early.Update(t.Context(), addAgent); !goldentest.Refuses(t, "early", err) {
		t.Errorf("a new instance before the first one has stored its keys: %v", err)
	}
	shared := instance(t, database, keyFile, string(first.dir))
	update(t, shared, addAgent)
	update(t, early, addAgent)
	if !maps.EqualFunc(keysIn(t, early), keysIn(t, first), bytes.Equal) {
		t.Error("the second instance has other keys")
	}
	if _, err := first.Update(t.Context(), nil); !goldentest.Refuses(t, "no key file", err) {
		t.Errorf("without the key file: %v", err)
	}
	stranger := datadir.Keys{}
	if err := addAgent(stranger); err != nil {
		t.Fatal(err)
	}
	foreign := instance(t, database, keyFile, t.TempDir())
	if _, err := foreign.dir.SaveKeys(stranger); err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.Update(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "differs from the one in the database") {
		t.Errorf("the keys of another agent: %v", err)
	}
	if !maps.EqualFunc(keysIn(t, foreign), stranger, bytes.Equal) {
		t.Error("the keys of another agent were replaced")
	}
}

// TestKeysStoredAgain runs the statement of docs/several-instances.md for a key file that is lost: the keys of a data
// directory are then stored again, with a new key file.
func TestKeysStoredAgain(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/several-instances.md")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile(`delete from records where key = '.*';`).Find(doc)
	server := pgtest.New(t)
	k := instance(t, server.URL("postgres"), newKeyFile(t), t.TempDir())
	update(t, k, addAgent)
	again := instance(t, server.URL("postgres"), newKeyFile(t), string(k.dir))
	if _, err := again.Update(t.Context(), nil); err == nil {
		t.Error("another key file opens the keys")
	}
	if err := server.Exec(string(statement)); err != nil {
		t.Fatal(err)
	}
	update(t, again, nil)
	fresh := instance(t, server.URL("postgres"), again.keyFile, t.TempDir())
	update(t, fresh, nil)
	if !maps.EqualFunc(keysIn(t, fresh), keysIn(t, k), bytes.Equal) {
		t.Error("the keys are not stored again")
	}
}
