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

// Keys has the keys of the agent: in the data directory and, with store.key_file, also in the database, sealed, from
// where all instances take them. It is safe for concurrent use.
type Keys struct {
	dir        datadir.Dir
	db         store.Store
	several    bool               // other processes may use the database
	shared     *signing.SharedKey // nil: the keys are only in the data directory
	keyFile    string
	passphrase func() ([]byte, error)
	log        *slog.Logger

	mu sync.Mutex // held while keys change
}

// OpenKeys returns the keys of the agent in o.Dir, whose database is db. passphrase supplies the passphrase of the keys.
func OpenKeys(o Options, db store.Store, passphrase func() ([]byte, error)) (*Keys, error) {
	k := &Keys{dir: o.Dir, db: db, passphrase: passphrase, log: o.Logger}
	_, k.several = db.(*postgres.Store)
	if o.Config.Store.KeyFile == "" {
		if k.several && o.Config.Has(config.RoleNode) {
			k.log.Info("store.key_file is not set, so the keys are only in the data directory; other instances need copies, and new ones after each rotation")
		}
		return k, nil
	}
	k.keyFile = o.Source.ResolvePath(o.Config.Store.KeyFile)
	var err error
	if k.shared, err = signing.ReadSharedKey(k.keyFile); err != nil {
		hint := "make it with: agentmesh keys generate --kind age " + k.keyFile + ", or copy it from another instance"
		if errors.Is(err, signing.ErrKeyFileMode) {
			hint = "chmod 600 " + k.keyFile
		}
		return nil, exit.FailHint(exit.Config, fmt.Errorf("store.key_file: %s: %w", k.keyFile, err), hint)
	}
	return k, nil
}

// sealPurpose is the purpose of the sealed keys in the record.
const sealPurpose = "agent keys"

// Update makes the keys in the data directory and those in the database the same, applies change to them, and stores the
// result in both, first in the database. If another process changes them meanwhile, Update starts again, so change may
// run more than once; nil changes nothing. Update returns the paths of the files that it wrote.
func (k *Keys) Update(ctx context.Context, change func(datadir.Keys) error) (written []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		record, err := k.getShared(ctx)
		if err != nil {
			return nil, err
		}
		keys, stored, err := k.load(ctx, record)
		if err == nil && change != nil {
			err = change(keys)
		}
		if err != nil {
			return nil, err
		}
		err = k.store(ctx, record, keys, stored)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return k.dir.SaveKeys(keys)
	}
}

// getShared returns the record with the sealed keys, or one with the revision [store.Absent]. Without a key file, a
// stored record is an error: the keys in the data directory may be old ones.
func (k *Keys) getShared(ctx context.Context) (store.Record, error) {
	if !k.several {
		return store.Record{}, nil
	}
	record, err := k.getRecord(ctx, registration.Namespace, registration.SharedKeys)
	if err == nil && k.shared == nil && record.Rev != store.Absent {
		err = exit.FailHint(exit.Config, errors.New("the keys of the agent are in the database, and store.key_file is not set"),
			"set store.key_file to a copy of the key file of the other instances")
	}
	return record, err
}

// load returns the keys of the data directory and of the database together, and those that the record has. It refuses to
// share keys of another agent than that of the database.
func (k *Keys) load(ctx context.Context, record store.Record) (keys, stored datadir.Keys, err error) {
	local, err := k.dir.Keys()
	if err != nil || k.shared == nil {
		return local, nil, err
	}
	if record.Rev != store.Absent {
		if stored, err = k.open(record.Body); err != nil {
			return nil, nil, err
		}
		keys, err = k.dir.Merge(local, stored)
		return keys, stored, err
	}
	if !local.HasAgent() {
		agent, err := k.getRecord(ctx, agentNS, agentKey)
		if err == nil && agent.Rev != store.Absent {
			err = exit.FailHint(exit.Config, errors.New("the database belongs to an agent whose keys are not in it"),
				"start an instance that has the keys first, with store.key_file; it stores them in the database")
		}
		return local, nil, err
	}
	return local, nil, nil
}

// open opens the sealed keys.
func (k *Keys) open(body []byte) (keys datadir.Keys, err error) {
	var sealed signing.Sealed
	plain := []byte(nil)
	if err = json.Unmarshal(body, &sealed); err == nil {
		plain, err = k.shared.Open(sealPurpose, sealed)
	}
	if errors.Is(err, signing.ErrOtherKey) {
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the keys in the database are sealed for %s, and %s has %s", sealed.Recipient, k.keyFile, k.shared.Recipient()),
			"set store.key_file to a copy of the key file of the other instances")
	}
	if err == nil {
		err = json.Unmarshal(plain, &keys)
	}
	if err != nil {
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the keys in the database: %w", err), "docs/several-instances.md says how to store those of a data directory again")
	}
	return keys, nil
}

// isCurrent reports whether the record has these keys, sealed with the first key of the key file.
func (k *Keys) isCurrent(record store.Record, keys, stored datadir.Keys) bool {
	var sealed signing.Sealed
	return json.Unmarshal(record.Body, &sealed) == nil && sealed.Recipient == k.shared.Recipient() && maps.EqualFunc(keys, stored, bytes.Equal)
}

// store stores keys in place of the record, with the name of the agent in the same unit. If another process has changed
// either, the error is [store.ErrConflict].
func (k *Keys) store(ctx context.Context, record store.Record, keys, stored datadir.Keys) error {
	if k.shared == nil || !keys.HasAgent() || k.isCurrent(record, keys, stored) {
		return nil
	}
	secrets, err := k.dir.ParseKeys(keys, k.passphrase)
	if err != nil {
		return err
	}
	agent, err := k.getRecord(ctx, agentNS, agentKey)
	if err != nil {
		return err
	}
	if record.Rev == store.Absent && agent.Rev != store.Absent {
		if err := k.CheckAgent(ctx, secrets); err != nil {
			return err
		}
		if agent, err = k.getRecord(ctx, agentNS, agentKey); err != nil {
			return err
		}
	}
	plain, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	sealed, err := k.shared.Seal(sealPurpose, plain)
	if err != nil {
		return err
	}
	if record.Body, err = json.Marshal(sealed); err != nil {
		return err
	}
	agent.Body = []byte(describeAgent(secrets))
	err = k.db.Records().Apply(ctx, []store.Change{{Record: record, IfRev: record.Rev}, {Record: agent, IfRev: agent.Rev}}, time.Now())
	if err != nil && !errors.Is(err, store.ErrConflict) {
		err = exit.Fail(exit.Unavailable, fmt.Errorf("store the keys in the database: %w", err))
	}
	if err == nil {
		k.log.Info("the keys are in the database", "sealed_for", k.shared.Recipient())
	}
	return err
}
