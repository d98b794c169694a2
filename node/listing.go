package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Listing is how the node stands in one directory (AM-83).
type Listing = owner.Listing

const (
	Registered = owner.Registered
	Pending    = owner.Pending
	Withdrawn  = owner.Withdrawn
)

func (p *place) listing(now time.Time) Listing {
	s := p.state
	l := Listing{
		Directory: s.Directory, AgentID: s.AgentID, State: Pending, Registered: s.Registered, Expires: s.Expires,
		Next: p.next, Error: s.Error, Hint: s.Hint, Refused: s.Refused,
	}
	switch {
	case s.Withdrawn:
		l.State, l.Next = Withdrawn, time.Time{}
	case s.AgentID != "" && now.Before(s.Expires):
		l.State = Registered
	}
	return l
}

// status says how the node stands everywhere.
func (k *keeper) status() []Listing {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Listing, len(k.places))
	for i, p := range k.places {
		list[i] = p.listing(time.Now())
	}
	return list
}

// Listings says how the node stands in every configured directory.
func (n *Node) Listings() []Listing { return n.keeper.status() }

// Register registers the node, or renews its card, in one configured directory or in all, also where it was
// withdrawn. What went wrong stands in the listings.
func (n *Node) Register(ctx context.Context, directory string) ([]Listing, error) {
	return n.register(ctx, directory, renewing)
}

// Adopt is Register in one directory whose id the node takes over, if the directory gives one of its own. The other
// directories then list the node under the new id, and no longer under the old one. Peers meet a new agent.
func (n *Node) Adopt(ctx context.Context, directory string) ([]Listing, error) {
	if directory == "" && len(n.keeper.places) > 1 {
		return nil, owner.Fault(http.StatusBadRequest, "an id can be taken over from one directory only", "name it with --directory URL")
	}
	return n.register(ctx, directory, adopting)
}

func (n *Node) register(ctx context.Context, directory string, how visiting) ([]Listing, error) {
	return n.keeper.each(ctx, directory, func(p *place) {
		n.keeper.mu.Lock()
		p.state.Withdrawn = false
		n.keeper.mu.Unlock()
		n.keeper.tend(ctx, p, how)
	})
}

// Withdraw takes the node out of one configured directory or of all, until it is registered again.
func (n *Node) Withdraw(ctx context.Context, directory string) ([]Listing, error) {
	return n.keeper.each(ctx, directory, func(p *place) {
		if err := n.keeper.withdraw(ctx, p); err != nil {
			n.log.Warn("withdraw", "directory", p.dir.Base, "err", err)
		}
	})
}

// at returns the places that a command means: one, or all where directory is empty.
func (k *keeper) at(directory string) ([]*place, error) {
	if directory == "" {
		return k.places, nil
	}
	for _, p := range k.places {
		if p.dir.Base == directory {
			return []*place{p}, nil
		}
	}
	return nil, owner.Fault(http.StatusNotFound, "no such directory is configured", "see: agentmesh status")
}

func (k *keeper) each(ctx context.Context, directory string, do func(*place)) ([]Listing, error) {
	places, err := k.at(directory)
	if err != nil {
		return nil, err
	}
	k.work.Lock()
	defer k.work.Unlock()
	list := make([]Listing, 0, len(places))
	for _, p := range places {
		do(p)
		k.mu.Lock()
		list = append(list, p.listing(time.Now()))
		k.mu.Unlock()
	}
	k.poke()
	return list, ctx.Err()
}

func (k *keeper) poke() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

func (k *keeper) withdraw(ctx context.Context, p *place) error {
	k.mu.Lock()
	s := p.state
	k.mu.Unlock()
	id := s.AgentID
	if id == "" {
		id = k.n.ID() // it may list us from a time of which we know nothing any more
	}
	if err := p.dir.Withdraw(ctx, id, k.credential(p.dir)); err != nil && !errors.Is(err, client.ErrUnknownAgent) {
		s.Error, s.Hint = wire.OneLine(err.Error(), 300), hintOf(err)
		s.Withdrawn = s.AgentID == "" // then nothing is kept up there, and nothing is tried any more
		return errors.Join(err, k.put(ctx, p, s, time.Now().Add(checkEvery)))
	}
	return k.put(ctx, p, placeState{Directory: s.Directory, Withdrawn: true}, time.Time{})
}
