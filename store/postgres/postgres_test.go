//go:build slow

package postgres

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// open opens a database that is closed when the test ends.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	cfg.URL += "&pool_max_conns=4"
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, Config{URL: pgtest.Database(t), Name: "test"}) })
}

// TestShared runs the suite for several handles, each with connections and an index of its own as in another process.
func TestShared(t *testing.T) {
	t.Parallel()
	storetest.RunShared(t, func(t *testing.T, ttl time.Duration) storetest.Shared {
		return sharedHandles(t, Config{URL: pgtest.Database(t), LeaseTTL: ttl})
	})
}

// sharedHandles opens handles on one database.
func sharedHandles(t *testing.T, cfg Config) storetest.Shared {
	var mu sync.Mutex
	var handles []*Store
	return storetest.Shared{
		Handle: func(name string) store.Store {
			named := cfg
			named.Name = name
			s := open(t, named)
			mu.Lock()
			defer mu.Unlock()
			handles = append(handles, s)
			return s
		},
		Close: func() (err error) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range handles {
				err = errors.Join(err, s.Close())
			}
			return err
		},
	}
}

var now = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func put(key string) store.Change {
	return store.Change{Record: store.Record{NS: "test", Key: key, Body: []byte(key)}}
}

func apply(ctx context.Context, s *Store, changes ...store.Change) error {
	return s.Records().Apply(ctx, changes, now)
}

// TestUnprepared runs without prepared statements, which some poolers do not support.
func TestUnprepared(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t) + "&default_query_exec_mode=exec"
	s := open(t, Config{URL: url})
	for i := range 3 {
		if err := storetest.Accept(t.Context(), s, i*192, now); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.Steps().Conversations(t.Context(), "", 0, 10, now)
	if err != nil || len(page.Conversations) != 1 || page.Conversations[0].Entries != 6 {
		t.Errorf("conversations = %v, %v; want one with 6 entries", page.Conversations, err)
	}
}
