package registration

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// listing returns the state of the registration as the owner sees it.
func (p *registration) listing(now time.Time) owner.Listing {
	s := p.state
	l := owner.Listing{
		Directory: s.Directory, AgentID: s.AgentID, State: owner.Pending, Registered: s.Registered, Expires: s.Expires,
		Next: p.next, Error: s.Error, Hint: s.Hint, Refused: s.Refused,
	}
	switch {
	case s.isRemoved():
		l.State, l.Next = owner.Removed, time.Time{}
	case s.Withdrawn:
		l.State, l.Next = owner.Withdrawn, time.Time{}
	case s.AgentID != "" && now.Before(s.Expires):
		l.State = owner.Registered
	}
	return l
}

// Listings returns the state of the registration in each directory.
func (r *Registrar) Listings() []owner.Listing {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]owner.Listing, len(r.registrations))
	for i, p := range r.registrations {
		list[i] = p.listing(time.Now())
	}
	return list
}

// Register registers the node in one configured directory, or in all if directory is "". It renews a card that is
// already registered, and ends an earlier withdrawal. The listings report failures.
func (r *Registrar) Register(ctx context.Context, directory string) ([]owner.Listing, error) {
	return r.registerIn(ctx, directory, renewNow)
}

// Adopt is Register in one directory, except that the node adopts the id that the directory assigns. The other
// directories then list the node only under the new id. To peers the node is a new agent.
func (r *Registrar) Adopt(ctx context.Context, directory string) ([]owner.Listing, error) {
	if directory == "" && len(r.registrations) > 1 {
		return nil, owner.Fault(http.StatusBadRequest, "an id can be adopted from only one directory", "name it with --directory URL")
	}
	return r.registerIn(ctx, directory, renewAndAdopt)
}

func (r *Registrar) registerIn(ctx context.Context, directory string, how visitMode) ([]owner.Listing, error) {
	return r.each(ctx, directory, func(p *registration) { r.update(ctx, p, how) })
}

// Withdraw removes the node from one configured directory, or from all if directory is "", until Register or Adopt is
// called for it.
func (r *Registrar) Withdraw(ctx context.Context, directory string) ([]owner.Listing, error) {
	return r.each(ctx, directory, func(p *registration) {
		err := r.change(ctx, p, func(s *registrationState) (next time.Time, err error) { return r.removeCard(ctx, p, s), nil })
		if err != nil {
			r.cfg.Logger.Warn("card not withdrawn; the directory still lists it", "directory", p.dir.Base, "err", err)
		}
	})
}

// selectRegistrations returns the registration in one configured directory, or all if directory is "".
func (r *Registrar) selectRegistrations(directory string) ([]*registration, error) {
	if directory == "" {
		return r.registrations, nil
	}
	for _, p := range r.registrations {
		if p.dir.Base == directory {
			return []*registration{p}, nil
		}
	}
	return nil, owner.Fault(http.StatusNotFound, "no such directory is configured", "see: agentmesh status")
}

// Directories returns one configured directory, or all if directory is "".
func (r *Registrar) Directories(directory string) ([]*client.Directory, error) {
	registrations, err := r.selectRegistrations(directory)
	var list []*client.Directory
	for _, p := range registrations {
		list = append(list, p.dir)
	}
	return list, err
}

// each calls fn for the selected registrations and returns their listings.
func (r *Registrar) each(ctx context.Context, directory string, fn func(*registration)) ([]owner.Listing, error) {
	registrations, err := r.selectRegistrations(directory)
	if err != nil {
		return nil, err
	}
	r.work.Lock()
	defer r.work.Unlock()
	list := make([]owner.Listing, 0, len(registrations))
	for _, p := range registrations {
		fn(p)
		r.mu.Lock()
		list = append(list, p.listing(time.Now()))
		r.mu.Unlock()
	}
	waiting.Wake(r.wakeup)
	return list, ctx.Err()
}

// removeCard removes the node from a directory. It stores the outcome in s, and returns the time of the next visit.
func (r *Registrar) removeCard(ctx context.Context, p *registration, s *registrationState) (next time.Time) {
	id := s.AgentID
	if id == "" {
		id = r.ID() // the directory may list the node although our records do not
	}
	if err := p.dir.Withdraw(ctx, id, r.Credential(p.dir)); err != nil && !errors.Is(err, client.ErrUnknownAgent) {
		r.cfg.Logger.Warn("card not withdrawn; the directory still lists it", "directory", s.Directory, "err", err)
		s.Error, s.Hint = wire.OneLine(err.Error(), 300), client.HintOf(err)
		s.Withdrawn = s.AgentID == "" // without a record of a registration, count the node as withdrawn, so that it does not register
		return time.Now().Add(checkEvery)
	}
	*s = registrationState{Directory: s.Directory, Withdrawn: true}
	return time.Time{}
}
