package exchange

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// eachThread calls do once for every thread that re names. An empty list names the thread of the call.
func (t *tx) eachThread(ctx context.Context, re []string, do func(*thread.Thread) error) error {
	if len(re) == 0 {
		re = []string{t.opts.Re}
	}
	done := make(map[string]bool, len(re))
	for _, r := range re {
		th, _, err := t.resolveThread(ctx, r, threadsFirst)
		if err != nil {
			return err
		}
		if done[th.Ref] {
			continue
		}
		done[th.Ref] = true
		if err := do(th); err != nil {
			return err
		}
	}
	return nil
}

// applyStatus applies a status to the threads that it names (MESS-22 to MESS-25, MESS-27).
func (t *tx) applyStatus(ctx context.Context, e thread.Entry, path string) error {
	s, err := thread.ReadStatus(e.Body, path, t.isLenient())
	if err != nil {
		return err
	}
	err = t.eachThread(ctx, s.Re, func(th *thread.Thread) error {
		if done, err := t.follow(th, s, e); done || err != nil {
			return err
		}
		body, oldHolder, oldParked, declinedCount := s.Body, th.Holder, th.Parked, len(th.Declined)
		if err := th.SetStatus(s, t.who.ID, t.x.roles(t.who, th), t.now); err != nil {
			return err
		}
		if s.Code == thread.Claimed && body.GetStr("executor") == "" {
			body = body.With("executor", wire.Text(t.who.ID))
		}
		if s.Code == thread.Delegated {
			next, err := t.passTo(ctx, th, s.Delegated)
			if err != nil {
				return err
			}
			body = body.WithOptional("ref", next)
		}
		t.post(th, thread.Entry{Type: "status", Body: body})
		if oldHolder == "" && th.Holder != "" {
			t.notices.withdrawOffers(th, th.Holder)
		}
		if s.Code == thread.Received { // the thread was held, and now the owner lets it go on
			t.flush(th)
			if oldParked == thread.ParkedApproval {
				return t.settle(ctx, th)
			}
			if !th.Offered { // it was held before it could be offered
				t.offer(th)
			}
		}
		if len(th.Declined) > declinedCount && t.x.Executors.HasNoCandidate(th) { // nobody is left to claim it (MESS-24)
			const reason = "every executor that could claim the thread has declined"
			t.flush(th) // the executor's own message comes first
			th.Become(thread.Declined, thread.ExchangeID, reason, t.now)
			t.postState(th, wire.TextField("reason", reason))
		}
		return nil
	})
	return t.explainClaim(ctx, err, s.Code, s.Re)
}

// dropNoise returns a peer's block without its acks and its states "received", which change nothing here. It keeps a
// "received" with which the exchange behind a link releases a thread that it had claimed. If the thread waits for the
// peer, dropNoise ends the wait, unless the block has only the states "waiting" and "held". An ack ends only the wait
// for the decision of the peer's owner.
func (t *tx) dropNoise(ctx context.Context, b thread.Block) (thread.Block, error) {
	th, err := t.load(ctx, t.opts.Re)
	if err != nil {
		return nil, err
	}
	code := func(e thread.Entry) thread.Code { c, _ := thread.ParseCode(e.Body.GetStr("code")); return c }
	endsWait := slices.ContainsFunc(b, func(e thread.Entry) bool {
		return e.Type == "ack" && th.Parked == thread.ParkedPending || e.Type != "ack" && e.Type != "v" && code(e) != thread.Held && code(e) != thread.Waiting
	})
	if th.WaitsForPeer() && endsWait && th.Unpark(t.now) {
		t.postState(th)
	}
	return slices.DeleteFunc(slices.Clone(b), func(e thread.Entry) bool {
		return e.Type == "ack" || e.Type == "status" && code(e) == thread.Received && (t.opts.Authority != SentToExchange || th.Holder != t.who.ID)
	}), nil
}

// applyResponse applies a result to the threads that it names (MESS-26, MESS-39).
func (t *tx) applyResponse(ctx context.Context, e thread.Entry, path string) error {
	re, err := thread.ReadResponse(e.Body, path, t.isLenient())
	if err != nil {
		return err
	}
	return t.eachThread(ctx, re, func(th *thread.Thread) error {
		if t.followResponse(th, e) {
			return nil
		}
		isLone := !t.opts.Lax && !t.statusThreads[th.Ref] // without a status for this thread in the same block
		oldHolder := th.Holder
		if err := th.Respond(t.who.ID, t.x.roles(t.who, th), isLone, t.now); err != nil {
			return err
		}
		t.post(th, e)
		if oldHolder == "" && th.Holder != "" {
			t.notices.withdrawOffers(th, th.Holder)
		}
		return nil
	})
}

// applyReply applies answers, a confirmation or a decision to the threads that the reply names (MESS-33).
func (t *tx) applyReply(ctx context.Context, e thread.Entry, path string) error {
	r, err := thread.ReadReply(e.Body, path, t.isLenient())
	if err != nil {
		return err
	}
	if len(r.Re) == 0 {
		r.Re = []string{t.opts.Re}
	}
	for _, re := range r.Re {
		th, to, err := t.resolveThread(ctx, re, tagKinds{suggestions: r.Accept != nil, questions: r.Confirm == nil && r.Accept == nil})
		if err != nil {
			return err
		}
		roles := t.x.roles(t.who, th)
		switch {
		case r.Accept != nil:
			if err := t.applyDecision(ctx, th, e, to.Suggestion, *r.Accept); err != nil {
				return err
			}
			continue
		case r.Confirm != nil:
			err = th.Confirm(*r.Confirm, r.Reason, t.who.ID, roles, t.now)
		default:
			err = th.AnswerAll(to.Question, r.Answers, t.who.ID, roles, t.now)
		}
		if err != nil {
			return err
		}
		t.post(th, e)
	}
	return nil
}

// applyAnswer answers the question that the entry names, or else the requester's only open question.
func (t *tx) applyAnswer(ctx context.Context, e thread.Entry, path string) error {
	a, err := thread.ReadAnswer(e.Body, path)
	if err != nil {
		return err
	}
	var th *thread.Thread
	var to thread.Target
	if len(a.Re) > 0 || t.opts.Re != "" {
		th, to, err = t.resolveThread(ctx, thread.FirstRef(e.Body), tagKinds{questions: true})
	} else {
		th, err = t.threadNeedingInput(ctx)
	}
	if err != nil {
		return err
	}
	question := cmp.Or(to.Question, a.ID)
	if question == "" && th.CountQuestions() > 1 {
		return thread.Conflict("the thread asks more than one question: name one with id")
	}
	if err := th.Answer(question, t.who.ID, t.x.roles(t.who, th), t.now); err != nil {
		return err
	}
	t.post(th, e)
	return nil
}

// threadNeedingInput returns the actor's thread that needs input. It fails unless exactly one thread does.
func (t *tx) threadNeedingInput(ctx context.Context) (*thread.Thread, error) {
	refs := t.x.index.refs("from:"+t.who.ID, 2, func(e *entry) bool { return e.status.Value() == thread.NeedsInput })
	for _, ref := range t.changedRefs {
		if th := t.threads[ref]; th.Requester == t.who.ID && th.Status == thread.NeedsInput && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	switch len(refs) {
	case 0:
		return nil, thread.Missing("no question is open")
	case 1:
		return t.load(ctx, refs[0])
	}
	return nil, thread.Conflict("more than one question is open: name one with re")
}

// applyCancel cancels the threads that the entry names (MESS-34).
func (t *tx) applyCancel(ctx context.Context, e thread.Entry, path string) error {
	c, err := thread.ReadCancel(e.Body, path, t.isLenient())
	if err != nil {
		return err
	}
	return t.eachThread(ctx, c.Re, func(th *thread.Thread) error {
		if !t.x.roles(t.who, th).Has(thread.AsRequester | thread.AsOwner) {
			return thread.Forbidden("only the requester may cancel")
		}
		if err := th.Cancel(c.Reason, t.who.ID, t.now); err != nil {
			return err
		}
		t.post(th, e)
		return nil
	})
}

// settleDependents checks the threads that wait for the ended ones, and continues or fails them (MESS-29, MESS-30).
// Each has its own transaction; after a crash, the next start checks them again.
func (x *Exchange) settleDependents(ctx context.Context, ended []string) error {
	for len(ended) > 0 {
		ref := ended[0]
		ended = ended[1:]
		for _, waiting := range x.index.dependents(ref) {
			more, err := x.recheck(ctx, waiting)
			if err != nil && !thread.IsRefusal(err) { // a committed change stands, whatever is wrong with a dependent
				return err
			}
			ended = append(ended, more...)
		}
	}
	return nil
}

// recheck looks again at a thread that the exchange parked and, unless the clock is in doubt, at its deadline. It
// returns the threads that ended.
func (x *Exchange) recheck(ctx context.Context, ref string) ([]string, error) {
	for range store.MaxConflicts {
		t := x.begin(Actor{ID: thread.ExchangeID, forExchange: true}, Options{})
		th, err := t.load(ctx, ref)
		if err != nil {
			return nil, IgnoreMissing(err)
		}
		switch {
		case x.clock.Reliable() && th.Expire(t.now):
			t.postState(th, wire.Field("expired_at", thread.TimeText(t.now)), wire.TextField("stage", th.Stage))
		case th.Parked == thread.ParkedDependency, th.Parked == thread.ParkedSchedule:
			if err := t.settle(ctx, th); err != nil {
				return nil, err
			}
		}
		err = t.commit(ctx)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		return t.endedRefs(), err
	}
	return nil, nil // others keep changing the thread, and each of their changes makes it due again
}
