package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// The record that names the signing key of the agent whose messages are in a database.
const (
	agentNS  = "instances"
	agentKey = "signing-key"
)

// CheckAgent returns an error if the database belongs to another agent than the data directory, or to the same agent
// after a rotation of its key that the data directory does not have. fingerprint is that of the signing key in the
// directory. A database file is not checked, because it is in the data directory itself.
func CheckAgent(ctx context.Context, s store.Store, dir datadir.Dir, fingerprint string) error {
	if _, ok := s.(*postgres.Store); !ok {
		return nil
	}
	for {
		now := time.Now()
		record, err := s.Records().Get(ctx, agentNS, agentKey, now)
		stored := string(record.Body)
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return exit.Fail(exit.Unavailable, err)
		case stored == fingerprint:
			return nil
		case !hasRetired(dir, stored):
			return exit.FailHint(exit.Config, fmt.Errorf("the database belongs to the agent with the signing key %s, and %s has %s", stored, dir.Path(datadir.FileKey), fingerprint),
				"copy signing.key, age.key, credential, card.json and retired-keys from the data directory of an instance of that agent, or use another database")
		}
		change := store.Change{Record: store.Record{NS: agentNS, Key: agentKey, Body: []byte(fingerprint)}, IfRev: record.Rev}
		err = s.Records().Apply(ctx, []store.Change{change}, now)
		if !errors.Is(err, store.ErrConflict) { // otherwise another process was faster
			return err
		}
	}
}

// hasRetired reports whether the data directory has the signing key with this fingerprint among its retired keys.
func hasRetired(dir datadir.Dir, fingerprint string) bool {
	_, digits, _ := strings.Cut(fingerprint, ":")
	_, err := os.Stat(dir.RetiredKey(digits))
	return err == nil
}
