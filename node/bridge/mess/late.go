package mess

import (
	"context"
	"net/http"
	"slices"
)

// What is left of a thread for who could once have claimed it: a claim that comes too late is told that another has it
// (MESS-22). That is no secret to who was offered the thread, and it says neither how the thread stands nor who has it.

// late says whether the actor was offered a thread that somebody else took. An executor that came after that was not.
func (x *Exchange) late(who Actor, t *Thread) bool {
	switch {
	case t.Holder == "" || who.ID == t.Holder || who.ID == t.Requester:
		return false
	case t.Peers[who.ID].Offered && t.offeredTo(who.ID):
		return true
	}
	c := x.crew.get(who.ID)
	return c != nil && t.Offered && x.crew.may(who.ID, t) && !c.Created.After(t.taken())
}

// orTaken is what a claim is refused with: where it names nothing that the actor sees, it may have come too late.
func (t *tx) orTaken(ctx context.Context, err error, code Code, re []string) error {
	if code == Claimed && statusIs(err, http.StatusNotFound) && t.tooLate(ctx, re) {
		return errTaken
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
		_, ok := resolve(lateView{view{t, ctx}}, name, t.x.id)
		return ok
	})
}

// lateView is the resolver of threads that the actor is too late for.
type lateView struct{ view }

func (v lateView) thread(ref string) bool {
	th, err := v.t.load(v.ctx, ref)
	return err == nil && v.t.x.late(v.t.who, th)
}

func (v lateView) suggestion(string) (string, bool) { return "", false }

func (v lateView) question(string) (string, bool) { return "", false }

func (v lateView) newest() (string, bool) { return "", false }

func (v lateView) newestWith(id string) (string, bool) {
	c := v.t.x.crew.get(v.t.who.ID)
	if c == nil {
		return "", false
	}
	ref, ok := v.t.x.index.newestWith(id, func(e *entry) bool { return e.holder != "" && c.has(e.needs) })
	return ref, ok && v.thread(ref)
}

// takesPart says whether the actor has a part in a thread: it asked, works on it or was sent it, or it is the owner or who
// writes thread files. Who may claim it has not yet.
func (x *Exchange) takesPart(who Actor, t *Thread) bool {
	return who.file || t.Peers[who.ID].Offered || x.roles(who, t).any(asRequester|asHolder|asOwner|asExchange)
}
