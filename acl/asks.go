package acl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Why a decision was not carried out; check with [errors.Is]. An id that never was is store.ErrNotFound.
var (
	// ErrAskGone: somebody decided first, or the ask was withdrawn or expired.
	ErrAskGone = errors.New("acl: the ask is no longer pending")
	// ErrHashMismatch: what was shown to the owner is not what is asked (AM-34).
	ErrHashMismatch = errors.New("acl: the ask is about something else than was shown")
	// ErrNotShown: what is stored is not what the owner was shown, so nothing happened, and the ask still waits (AM-34).
	ErrNotShown = errors.New("what is stored is not what you were shown, so nothing was released; " +
		"stop the node, run agentmesh check, and restore a backup; or reject the question")
	// ErrChoice: the ask does not offer this choice.
	ErrChoice = errors.New("acl: the ask does not offer this choice")
)

// maxDecisions bounds how often a decision is tried anew because a row beside the ask moved.
const maxDecisions = 8

// Resolver carries out what the owner decided about asks of one kind.
//
// It must apply d.Changes in the same unit as its effect, and nothing where that unit fails. It returns
// store.ErrConflict as it came: somebody else decided first, or another row moved, and then it is called again. It
// checks access anew, because rules may have changed since the ask was opened (AM-34); an error that is not a
// conflict leaves the ask pending.
type Resolver interface {
	Resolve(ctx context.Context, ask Ask, d Decision) error
}

// Decision is the owner's answer to an ask.
type Decision struct {
	Choice  Choice
	By      string
	Changes []store.Change // end the ask and those in Tail, if they are still pending, and free the slot
	Tail    []Ask          // what was behind the ask and is decided with it, in order; as it stands with Changes
	Now     time.Time
}

// Asks is the queue of what waits for the owner. It is safe for concurrent use once every kind has its resolver.
type Asks struct {
	records   store.Records
	resolvers map[string]Resolver
	decided   func(Ask)
	opened    func(Ask) []store.Change // nil adds nothing
	audit     *Audit                   // nil keeps no log

	crowded atomic.Pointer[crowd] // the last count that found no place; nil: there may be one. Nobody changes it
}

// NewAsks returns the queue that s keeps.
func NewAsks(s store.Store) *Asks {
	return &Asks{records: s.Records(), resolvers: make(map[string]Resolver), decided: func(Ask) {}}
}

// Handle names the resolver of a kind. It is for set-up, before the first decision.
func (q *Asks) Handle(kind string, r Resolver) { q.resolvers[kind] = r }

// OnDecided names what is told of every ask that was decided, once its effect stands. It is for set-up, like Handle.
func (q *Asks) OnDecided(told func(Ask)) { q.decided = told }

// OnOpen names what adds to the unit that opens an ask, such as word to the owner. It is for set-up, like Handle.
func (q *Asks) OnOpen(adds func(Ask) []store.Change) { q.opened = adds }

// Log has what is asked, decided and withdrawn written to the audit log, each in its own unit. It is for set-up.
func (q *Asks) Log(a *Audit) { q.audit = a }

// logged adds an ask's line of the audit log to the changes of its unit.
func (q *Asks) logged(changes []store.Change, ask Ask, kind AuditKind, now time.Time) []store.Change {
	if q.audit == nil {
		return changes
	}
	return append(changes, q.audit.Change(ask.entry(kind, now)))
}

// Open returns the ask as it will be stored, and the changes that store it and take its slot, for the caller's
// step. A pending ask needs a Created time; ID, Expires and Choices have defaults. In the step, the slot refuses with
// store.ErrConflict where it is taken and with store.ErrQuota where Max is reached.
func (q *Asks) Open(ask Ask, slot Slot) (Ask, []store.Change) {
	if ask.ID == "" {
		ask.ID = NewAskID(ask.Created)
	}
	if ask.Expires.IsZero() {
		ask.Expires = ask.Created.Add(askLife)
	}
	if len(ask.Choices) == 0 {
		ask.Choices = []Choice{Approve, Reject}
	}
	ask.State = AskPending
	s := stored{Ask: ask, Slot: slot.Key, Sources: slot.Sources, Proven: slot.Proven}
	var changes []store.Change
	if slot.Key != "" {
		changes = append(changes, store.Change{Max: slot.Max, Record: s.place().record(slot.Key, slot.Term, ask.Expires)})
	}
	changes = append(changes, store.Change{Record: s.record()})
	if q.opened != nil {
		changes = append(changes, q.opened(ask)...)
	}
	return ask, q.logged(changes, ask, AuditHeld, ask.Created)
}

// Get returns an ask; store.ErrNotFound where there is none.
func (q *Asks) Get(ctx context.Context, id string, now time.Time) (Ask, error) {
	s, err := q.get(ctx, id, now)
	return s.Ask, err
}

func (q *Asks) get(ctx context.Context, id string, now time.Time) (stored, error) {
	rec, err := q.records.Get(ctx, AskNamespace, id, now)
	if err != nil {
		return stored{}, fmt.Errorf("read ask: %w", err)
	}
	s, err := decodeAsk(rec)
	s.Ask = s.Ask.at(now)
	return s, err
}

// AskFilter narrows a list; zero fields do not.
type AskFilter struct {
	State   AskState
	Subject string
	Each    bool // also list asks behind others
}

// List returns asks in the order of their creation, after the id named after. A page may hold fewer than limit asks,
// even none, and still have a next; next is empty on the last page.
func (q *Asks) List(ctx context.Context, f AskFilter, after string, limit int, now time.Time) (asks []Ask, next string, err error) {
	term := ""
	switch {
	case f.Subject != "":
		term = "subject:" + f.Subject
	case f.Each:
	case f.State == AskExpired:
		term = "state:" + string(AskPending)
	case f.State != "":
		term = "state:" + string(f.State)
	}
	page, err := q.records.List(ctx, AskNamespace, term, after, limit, now)
	if err != nil {
		return nil, "", fmt.Errorf("list asks: %w", err)
	}
	for _, rec := range page.Records {
		s, err := decodeAsk(rec)
		if err != nil {
			return nil, "", err
		}
		if ask := s.Ask.at(now); (f.State == "" || ask.State == f.State) && (f.Each || ask.Behind == "") {
			asks = append(asks, ask)
		}
	}
	return asks, page.Next, nil
}

// Withdraw returns the changes that withdraw those pending asks of a conversation that which names (AM-36). They fail
// with store.ErrConflict where one of them is decided meanwhile.
func (q *Asks) Withdraw(ctx context.Context, conv store.ConvKey, which func(Ask) bool, now time.Time) ([]store.Change, error) {
	return q.withdraw(ctx, convTerm(conv), which, now)
}

// WithdrawAbout is [Asks.Withdraw] for the pending asks about a matter of a bridge.
func (q *Asks) WithdrawAbout(ctx context.Context, about string, which func(Ask) bool, now time.Time) ([]store.Change, error) {
	return q.withdraw(ctx, aboutTerm(about), which, now)
}

func (q *Asks) withdraw(ctx context.Context, term string, which func(Ask) bool, now time.Time) ([]store.Change, error) {
	var gone []stored
	err := q.each(ctx, term, now, func(s stored) {
		if s.at(now).State == AskPending && which(s.Ask) {
			gone = append(gone, s)
		}
	})
	if err != nil {
		return nil, err
	}
	changes, err := q.regroup(ctx, gone, now)
	for _, s := range gone {
		s.State, s.Decided, s.Behind, s.Seq = AskWithdrawn, now.UTC(), "", 0
		changes = q.logged(append(changes, s.change()), s.Ask, AuditWithdrawn, now)
	}
	return changes, err
}

// Forget returns the changes that remove every ask of a conversation, decided or not.
func (q *Asks) Forget(ctx context.Context, conv store.ConvKey, now time.Time) ([]store.Change, error) {
	var gone []store.Change
	var pending []stored
	err := q.each(ctx, convTerm(conv), now, func(s stored) {
		gone = append(gone, store.Change{Record: store.Record{NS: AskNamespace, Key: s.ID}, IfRev: s.rev, Delete: true})
		if s.at(now).State == AskPending {
			pending = append(pending, s)
		}
	})
	if err != nil {
		return nil, err
	}
	changes, err := q.regroup(ctx, pending, now)
	return append(changes, gone...), err
}

// each calls do for the asks with a term.
func (q *Asks) each(ctx context.Context, term string, now time.Time, do func(stored)) error {
	for after := ""; ; {
		page, err := q.records.List(ctx, AskNamespace, term, after, 100, now)
		if err != nil {
			return fmt.Errorf("list asks with %s: %w", term, err)
		}
		for _, rec := range page.Records {
			s, err := decodeAsk(rec)
			if err != nil {
				return err
			}
			do(s)
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// Decide carries out the owner's choice about the ask, once: of two deciders exactly one wins, the other gets
// ErrAskGone. hash is that of what the owner saw, see [Chain]: an approval is about those asks alone, any other choice
// also about what joined them since. The id of an ask behind another names that one. by names the way the decision
// came ("cli"). The ask is returned as it stands, also beside ErrAskGone, ErrHashMismatch and ErrChoice; any other
// error is the resolver's or the store's.
func (q *Asks) Decide(ctx context.Context, id, hash string, choice Choice, by string, now time.Time) (Ask, error) {
	for range maxDecisions {
		s, tail, err := q.group(ctx, id, now)
		if err != nil {
			return Ask{}, err
		}
		shown, err := s.decidable(tail, hash, choice)
		if err != nil {
			return s.Ask, err
		}
		resolver := q.resolvers[s.Kind]
		if resolver == nil {
			return s.Ask, fmt.Errorf("decide ask: no resolver for kind %q", s.Kind)
		}
		rest := tail[shown:]
		if !choice.Approves() {
			shown, rest = len(tail), nil
		}
		d := Decision{Choice: choice, By: by, Changes: s.replaced(rest), Now: now}
		ended := s.decide(choice, by, now)
		ended.Hash, ended.Waiting = hash, shown
		if shown == 0 {
			ended.OwnHash = ""
		}
		d.Changes = q.logged(append(d.Changes, ended.change()), ended.Ask, AuditDecided, now)
		for _, t := range tail[:shown] {
			t = t.decide(choice, by, now)
			d.Changes = q.logged(append(d.Changes, t.change()), t.Ask, AuditDecided, now)
			d.Tail = append(d.Tail, t.Ask)
		}
		err = resolver.Resolve(ctx, s.Ask, d)
		if err == nil {
			q.decided(ended.Ask)
			return ended.Ask, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			if other, again := q.get(ctx, s.ID, now); again == nil && other.State != AskPending { // what refused was the other decision's doing
				return other.Ask, fmt.Errorf("%w: it is %s", ErrAskGone, other.State)
			}
			return s.Ask, err
		}
	}
	return Ask{}, fmt.Errorf("decide ask: %w", store.ErrConflict)
}

// decide returns the ask as it stands after a decision.
func (s stored) decide(choice Choice, by string, now time.Time) stored {
	s.State = AskRejected
	if choice.Approves() {
		s.State = AskApproved
	}
	s.Choice, s.By, s.Decided = choice, by, now.UTC()
	return s
}

// decidable returns how many of tail were shown to the decider, who names hash.
func (s stored) decidable(tail []stored, hash string, choice Choice) (shown int, err error) {
	if s.State != AskPending {
		return 0, fmt.Errorf("%w: it is %s", ErrAskGone, s.State)
	}
	shown, ok := s.shown(tail, hash)
	switch {
	case !ok:
		return 0, ErrHashMismatch
	case !slices.Contains(s.Choices, choice):
		return 0, ErrChoice
	}
	return shown, nil
}
