package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store"
)

// The namespace and the key of the record that names the agent whose messages are in a database.
const (
	agentNS  = "instances"
	agentKey = "agent"
)

// leaseNode is the name of node.Lease. The process that has this lease does what only one process of a node may do, such
// as delivering the outbox.
const leaseNode = "node"

// describeAgent returns the body of the record that names an agent: the fingerprint of its signing key, a space, and a
// hash of its credential.
func describeAgent(secrets datadir.Secrets) string {
	return fmt.Sprintf("%s %x", secrets.Key.Public().Fingerprint(), sha256.Sum256([]byte(secrets.Credential)))
}

// getRecord returns a record. If the record does not exist, it returns an empty one with the revision [store.Absent].
func (k *KeyStore) getRecord(ctx context.Context, ns, key string) (store.Record, error) {
	record, err := k.db.Records().Get(ctx, ns, key, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return store.Record{NS: ns, Key: key}, nil
	}
	if err != nil {
		err = exit.Fail(exit.Unavailable, err)
	}
	return record, err
}

// CheckAgent returns an error if database and data directory belong to different agents, or if the agent's key was
// rotated and the data directory does not have the new key. An agent that lost its key may have a new one if its
// credential is the same and no other instance runs. If CheckAgent returns nil, the database belongs to this agent from
// then on. A database file is not checked, because it is in the data directory itself.
func (k *KeyStore) CheckAgent(ctx context.Context, secrets datadir.Secrets) error {
	if !k.isPostgres {
		return nil
	}
	for {
		record, err := k.getRecord(ctx, agentNS, agentKey)
		if err != nil {
			return err
		}
		ours := describeAgent(secrets)
		if string(record.Body) == ours {
			return nil
		}
		storedKey, storedCredential, _ := strings.Cut(string(record.Body), " ")
		ourKey, ourCredential, _ := strings.Cut(ours, " ")
		isRotated := storedKey == ourKey || k.dir.HasRetired(storedKey)
		if record.Rev != store.Absent && !isRotated && (storedCredential != ourCredential || k.runsElsewhere(ctx)) {
			hint := "copy signing.key, age.key, credential, card.json and retired-keys from the data directory of an instance of that agent, or use another database; if the key was lost, stop the other instances first"
			return exit.FailHint(exit.Config, fmt.Errorf("the database belongs to the agent with the signing key %s, and %s has %s", storedKey, k.dir.Path(datadir.FileKey), ourKey), hint)
		}
		record.Body = []byte(ours)
		err = k.db.Records().Apply(ctx, []store.Change{{Record: record, IfRev: record.Rev}}, time.Now())
		if !errors.Is(err, store.ErrConflict) { // otherwise another process was faster
			return err
		}
	}
}

// runsElsewhere reports whether another process has the lease of the node. If it cannot tell, it reports true.
func (k *KeyStore) runsElsewhere(ctx context.Context) bool {
	leases, err := k.db.Leases().List(ctx)
	return err != nil || slices.ContainsFunc(leases, func(l store.LeaseState) bool { return l.Name == leaseNode && l.Holder != instanceName() })
}
