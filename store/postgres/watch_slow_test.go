//go:build slow

package postgres

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestCommitsTogether checks that the commits of two processes wait at the same time, although both notify others.
func TestCommitsTogether(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	one, two := open(t, Config{URL: server.URL("postgres"), Name: "one"}), open(t, Config{URL: server.URL("postgres"), Name: "two"})
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	set := func(setting string) {
		t.Helper()
		for _, sql := range []string{"alter system " + setting, "select pg_reload_conf()"} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("set synchronous_standby_names = '*'") // each commit waits for a standby that does not come
	outcomes := make(chan error, 2)
	var stop atomic.Bool
	for _, s := range []*Store{one, two} {
		go func() { // the server takes the new setting a little later
			ctx := context.WithoutCancel(t.Context())
			for !stop.Load() {
				if err := apply(ctx, s, store.Change{Record: store.Record{NS: "test", Key: s.cfg.Name}, IfRev: store.Any}); err != nil {
					outcomes <- err
					return
				}
			}
			outcomes <- nil
		}()
	}
	waiting := 0
	for deadline := time.Now().Add(20 * time.Second); waiting < 2 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where wait_event = 'SyncRep'").Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if waiting < 2 {
		t.Errorf("%d commits wait for the standby, want 2", waiting)
	}
	stop.Store(true)
	set("reset synchronous_standby_names")
	for range 2 {
		if err := <-outcomes; err != nil {
			t.Errorf("Apply = %v", err)
		}
	}
}

// TestTellsLost checks that other processes learn that they missed notifications.
func TestTellsLost(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	one, two := open(t, Config{URL: url}), open(t, Config{URL: url})
	hints := two.Watch(t.Context(), "other")
	one.writer.unheard = true // as after a commit whose connection was lost
	if err := one.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case hint := <-hints:
		if hint != (store.Hint{}) {
			t.Errorf("hint %v, want the zero hint", hint)
		}
	case <-time.After(20 * time.Second):
		t.Error("no hint")
	}
	if one.writer.unheard {
		t.Error("the next group would tell it again")
	}
}
