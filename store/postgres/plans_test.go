//go:build slow

package postgres

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// tableStats returns a number that the server counted for each table of the schema of url.
func tableStats(t *testing.T, url, column string) map[string]int64 {
	t.Helper()
	return stats(t, url, "select relname, "+column+" from pg_stat_user_tables where schemaname = current_schema()")
}

// stats returns the rows of a query as a map.
func stats(t *testing.T, url, sql string) map[string]int64 {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int64)
	var name string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { found[name] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}

// waitGone waits until no connection of a closed store is left, because a server process reports its statistics when it
// ends.
func waitGone(t *testing.T, url, name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for deadline := time.Now().Add(20 * time.Second); ; {
		var n int
		if err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name like 'agentmesh/' || $1 || '%'", name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections of %s are left", n, name)
		}
	}
}

// TestPlans checks that no call reads a whole table, and that each index is used.
func TestPlans(t *testing.T) {
	t.Parallel()
	url, name := pgtest.Database(t), "plans"
	reopen := func() *Store { return open(t, Config{URL: url, Name: name}) }
	_ = reopen().Close()
	waitGone(t, url, name)
	// The migrations read the tables. These are small, so that PostgreSQL prefers to read them whole.
	before := tableStats(t, url, "seq_scan")
	s, ctx := reopen(), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		must(storetest.Accept(ctx, s, i, now))
		_, err := s.Cards().Put(ctx, store.PutCard{
			Card:   store.Card{ID: fmt.Sprint("am_", i), Terms: []string{"a"}, Counts: []string{"c"}, Expires: now.Add(time.Hour)},
			Quotas: []store.Quota{{Key: "c", Max: 10}}, Now: now,
		})
		must(err)
		must(apply(ctx, s, store.Change{Record: store.Record{NS: "test", Key: fmt.Sprint(i), Terms: []string{"t"}, Expires: now.Add(time.Hour)}, Max: 10}))
		must(apply(ctx, s, store.Change{Record: store.Record{NS: "test", Key: fmt.Sprint("due ", i), Due: now, Lane: "l"}}))
	}
	_, _, err := s.Records().Due(ctx, "test", now, nil, 1)
	must(err)
	_, _, err = s.Records().Due(ctx, "test", now, nil, 1)
	must(err)
	_, err = s.Records().Count(ctx, "test", "t", 10, now)
	must(err)
	_, err = s.Records().Count(ctx, "test", "", 10, now)
	must(err)
	must(apply(ctx, s, store.Change{Record: store.Record{NS: "test", Key: "due 0"}, IfRev: store.Any, Delete: true}))
	convs, err := s.Steps().Conversations(ctx, "", 0, 1, now)
	must(err)
	key := convs.Conversations[0].Key
	_, err = s.Steps().Conversations(ctx, "state:active", 0, 1, now)
	must(err)
	_, err = s.Steps().Transcript(ctx, key, 0, 10)
	must(err)
	_, err = s.Records().List(ctx, "test", "", "", 1, now)
	must(err)
	_, err = s.Records().List(ctx, "test", "t", "", 1, now)
	must(err)
	_, err = s.Records().ListBackward(ctx, "test", "", "", 1, now)
	must(err)
	_, err = s.Records().ListBackward(ctx, "test", "t", "", 1, now)
	must(err)
	_, err = s.Cards().List(ctx, store.CardQuery{All: []string{"a"}, Limit: 1, Now: now})
	must(err)
	_, err = s.Cards().HasCount(ctx, "c", now)
	must(err)
	_, err = s.Cards().Changes(ctx, 0, 1)
	must(err)
	must(s.Cards().Withdraw(ctx, "am_1", store.Any, now, nil, now))
	must(s.Steps().Forget(ctx, key, store.Any, nil, now))
	_, err = s.Sweep(ctx, now, 100)
	must(err)
	_, err = s.Sweep(ctx, now.Add(800*24*time.Hour), 100)
	must(err)
	_ = s.Close()
	waitGone(t, url, name)
	after := tableStats(t, url, "seq_scan")
	for _, table := range []string{"schema_version", "lanes", "leases"} { // they have a few rows
		delete(before, table)
		delete(after, table)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("tables were read whole (-before +after):\n%s", diff)
	}
	unused := stats(t, url, "select indexrelname, idx_scan from pg_stat_user_indexes where schemaname = current_schema() and idx_scan = 0")
	delete(unused, "schema_version_pkey")
	delete(unused, "leases_pkey")
	if len(unused) > 0 {
		t.Errorf("indexes were not used: %v", slices.Sorted(maps.Keys(unused)))
	}
}

// TestMovesEnd checks that a message in a known conversation changes no index of the conversation.
func TestMovesEnd(t *testing.T) {
	t.Parallel()
	url, name := pgtest.Database(t), "moves"
	s := open(t, Config{URL: url, Name: name})
	for i := range 20 {
		if err := storetest.Accept(t.Context(), s, i*192, now); err != nil { // all in one conversation
			t.Fatal(err)
		}
	}
	_ = s.Close()
	waitGone(t, url, name)
	if all, kept := tableStats(t, url, "n_tup_upd")["convs"], tableStats(t, url, "n_tup_hot_upd")["convs"]; all != 19 || kept < 18 {
		t.Errorf("%d of %d updates left the indexes alone, want 18 or 19 of 19", kept, all)
	}
}
