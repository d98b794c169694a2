package exchange

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// IgnoreMissing returns nil if err is [store.ErrNotFound], otherwise err.
func IgnoreMissing(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

const maxSuggestions = 50

// applySuggestion adds an executor's suggestion to the threads that it is about, for the requester to decide (MESS-38).
func (t *tx) applySuggestion(ctx context.Context, e thread.Entry, path string) error {
	s, err := thread.ReadSuggestion(e.Body, path)
	if err != nil {
		return err
	}
	var threads []*thread.Thread
	requester := ""
	for _, re := range s.Re {
		th, _, err := t.resolveThread(ctx, re, threadsFirst)
		if err != nil {
			return err
		}
		requester = cmp.Or(requester, th.Requester)
		if !t.x.roles(t.who, th).Has(thread.AsHolder | thread.AsEligible | thread.AsOwner) {
			return thread.Forbidden("only an executor that holds or may claim the thread may make suggestions about it")
		}
		if th.Requester != requester {
			return thread.Conflict("the threads have different requesters")
		}
		if !th.Status.Open() {
			return thread.Conflict("the thread is %s", th.Status)
		}
		if !slices.Contains(threads, th) {
			threads = append(threads, th)
		}
	}
	if s.Type == "merge" && len(threads) < 2 && t.opts.Authority == OurExchange {
		return thread.Bad(path+".re", "must name at least two threads in a merge")
	}
	if s.Type != "merge" && len(threads) > 1 && s.Type != "alternative" {
		return thread.Bad(path+".re", "may name several threads only in a merge or an alternative")
	}
	// if the thread was sent to the actor, the actor's own exchange has checked the proposal
	if _, err := s.ReadProposal(t.now); err != nil && t.opts.Authority == OurExchange {
		return err
	}
	head := threads[0] // the thread that stores the suggestion
	if head.FindSuggestion(s.ID) != nil {
		return thread.Conflict("the thread has a suggestion with this id already: use another id")
	}
	if len(head.Suggestions) >= maxSuggestions {
		return thread.Conflict("the thread has too many suggestions")
	}
	s.By, s.Re = t.who.ID, nil
	for _, th := range threads {
		s.Re = append(s.Re, th.Ref)
	}
	head.Suggestions = append(head.Suggestions, s)
	for _, th := range threads {
		t.post(th, e)
	}
	return nil
}

// applyDecision posts the requester's decision about a suggestion and carries the decision out. The ack names the new
// threads.
func (t *tx) applyDecision(ctx context.Context, th *thread.Thread, e thread.Entry, id string, accept bool) error {
	if !t.x.roles(t.who, th).Has(thread.AsRequester | thread.AsOwner) {
		return thread.Forbidden("only the requester may decide about a suggestion")
	}
	if s := th.FindSuggestion(id); th.IsForPeer(s) {
		return t.forwardDecision(th, e, s, accept)
	}
	t.post(th, e)
	t.flush(th) // the messages below come after the decision
	ackIndex, createdBefore := len(t.answers)-1, len(t.result.Created)
	if err := t.decide(ctx, th, id, accept); err != nil {
		return err
	}
	// post has added an ack, unless the block is lax or comes from the exchange
	if made := t.result.Created[createdBefore:]; len(made) > 0 && !t.opts.Lax && !t.who.forExchange {
		list := make([]wire.Value, len(made))
		for i, ref := range made {
			list[i] = wire.Obj(wire.TextField("ref", ref))
		}
		t.answers[ackIndex].Body = t.answers[ackIndex].Body.With("requests", wire.Arr(list...))
	}
	return nil
}

// decide records a decision about a suggestion of th, and carries out an accepted suggestion.
func (t *tx) decide(ctx context.Context, th *thread.Thread, id string, accept bool) error {
	s := th.FindSuggestion(id)
	if s == nil {
		return thread.Conflict("no suggestion waits for a decision")
	}
	if !accept {
		s.Decided = "refused"
		t.touch(th)
		return nil
	}
	s.Decided = "accepted"
	if requestLink(th) != "" && slices.Contains([]string{"merge", "split", "delegate"}, s.Type) {
		if t.who.ID != th.Requester {
			return thread.Conflict("the requester must decide about the suggestion on the exchange behind the link")
		}
		t.touch(th) // the exchange behind the link carries it out, and the link follows its threads
		return nil
	}
	p, err := s.ReadProposal(t.now)
	if err != nil {
		return err
	}
	switch s.Type {
	case "merge":
		return t.merge(ctx, s, p)
	case "split":
		var next []string
		for _, part := range p.Requests {
			opened, err := t.openProposed(ctx, part, "", th)
			if err != nil {
				return err
			}
			next = append(next, opened.Ref)
		}
		return t.supersede(th, next, "split")
	case "delegate":
		return t.delegateTo(ctx, th, p.Executor)
	case "defer":
		return t.postpone(th, p.Until)
	}
	t.touch(th)
	return nil
}

// merge opens one thread in place of the threads that a suggestion names.
func (t *tx) merge(ctx context.Context, s *thread.Suggestion, p thread.Proposal) error {
	var threads []*thread.Thread
	var intents []string
	for _, ref := range s.Re {
		th, err := t.load(ctx, ref)
		if errors.Is(err, store.ErrNotFound) {
			return thread.Conflict("one of the threads no longer exists")
		}
		if err != nil {
			return err
		}
		threads = append(threads, th)
		intents = append(intents, th.Intent)
	}
	request := p.Requests[0].With("intent", wire.Text(cmp.Or(p.Intent, strings.Join(intents, "; "))))
	next, err := t.openProposed(ctx, request, trimNamespace(p.Executor, t.x.id), threads...)
	if err != nil {
		return err
	}
	for _, th := range threads {
		if err := t.supersede(th, []string{next.Ref}, "merge"); err != nil {
			return err
		}
	}
	return nil
}

// supersede ends th, because the threads in the list next replace it.
func (t *tx) supersede(th *thread.Thread, next []string, reason string) error {
	if err := th.Supersede(next, reason, t.now); err != nil {
		return err
	}
	by := wire.Text(next[0])
	if len(next) > 1 {
		by = wire.Texts(next)
	}
	t.postState(th, wire.Field("superseded_by", by), wire.TextField("reason", reason))
	return nil
}

// delegateTo delegates a thread to an executor of this exchange after the requester accepted the suggestion to do so.
func (t *tx) delegateTo(ctx context.Context, th *thread.Thread, to string) error {
	if !th.Status.Open() {
		return thread.Conflict("the thread is %s", th.Status)
	}
	next, err := t.passTo(ctx, th, to)
	if err != nil {
		return err
	}
	if next == "" {
		return thread.Conflict("no approved executor has this id")
	}
	th.Become(thread.Delegated, thread.ExchangeID, "", t.now)
	t.postState(th, wire.TextField("delegated_to", trimNamespace(to, t.x.id)), wire.TextField("ref", next))
	return nil
}

// postpone carries out an accepted defer: an unclaimed thread is parked, a claimed one waits with its holder.
func (t *tx) postpone(th *thread.Thread, until time.Time) error {
	if !slices.Contains([]thread.Code{thread.Received, thread.Claimed, thread.InProgress, thread.Waiting, thread.Held, thread.Retrying}, th.Status) {
		return thread.Conflict("the thread is %s", th.Status)
	}
	if err := checkOwnerHold(t.who, th); err != nil {
		return err
	}
	th.Become(thread.Waiting, thread.ExchangeID, "", t.now)
	if th.Holder == "" {
		th.Parked, th.NotBefore, th.Offered = thread.ParkedSchedule, until, false
	}
	t.postState(th, wire.Field("waiting_for", wire.Obj(
		wire.TextField("type", "schedule"), wire.Field("available_at", thread.TimeText(until)))))
	return nil
}
