package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// KeyStore has the keys of the agent. They are in the data directory. With store.key_file, a sealed copy is in the
// database, from which all instances take the keys. KeyStore is safe for concurrent use.
type KeyStore struct {
	dir        datadir.Dir
	db         store.Store
	isPostgres bool               // so other processes may use the database, too
	sharedKey  *signing.SharedKey // from store.key_file; nil: the keys are only in the data directory
	keyFile    string
	passphrase func() ([]byte, error)
	log        *slog.Logger

	mu             sync.Mutex // held while keys change; guards sealedForFirst
	sealedForFirst bool       // this process has seen or stored keys that are sealed for the key file's first identity
}

// OpenKeyStore opens the keys of the agent in o.Dir, whose database is db. passphrase supplies the passphrase of the
// keys.
func OpenKeyStore(o Options, db store.Store, passphrase func() ([]byte, error)) (*KeyStore, error) {
	k := &KeyStore{dir: o.Dir, db: db, passphrase: passphrase, log: o.Logger}
	_, k.isPostgres = db.(*postgres.Store)
	if o.Config.Store.KeyFile == "" {
		if k.isPostgres && o.Config.Has(config.RoleNode) {
			k.log.Info("store.key_file is not set, so the keys are only in the data directory; other instances need copies, and new ones after each rotation")
		}
		return k, nil
	}
	k.keyFile = o.Source.ResolvePath(o.Config.Store.KeyFile)
	var err error
	if k.sharedKey, err = signing.ReadSharedKey(k.keyFile); err != nil {
		hint := "make it with: agentmesh keys generate --kind age " + k.keyFile + ", or copy it from another instance"
		if errors.Is(err, signing.ErrKeyFileMode) {
			hint = "chmod 600 " + k.keyFile
		}
		return nil, exit.FailHint(exit.Config, fmt.Errorf("store.key_file: %s: %w", k.keyFile, err), hint)
	}
	return k, nil
}

// sealPurpose distinguishes the sealed keys from everything else that is sealed with the key file.
const sealPurpose = "agent keys"

// Update brings the keys in the data directory and in the database to the same state, applies change to them, and
// stores the result in both, first in the database. If another process changes the keys meanwhile, Update starts
// again, so change may run more than once. change may be nil. Update returns the paths of the files that it wrote.
func (k *KeyStore) Update(ctx context.Context, change func(datadir.Keys) error) (written []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		found, err := k.find(ctx)
		if err != nil {
			return nil, err
		}
		keys, err := k.merge(&found)
		if err == nil && change != nil {
			err = change(keys)
		}
		if err != nil {
			return nil, err
		}
		err = k.store(ctx, found, keys)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return k.dir.SaveKeys(keys)
	}
}

// records are the records of a database about the keys. A missing record has the revision [store.Absent].
type records struct {
	agent  store.Record // see [KeyStore.CheckAgent]
	sealed store.Record
	keys   datadir.Keys // the keys in sealed
}

// find reads the records. If there are sealed keys but no key file, find returns an error, because the keys in the data
// directory may be old.
func (k *KeyStore) find(ctx context.Context) (found records, err error) {
	if !k.isPostgres {
		return found, nil
	}
	if found.agent, err = k.getRecord(ctx, agentNS, agentKey); err != nil { // read before the sealed keys: in the other order, an agent stored between the reads would seem to have none
		return found, err
	}
	found.sealed, err = k.getRecord(ctx, registration.Namespace, registration.SharedKeys)
	if err == nil && k.sharedKey == nil && found.sealed.Rev != store.Absent {
		err = exit.FailHint(exit.Config, errors.New("the keys of the agent are in the database, and store.key_file is not set"),
			"set store.key_file to a copy of the key file of the other instances")
	}
	return found, err
}

// merge returns the keys of the data directory and the database together. It refuses another agent's database.
func (k *KeyStore) merge(found *records) (datadir.Keys, error) {
	local, err := k.dir.Keys()
	switch {
	case err != nil || k.sharedKey == nil:
		return local, err
	case found.sealed.Rev != store.Absent:
		if found.keys, err = k.open(found.sealed.Body); err != nil {
			return nil, err
		}
		return k.dir.Merge(local, found.keys)
	case !local.HasAgent() && found.agent.Rev != store.Absent:
		return nil, exit.FailHint(exit.Config, errors.New("the database belongs to an agent whose keys are not in it"),
			"start an instance that has the keys first, with store.key_file; it stores them in the database")
	}
	return local, nil
}

// open returns the keys in the body of the record with the sealed keys.
func (k *KeyStore) open(body []byte) (keys datadir.Keys, err error) {
	var sealed signing.Sealed
	plain := []byte(nil)
	if err = json.Unmarshal(body, &sealed); err == nil {
		plain, err = k.sharedKey.Open(sealPurpose, sealed)
	}
	if errors.Is(err, signing.ErrOtherKey) {
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the keys in the database are sealed for %s, and %s has %s", sealed.Recipient, k.keyFile, k.sharedKey.Recipient()),
			"set store.key_file to a copy of the key file of the other instances")
	}
	if err == nil {
		err = json.Unmarshal(plain, &keys)
	}
	if err != nil {
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the keys in the database: %w", err), "docs/several-instances.md explains how to store the keys of a data directory again")
	}
	return keys, nil
}

// hasStored reports whether the database has these keys, sealed for the first identity of the key file. Once this
// process has seen or stored such a record, any identity will do: otherwise instances whose files list the identities
// in different orders would replace each other's record again and again.
func (k *KeyStore) hasStored(keys datadir.Keys, found records) bool {
	var sealed signing.Sealed
	if json.Unmarshal(found.sealed.Body, &sealed) != nil {
		return false
	}
	k.sealedForFirst = k.sealedForFirst || sealed.Recipient == k.sharedKey.Recipient()
	return k.sealedForFirst && maps.EqualFunc(keys, found.keys, bytes.Equal)
}

// store stores keys in place of those that were found, and the name of the agent in the same transaction. If another
// process has changed either record, the error is [store.ErrConflict].
func (k *KeyStore) store(ctx context.Context, found records, keys datadir.Keys) error {
	if k.sharedKey == nil || !keys.HasAgent() || k.hasStored(keys, found) {
		return nil
	}
	secrets, err := k.dir.ParseKeys(keys, k.passphrase)
	if err != nil {
		return err
	}
	if found.sealed.Rev == store.Absent && found.agent.Rev != store.Absent { // the first sealed keys in a database that has been used
		if err := k.CheckAgent(ctx, secrets); err != nil {
			return err
		}
		if found.agent, err = k.getRecord(ctx, agentNS, agentKey); err != nil {
			return err
		}
	}
	plain, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	sealed, err := k.sharedKey.Seal(sealPurpose, plain)
	if err != nil {
		return err
	}
	if found.sealed.Body, err = json.Marshal(sealed); err != nil {
		return err
	}
	found.agent.Body = []byte(describeAgent(secrets))
	changes := []store.Change{{Record: found.sealed, IfRev: found.sealed.Rev}, {Record: found.agent, IfRev: found.agent.Rev}}
	switch err = k.db.Records().Apply(ctx, changes, time.Now()); {
	case err == nil:
		k.sealedForFirst = true
		k.log.Info("the keys are in the database", "sealed_for", k.sharedKey.Recipient())
	case !errors.Is(err, store.ErrConflict):
		err = exit.Fail(exit.Unavailable, fmt.Errorf("store the keys in the database: %w", err))
	}
	return err
}
