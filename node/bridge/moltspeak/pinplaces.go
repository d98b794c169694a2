package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

// pinCrowdFor is how long a count of the pins is used, because counting reads all of them.
const pinCrowdFor = time.Second

// pinPlaces tells who has the pins of strangers while all are taken.
type pinPlaces struct {
	mu    sync.Mutex
	at    time.Time
	crowd *rate.Crowd[pinPlace]
}

type pinPlace struct {
	name string
	rev  store.Rev
}

// displacePin stores the pin of a stranger in the place of another one whose source has more (AM-42): the newest pin of
// that source goes, one with a conversation after the others, and never one that the owner is asked about. It is
// store.ErrQuota if no pin may go.
func (b *Bridge) displacePin(ctx context.Context, p peer, now time.Time) error {
	places := &b.pinPlaces
	places.mu.Lock()
	defer places.mu.Unlock()
	if places.crowd == nil || now.Sub(places.at).Abs() >= pinCrowdFor {
		if err := b.countPins(ctx, now); err != nil {
			return err
		}
	}
	victim, err := b.pinToGo(ctx, p, now)
	if err != nil {
		return err
	}
	gone := store.Change{IfRev: victim.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: victim.name}}
	if err := b.records.Apply(ctx, []store.Change{gone, p.change()}, now); err != nil {
		places.crowd = nil // the pin may have changed since it was counted
		if errors.Is(err, store.ErrConflict) {
			return errors.Join(store.ErrQuota, err)
		}
		return err
	}
	places.crowd.Remove(victim)
	return nil
}

// countPins counts the pins of strangers, oldest first. The caller holds the lock.
func (b *Bridge) countPins(ctx context.Context, now time.Time) error {
	var all []peer
	for after := ""; ; {
		page, err := b.records.List(ctx, nsPeers, "stranger", after, 500, now)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			p := peer{rev: rec.Rev}
			if err := json.Unmarshal(rec.Body, &p); err != nil {
				return err
			}
			all = append(all, p)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	slices.SortFunc(all, func(x, y peer) int { return cmp.Or(x.First.Compare(y.First), cmp.Compare(x.Name, y.Name)) })
	crowd := new(rate.Crowd[pinPlace])
	for _, p := range all {
		crowd.Add(rate.Place[pinPlace]{Key: pinPlace{p.Name, p.rev}, Sources: p.Sources})
	}
	b.pinPlaces.crowd, b.pinPlaces.at = crowd, now
	return nil
}

// pinToGo returns the pin that p may displace. The caller holds the lock.
func (b *Bridge) pinToGo(ctx context.Context, p peer, now time.Time) (pinPlace, error) {
	crowd, postponed := b.pinPlaces.crowd, make(map[pinPlace]bool)
	for {
		victim, ok := crowd.Victim(p.Sources, 1)
		name, _ := ParseName(victim.name)
		if !ok {
			return victim, store.ErrQuota
		}
		address := b.address(name)
		asked, _, err := b.cfg.Asks.List(ctx, acl.AskFilter{Subject: address.String(), State: acl.AskPending}, "", 100, now)
		if err != nil {
			return victim, err
		}
		if len(asked) > 0 {
			crowd.Remove(victim)
			continue
		}
		began, err := b.beganConversation(ctx, address, now)
		if err != nil || !began || postponed[victim] {
			return victim, err
		}
		crowd.Postpone(victim)
		postponed[victim] = true
	}
}
