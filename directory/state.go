package directory

import (
	"context"
	"slices"
	"sort"

	"github.com/agentmesh/agentmesh/directory/history"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// State is what the operator sees of a directory: its settings, its counts and the last days.
type State struct {
	Site                     site.Operator
	Mode                     Mode
	Mirror                   bool
	Cards, Connected, Probes int // Probes are endpoints that wait to be probed
	MailMessages, MailBytes  int64
	MailFull                 bool
	Days                     []history.Day
}

// ReadState returns the state of a directory.
func ReadState(ctx context.Context, r *Registry) (State, error) {
	now := clock()
	s := State{
		Site: r.cfg.Site, Mode: r.cfg.Mode, Mirror: r.cfg.ReadOnly, Connected: r.connections.Count(), Probes: r.probeQueue.Len(),
		Days: r.counters.days.List(now),
	}
	var err error
	if s.Cards, err = r.countAgents(ctx, now); err != nil {
		return State{}, err
	}
	mail, full, err := r.mailTotal(ctx)
	s.MailMessages, s.MailBytes, s.MailFull = int64(mail.N), int64(mail.Size), full
	return s, err
}

// LatestChanges returns the last changes of cards, at most limit, newest first.
func LatestChanges(ctx context.Context, r *Registry, limit int) ([]wire.Change, error) {
	var lines []store.CardChange
	var err error
	// The store lists changes only forward and does not return its last position. So search for the first position that
	// at most limit changes follow.
	sort.Search(1<<62, func(after int) bool {
		if err != nil {
			return true
		}
		var found []store.CardChange
		if found, err = r.cards.Changes(ctx, uint64(after), limit+1); len(found) > limit {
			return false
		}
		lines = found
		return true
	})
	now, list := clock(), make([]wire.Change, 0, len(lines))
	for _, line := range slices.Backward(lines) {
		if err != nil {
			return nil, err
		}
		var c wire.Change
		c, _, err = r.describeChange(ctx, line, now)
		list = append(list, c)
	}
	return list, err
}
