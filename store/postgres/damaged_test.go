//go:build slow

package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestDamagedRows: a sweep and a list leave out a damaged row and go on, and a replay record of a damaged conversation
// does not look absent.
func TestDamagedRows(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := Config{URL: pgtest.Database(t), Log: slog.New(slog.NewTextHandler(&log, nil))}
	s := open(t, cfg)
	now := time.Now()
	for i := range 5 {
		key := store.ConvKey{Peer: "am_a", ID: fmt.Sprint("conv_", i)}
		conv := store.Conversation{Key: key, Body: []byte("{}"), Open: true, Updated: now, Expires: now.Add(time.Hour)}
		replay := store.Replay{Sender: "am_a", MessageID: fmt.Sprint("msg_", i), Conv: key, Status: 200, Answer: []byte("{}"), Expires: now.Add(time.Minute)}
		if _, err := s.Steps().Apply(t.Context(), store.Step{Conv: &conv, Replay: &replay, Now: now}); err != nil {
			t.Fatal(err)
		}
		rec := store.Change{Record: store.Record{NS: "test", Key: fmt.Sprint(i), Body: []byte("{}"), Expires: now.Add(time.Minute)}}
		if err := s.Records().Apply(t.Context(), []store.Change{rec}, now); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{
		"update records set value = substr(value, 1, 3) where key = (select key from records order by key limit 1)",
		"update convs set value = substr(value, 1, 3) where num = (select num from convs order by num offset 1 limit 1)",
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}

	var listed []string
	for before := uint64(0); len(listed) < 9; {
		page, err := s.Steps().Conversations(t.Context(), "", before, 2, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Conversations {
			listed = append(listed, c.Key.ID)
		}
		if before = page.Next; before == 0 {
			break
		}
	}
	if want := "[conv_4 conv_3 conv_2 conv_0]"; fmt.Sprint(listed) != want {
		t.Errorf("listed %v, want %s", listed, want)
	}
	for range 10 {
		if _, err := s.Steps().Conversations(t.Context(), "", 0, 10, now); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "left out of a list"); n != 1 {
		t.Errorf("eleven lists without the damaged row made %d lines in the log, want 1:\n%s", n, &log)
	}
	if _, err := s.Steps().FindReplay(t.Context(), "am_a", "msg_1", now.Add(2*time.Minute)); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("FindReplay of a damaged conversation = %v, want ErrDamaged", err)
	}
	late := now.Add(2 * time.Minute)
	for range 2 { // the second finds nothing that is due
		if _, err := s.Sweep(t.Context(), late, 1000); err != nil {
			t.Errorf("Sweep: %v", err)
		}
	}
	var left int
	if err := s.pool.QueryRow(t.Context(), "select count(*) from records where due <= $1", late.UnixNano()).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d records are due, %v", left, err)
	}
	if err := s.pool.QueryRow(t.Context(), "select count(*) from records").Scan(&left); err != nil || left != 1 {
		t.Errorf("%d records are left, %v, want the damaged one", left, err)
	}
}
