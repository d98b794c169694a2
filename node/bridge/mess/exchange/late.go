package exchange

import (
	"context"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// What is left of a thread for who could once have claimed it: a claim that comes too late is told that another has it
// (MESS-22). That is no secret to who was offered the thread, and it says neither how the thread stands nor who has it.

// late says whether the actor was offered a thread that somebody else took. An executor that came after that was not.
func (x *Exchange) late(who Actor, t *thread.Thread) bool {
	switch {
	case t.Holder == "" || who.ID == t.Holder || who.ID == t.Requester:
		return false
	case t.Peers[who.ID].Offered && t.IsOfferedTo(who.ID):
		return true
	}
	c := x.Executors.get(who.ID)
	return c != nil && t.Offered && x.Executors.may(who.ID, t) && !c.Created.After(t.ClaimedAt())
}

// orTaken is what a claim is refused with: where it names nothing that the actor sees, it may have come too late.
func (t *tx) orTaken(ctx context.Context, err error, code thread.Code, re []string) error {
	if code == thread.Claimed && IsStatus(err, http.StatusNotFound) && t.tooLate(ctx, re) {
		return thread.ErrTaken
	}
	return err
}

// tooLate says whether one of the names is that of a thread that the actor is too late for. An empty list names the thread
// of the call.
func (t *tx) tooLate(ctx context.Context, re []string) bool {
	if len(re) == 0 {
		re = []string{t.opts.Re}
	}
	return slices.ContainsFunc(re, func(name string) bool {
		_, ok := thread.Resolve(lateView{view{t, ctx}}, name, t.x.id)
		return ok
	})
}

// IsTooLate reports whether the actor may be told of a thread only that somebody else has taken it.
func (x *Exchange) IsTooLate(ctx context.Context, who Actor, ref string) bool {
	return x.begin(who, Options{Re: ref}).tooLate(ctx, nil)
}

// lateView is the resolver of threads that the actor is too late for.
type lateView struct{ view }

func (v lateView) HasThread(ref string) bool {
	th, err := v.t.load(v.ctx, ref)
	return err == nil && v.t.x.late(v.t.who, th)
}

func (v lateView) SuggestionThread(string) (string, bool) { return "", false }

func (v lateView) QuestionThread(string) (string, bool) { return "", false }

func (v lateView) Newest() (string, bool) { return "", false }

func (v lateView) NewestWith(id string) (string, bool) {
	c := v.t.x.Executors.get(v.t.who.ID)
	if c == nil {
		return "", false
	}
	ref, ok := v.t.x.index.newestWith(id, func(e *entry) bool { return e.holder != "" && c.has(e.needs) })
	return ref, ok && v.HasThread(ref)
}

// takesPart says whether the actor has a part in a thread: it asked, works on it or was sent it, or it is the owner or who
// writes thread files. Who may claim it has not yet.
func (x *Exchange) takesPart(who Actor, t *thread.Thread) bool {
	return who.file || t.Peers[who.ID].Offered || x.roles(who, t).Has(thread.AsRequester|thread.AsHolder|thread.AsOwner|thread.AsExchange)
}

func IsStatus(err error, status int) bool {
	e, ok := err.(*wire.Error)
	return ok && e.Status == status
}
