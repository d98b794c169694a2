//go:build slow

package notify_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

// TestUrgentBehindMany: in quiet hours, an urgent notice does not wait behind the others, however many there are.
func TestUrgentBehindMany(t *testing.T) {
	quiet, err := notify.ParseQuiet("22:00-07:00", time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T, db store.Store) { // it starts at midnight
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r, Quiet: quiet, Urgent: []string{"handoff"}})
		defer b.stop()
		for kind := range 17 {
			var changes []store.Change
			for range 60 {
				changes = append(changes, b.Change(notify.Notice{Kind: fmt.Sprint("kind ", kind), At: time.Now()}))
			}
			if err := db.Records().Apply(t.Context(), changes, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // lists have the oldest first
		b.publish(t, "handoff")
		time.Sleep(time.Hour)
		if got := r.batches(); len(got) != 1 || len(got[0].Notices) != 1 || got[0].Notices[0].Kind != "handoff" {
			t.Errorf("batches in quiet hours = %+v, want the urgent notice", got)
		}
		time.Sleep(8 * time.Hour)
		sent := 0
		for _, batch := range r.batches() {
			sent += len(batch.Notices) + batch.More
		}
		if sent != 1021 {
			t.Errorf("%d notices were sent in all, want 1021", sent)
		}
	})
}
