package exchange

import (
	"context"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// An executor that was offered a thread and claims it too late learns only that another executor has it (MESS-22): not
// the state of the thread, and not the holder. The offer already told it that the thread exists.

// hasLost reports whether the actor was offered a thread before somebody else claimed it.
func (x *Exchange) hasLost(who Actor, t *thread.Thread) bool {
	switch {
	case t.Holder == "" || who.ID == t.Holder || who.ID == t.Requester:
		return false
	case t.HasOffer(who.ID):
		return true
	}
	c := x.Executors.Find(who.ID)
	// CanClaim ignores the holder
	return c != nil && t.Offered && x.Executors.CanClaim(who.ID, t) && !c.Created.After(t.ClaimedAt())
}

// explainClaim returns [thread.ErrTaken] instead of err for a claim that came too late.
func (t *tx) explainClaim(ctx context.Context, err error, code thread.Code, re []string) error {
	if code == thread.Claimed && IsStatus(err, http.StatusNotFound) && (lostView{view{t: t, ctx: ctx}}).namesAny(re) {
		return thread.ErrTaken
	}
	return err
}

// IsTooLate reports whether the actor may know only that somebody else has claimed the thread.
func (x *Exchange) IsTooLate(ctx context.Context, who Actor, ref string) bool {
	return lostView{view{t: x.begin(who, Options{Re: ref}), ctx: ctx}}.namesAny(nil)
}

// lostView resolves the threads that the actor has lost to another executor.
type lostView struct{ view }

// namesAny reports whether one of the names means a lost thread. An empty list names the thread of the call.
func (v lostView) namesAny(re []string) bool {
	if len(re) == 0 {
		re = []string{v.t.opts.Re}
	}
	return slices.ContainsFunc(re, func(name string) bool {
		_, ok := thread.Resolve(v, name, v.t.x.id)
		return ok
	})
}

func (v lostView) HasThread(ref string) bool {
	th := v.find(ref)
	return th != nil && v.t.x.hasLost(v.t.who, th)
}

// Newest returns false, because "last" names a request of the actor.
func (v lostView) Newest() (string, bool) { return "", false }

func (v lostView) NewestWith(id string) (string, bool) {
	c := v.t.x.Executors.Find(v.t.who.ID)
	if c == nil {
		return "", false
	}
	ref, ok := v.t.x.index.newestByClientID(id, func(e *entry) bool { return e.isHeld() && e.canBeDoneBy(c) })
	return ref, ok && v.HasThread(ref)
}

// hasPart reports whether the actor takes part in a thread: as requester or holder, as a peer that got an offer, as
// owner, exchange or writer of thread files. An executor that may claim the thread does not take part before its claim.
func (x *Exchange) hasPart(who Actor, t *thread.Thread) bool {
	return who.isFileWriter || t.Peers[who.ID].Offered || x.roles(who, t).Has(thread.AsRequester|thread.AsHolder|thread.AsOwner|thread.AsExchange)
}

// IsStatus reports whether err is a *wire.Error with this HTTP status.
func IsStatus(err error, status int) bool {
	e, ok := err.(*wire.Error)
	return ok && e.Status == status
}
