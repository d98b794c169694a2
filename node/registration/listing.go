package registration

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

func (p *place) listing(now time.Time) owner.Listing {
	s := p.state
	l := owner.Listing{
		Directory: s.Directory, AgentID: s.AgentID, State: owner.Pending, Registered: s.Registered, Expires: s.Expires,
		Next: p.next, Error: s.Error, Hint: s.Hint, Refused: s.Refused,
	}
	switch {
	case s.Withdrawn:
		l.State, l.Next = owner.Withdrawn, time.Time{}
	case s.AgentID != "" && now.Before(s.Expires):
		l.State = owner.Registered
	}
	return l
}

// Listings says how the node stands everywhere.
func (r *Registrar) Listings() []owner.Listing {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]owner.Listing, len(r.places))
	for i, p := range r.places {
		list[i] = p.listing(time.Now())
	}
	return list
}

// Register registers the node, or renews its card, in one configured directory or in all, also where it was
// withdrawn. What went wrong stands in the listings.
func (r *Registrar) Register(ctx context.Context, directory string) ([]owner.Listing, error) {
	return r.enter(ctx, directory, renewing)
}

// Adopt is Register in one directory whose id the node takes over, if the directory gives one of its own. The other
// directories then list the node under the new id, and no longer under the old one. Peers meet a new agent.
func (r *Registrar) Adopt(ctx context.Context, directory string) ([]owner.Listing, error) {
	if directory == "" && len(r.places) > 1 {
		return nil, owner.Fault(http.StatusBadRequest, "an id can be taken over from one directory only", "name it with --directory URL")
	}
	return r.enter(ctx, directory, adopting)
}

// enter visits directories, also where the node was withdrawn.
func (r *Registrar) enter(ctx context.Context, directory string, how visiting) ([]owner.Listing, error) {
	return r.each(ctx, directory, func(p *place) {
		r.mu.Lock()
		p.state.Withdrawn = false
		r.mu.Unlock()
		r.tend(ctx, p, how)
	})
}

// Withdraw takes the node out of one configured directory or of all, until it is registered again.
func (r *Registrar) Withdraw(ctx context.Context, directory string) ([]owner.Listing, error) {
	return r.each(ctx, directory, func(p *place) {
		if err := r.withdraw(ctx, p); err != nil {
			r.cfg.Logger.Warn("withdraw", "directory", p.dir.Base, "err", err)
		}
	})
}

// at returns the places that a command means: one, or all if directory is empty.
func (r *Registrar) at(directory string) ([]*place, error) {
	if directory == "" {
		return r.places, nil
	}
	for _, p := range r.places {
		if p.dir.Base == directory {
			return []*place{p}, nil
		}
	}
	return nil, owner.Fault(http.StatusNotFound, "no such directory is configured", "see: agentmesh status")
}

// Directories returns the directories that a command means: one, or all if directory is empty.
func (r *Registrar) Directories(directory string) ([]*client.Directory, error) {
	places, err := r.at(directory)
	var list []*client.Directory
	for _, p := range places {
		list = append(list, p.dir)
	}
	return list, err
}

func (r *Registrar) each(ctx context.Context, directory string, do func(*place)) ([]owner.Listing, error) {
	places, err := r.at(directory)
	if err != nil {
		return nil, err
	}
	r.work.Lock()
	defer r.work.Unlock()
	list := make([]owner.Listing, 0, len(places))
	for _, p := range places {
		do(p)
		r.mu.Lock()
		list = append(list, p.listing(time.Now()))
		r.mu.Unlock()
	}
	r.poke()
	return list, ctx.Err()
}

func (r *Registrar) poke() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *Registrar) withdraw(ctx context.Context, p *place) error {
	r.mu.Lock()
	s := p.state
	r.mu.Unlock()
	id := s.AgentID
	if id == "" {
		id = r.ID() // it may list us from a time of which we know nothing any more
	}
	if err := p.dir.Withdraw(ctx, id, r.Credential(p.dir)); err != nil && !errors.Is(err, client.ErrUnknownAgent) {
		s.Error, s.Hint = wire.OneLine(err.Error(), 300), client.HintOf(err)
		s.Withdrawn = s.AgentID == "" // then nothing is kept up there, and nothing is tried any more
		return errors.Join(err, r.put(ctx, p, s, time.Now().Add(checkEvery)))
	}
	return r.put(ctx, p, placeState{Directory: s.Directory, Withdrawn: true}, time.Time{})
}
