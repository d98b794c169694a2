package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// The record that names the agent whose messages are in a database: the fingerprint of its signing key and a hash of its
// credential, with a space between them.
const (
	agentNS  = "instances"
	agentKey = "agent"
)

// leaseNode is the lease of the process that does the duties of a node.
const leaseNode = "node"

// CheckAgent returns an error if the database belongs to another agent than the data directory, or to the same agent
// after a rotation of its key that the data directory does not have. After the loss of its key, an agent may have a new
// one if its credential is the same and no other instance runs. A database file is not checked, because it is in the
// data directory itself.
func CheckAgent(ctx context.Context, s store.Store, dir datadir.Dir, secrets datadir.Secrets) error {
	if _, ok := s.(*postgres.Store); !ok {
		return nil
	}
	fingerprint, credential := secrets.Key.Public().Fingerprint(), fmt.Sprintf("%x", sha256.Sum256([]byte(secrets.Credential)))
	for {
		now := time.Now()
		record, err := s.Records().Get(ctx, agentNS, agentKey, now)
		stored, storedCredential, _ := strings.Cut(string(record.Body), " ")
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return exit.Fail(exit.Unavailable, err)
		case stored == fingerprint && storedCredential == credential:
			return nil
		case stored != fingerprint && !hasRetired(dir, stored) && (storedCredential != credential || runsElsewhere(ctx, s)):
			return exit.FailHint(exit.Config, fmt.Errorf("the database belongs to the agent with the signing key %s, and %s has %s", stored, dir.Path(datadir.FileKey), fingerprint),
				"copy signing.key, age.key, credential, card.json and retired-keys from the data directory of an instance of that agent, or use another database; if the key was lost, stop the other instances first")
		}
		change := store.Change{Record: store.Record{NS: agentNS, Key: agentKey, Body: []byte(fingerprint + " " + credential)}, IfRev: record.Rev}
		err = s.Records().Apply(ctx, []store.Change{change}, now)
		if !errors.Is(err, store.ErrConflict) { // otherwise another process was faster
			return err
		}
	}
}

// runsElsewhere reports whether another process does the duties of the node. If it cannot tell, it reports true.
func runsElsewhere(ctx context.Context, s store.Store) bool {
	leases, err := s.Leases().List(ctx)
	return err != nil || slices.ContainsFunc(leases, func(l store.LeaseState) bool { return l.Name == leaseNode && l.Holder != instanceName() })
}

// hasRetired reports whether the data directory has the signing key with this fingerprint among its retired keys.
func hasRetired(dir datadir.Dir, fingerprint string) bool {
	_, digits, _ := strings.Cut(fingerprint, ":")
	_, err := os.Stat(dir.RetiredKey(digits))
	return err == nil
}
