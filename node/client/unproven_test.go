package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// failingRecords fails every Get after a number of them.
type failingRecords struct {
	store.Records
	left int
}

func (r *failingRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if r.left--; r.left < 0 {
		return store.Record{}, errors.New("the disk is gone")
	}
	return r.Records.Get(ctx, ns, key, now)
}

// TestRefreshDoubtful: if the store fails while an agent whose id proves nothing is refreshed, the error is ours, and
// the sender is not blamed for it.
func TestRefreshDoubtful(t *testing.T) {
	l, id := newListing(), key(1).Public().AgentID()
	l.put(id, key(2))
	for reads := range 6 {
		recs := &failingRecords{records(t), reads}
		cards := NewCards(CardsConfig{Directories: []*Directory{l.at("https://dir.example/v1")}, HTTP: NewHTTP(HTTPConfig{}), Records: recs})
		_, _, err := cards.Refresh(t.Context(), id, time.Now())
		if recs.left < 0 && !errors.Is(err, wire.ErrUnavailable) {
			t.Errorf("Refresh() = %v after %d reads of the store, want ErrUnavailable", err, reads)
		}
	}
}
