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

// The reasons why a decision about an ask, a question to the owner, was not carried out. For an unknown id, the error
// is store.ErrNotFound.
var (
	// ErrAskGone means that the ask is no longer pending: another decision came first, or it was withdrawn or has
	// expired.
	ErrAskGone = errors.New("the approval does not wait any more")
	// ErrHashMismatch means that the ask differs from what the owner saw (AM-34).
	ErrHashMismatch = errors.New("the approval differs from what you were shown; look at it again")
	// ErrNotShown means that the stored content does not match the hash of what the owner saw. The decision had no
	// effect, and the ask still waits (AM-34).
	ErrNotShown = errors.New("what is stored is not what you were shown, so nothing was released; " +
		"stop the node, run agentmesh check, and restore a backup; or reject the question")
	// ErrChoice means that the ask does not offer this choice.
	ErrChoice = errors.New("the approval does not offer this choice")
)

// maxDecideAttempts bounds the attempts of Decide while rows other than the ask change concurrently.
const maxDecideAttempts = 8

// Resolver carries out the owner's decisions about asks of one kind. Resolve must commit d.Changes together with its
// effect, or neither. It checks access again, because rules may have changed since the ask was opened (AM-34). After
// store.ErrConflict, Decide calls Resolve again, unless another decision came first. Any other error leaves the ask
// pending.
type Resolver interface {
	Resolve(ctx context.Context, ask Ask, d Decision) error
}

// Decision is the owner's answer to an ask.
type Decision struct {
	Choice  Choice
	By      string         // the interface that the owner used
	Changes []store.Change // changes that end the ask and the asks in Tail, if they are still pending, and free the slot
	Tail    []Ask          // the asks queued behind this one that are decided with it, in order, in their state after Changes
	Now     time.Time
}

// Asks is the queue of questions that wait for the owner. It is safe for concurrent use after set-up.
type Asks struct {
	records    store.Records
	resolvers  map[string]Resolver
	onDecision func(Ask)
	onOpen     func(Ask) []store.Change // may be nil
	audit      *Audit                   // may be nil

	full atomic.Pointer[fullSlots] // the slots when MakeRoom last found no room; nil if there may be room
}

// NewAsks returns the queue stored in s.
func NewAsks(s store.Store) *Asks {
	return &Asks{records: s.Records(), resolvers: make(map[string]Resolver), onDecision: func(Ask) {}}
}

// Handle sets the resolver of a kind. Call it during set-up, before the first decision.
func (q *Asks) Handle(kind string, r Resolver) { q.resolvers[kind] = r }

// OnDecision sets a function that is called with the decided ask after a decision is committed, but not with the asks
// behind that one. Call OnDecision during set-up.
func (q *Asks) OnDecision(f func(Ask)) { q.onDecision = f }

// OnOpen sets a function whose changes are committed together with a new ask, such as a notice to the owner. Call it
// during set-up.
func (q *Asks) OnOpen(f func(Ask) []store.Change) { q.onOpen = f }

// LogTo sets the audit log. The queue writes an entry for each ask that is opened, decided or withdrawn, in the same
// commit. Call LogTo during set-up.
func (q *Asks) LogTo(a *Audit) { q.audit = a }

// appendEntry appends the change that writes e into the audit log, if there is one.
func (q *Asks) appendEntry(changes []store.Change, e AuditEntry) []store.Change {
	if q.audit == nil {
		return changes
	}
	return append(changes, q.audit.Change(e))
}

// Open returns the ask in its stored form, and the changes that store it and take its slot. The caller commits them
// with its own changes. That fails with store.ErrConflict if the slot is taken, and with store.ErrQuota if Max slots
// are taken. The ask needs a Created time; ID, Expires and Choices have defaults.
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
	s := storedAsk{Ask: ask, Slot: slot.Key, Sources: slot.Sources, Proven: slot.Proven}
	var changes []store.Change
	if slot.Key != "" {
		changes = append(changes, store.Change{Max: slot.Max, Record: s.takenSlot().record(slot.Key, slot.Term, ask.Expires)})
	}
	changes = append(changes, store.Change{Record: s.record()})
	if q.onOpen != nil {
		changes = append(changes, q.onOpen(ask)...)
	}
	return ask, q.appendEntry(changes, ask.auditEntry(AuditHeld, ask.Created))
}

// Get returns an ask, or store.ErrNotFound.
func (q *Asks) Get(ctx context.Context, id string, now time.Time) (Ask, error) {
	s, err := q.get(ctx, id, now)
	return s.Ask, err
}

func (q *Asks) get(ctx context.Context, id string, now time.Time) (storedAsk, error) {
	rec, err := q.records.Get(ctx, AskNamespace, id, now)
	if err != nil {
		return storedAsk{}, fmt.Errorf("read ask: %w", err)
	}
	s, err := decodeAsk(rec)
	s.Ask = s.Ask.at(now)
	return s, err
}

// Due returns the ask of a due record, and the changes that settle what was due: a warning to the owner that the ask will
// expire; its expiry, which the audit log records; or a decision that also covers asks behind this one. An ask expires
// without a write, so nothing else records it.
func (q *Asks) Due(rec store.Record, now time.Time) (ask Ask, expired bool, changes []store.Change, err error) {
	s, err := decodeAsk(rec)
	if err != nil {
		return Ask{}, false, nil, err
	}
	ask = s.at(now)
	s.Warned = true
	expired = ask.State == AskExpired
	s.Settled = ask.State != AskPending
	if expired && s.Displaced.IsZero() { // otherwise the entry was written then
		changes = q.appendEntry(changes, s.auditEntry(AuditExpired, s.Expires))
	}
	return ask, expired, append(changes, s.change()), nil
}

// AskFilter narrows a list. A zero field matches everything.
type AskFilter struct {
	State         AskState
	Subject       string
	IncludeBehind bool // also list asks that are queued behind others
	Newest        bool // in the reverse order, the newest first
}

// List returns at most limit asks in the order of their ids. For the first page, after is "", and for
// every other page, it is the value next of the page before. On the last page, next is "". List skips asks that do not
// match, and reads on until the page is full.
func (q *Asks) List(ctx context.Context, f AskFilter, after string, limit int, now time.Time) (asks []Ask, next string, err error) {
	term := ""
	switch {
	case f.Subject != "":
		term = "subject:" + f.Subject
	case f.IncludeBehind: // no term, because asks behind others have termBehind in place of their state
	case f.State == AskExpired: // perhaps stored as pending
	case f.State != "":
		term = "state:" + string(f.State)
	}
	list := q.records.List
	if f.Newest {
		list = q.records.ListBackward
	}
	for {
		page, err := list(ctx, AskNamespace, term, after, max(limit, 50), now)
		if err != nil {
			return nil, "", fmt.Errorf("list asks: %w", err)
		}
		for _, rec := range page.Records {
			s, err := decodeAsk(rec)
			if err != nil {
				return nil, "", err
			}
			ask := s.Ask.at(now)
			if f.State != "" && ask.State != f.State || !f.IncludeBehind && ask.Behind != "" {
				continue
			}
			if len(asks) == limit {
				return asks, asks[limit-1].ID, nil
			}
			asks = append(asks, ask)
		}
		if after = page.Next; after == "" {
			return asks, "", nil
		}
	}
}

// Withdraw returns the changes that withdraw the pending asks of a conversation for which match returns true (AM-36).
// The changes fail with store.ErrConflict if one of the asks is decided meanwhile.
func (q *Asks) Withdraw(ctx context.Context, conv store.ConvKey, match func(Ask) bool, now time.Time) ([]store.Change, error) {
	return q.withdraw(ctx, convTerm(conv), match, now)
}

// WithdrawAbout is [Asks.Withdraw] for the asks about a matter of a bridge.
func (q *Asks) WithdrawAbout(ctx context.Context, about string, match func(Ask) bool, now time.Time) ([]store.Change, error) {
	return q.withdraw(ctx, aboutTerm(about), match, now)
}

func (q *Asks) withdraw(ctx context.Context, term string, match func(Ask) bool, now time.Time) ([]store.Change, error) {
	var withdrawn []storedAsk
	err := q.forEach(ctx, term, now, func(s storedAsk) {
		if s.at(now).State == AskPending && match(s.Ask) {
			withdrawn = append(withdrawn, s)
		}
	})
	if err != nil {
		return nil, err
	}
	changes, err := q.regroup(ctx, withdrawn, now)
	for _, s := range withdrawn {
		s.State, s.Decided, s.Behind, s.Seq = AskWithdrawn, now.UTC(), "", 0
		changes = q.appendEntry(append(changes, s.change()), s.auditEntry(AuditWithdrawn, now))
	}
	return changes, err
}

// Forget returns the changes that remove every ask of a conversation, decided or not.
func (q *Asks) Forget(ctx context.Context, conv store.ConvKey, now time.Time) ([]store.Change, error) {
	var deletions []store.Change
	var pending []storedAsk
	err := q.forEach(ctx, convTerm(conv), now, func(s storedAsk) {
		deletions = append(deletions, store.Change{Record: store.Record{NS: AskNamespace, Key: s.ID}, IfRev: s.rev, Delete: true})
		if s.at(now).State == AskPending {
			pending = append(pending, s)
		}
	})
	if err != nil {
		return nil, err
	}
	changes, err := q.regroup(ctx, pending, now)
	return append(changes, deletions...), err
}

// forEach calls do for every ask with this index term.
func (q *Asks) forEach(ctx context.Context, term string, now time.Time, do func(storedAsk)) error {
	for s, err := range store.DecodeAll(ctx, q.records, AskNamespace, term, now, decodeAsk) {
		if err != nil {
			return fmt.Errorf("list asks with %s: %w", term, err)
		}
		do(s)
	}
	return nil
}

// Decide carries out the owner's choice about an ask. Of several concurrent decisions exactly one wins, and the others
// get ErrAskGone. hash is the hash of what the owner saw, see [Chain]. An approval applies only to the asks in that
// hash; any other choice also applies to asks that joined since. If the ask is queued behind another, Decide decides
// that other ask. via is the interface that the owner used ("cli"). Decide returns the current ask, even with
// ErrAskGone, ErrHashMismatch or ErrChoice. Any other error comes from the resolver or the store.
func (q *Asks) Decide(ctx context.Context, id, hash string, choice Choice, via string, now time.Time) (Ask, error) {
	return q.Answer(ctx, id, hash, choice, "", via, now)
}

// Answer is [Asks.Decide] with a text that the owner wrote, which the ask keeps.
func (q *Asks) Answer(ctx context.Context, id, hash string, choice Choice, text, via string, now time.Time) (Ask, error) {
	for range maxDecideAttempts {
		s, tail, err := q.group(ctx, id, now)
		if err != nil {
			return Ask{}, err
		}
		shown, err := s.checkDecision(tail, hash, choice)
		if err != nil {
			return s.Ask, err
		}
		resolver := q.resolvers[s.Kind]
		if resolver == nil {
			return s.Ask, fmt.Errorf("decide ask: no resolver for kind %q", s.Kind)
		}
		ending, remaining := tail[:shown], tail[shown:]
		if !choice.Approves() {
			ending, remaining = tail, nil
		}
		d := Decision{Choice: choice, By: via, Changes: s.releaseSlot(remaining), Now: now}
		decided := s.decide(choice, via, now)
		decided.Hash, decided.Waiting, decided.Answer = hash, len(ending), text
		if len(ending) == 0 {
			decided.OwnHash = ""
		}
		d.Changes = q.appendEntry(append(d.Changes, decided.change()), decided.auditEntry(AuditDecided, now))
		for _, t := range ending {
			t = t.decide(choice, via, now)
			d.Changes = q.appendEntry(append(d.Changes, t.change()), t.auditEntry(AuditDecided, now))
			d.Tail = append(d.Tail, t.Ask)
		}
		err = resolver.Resolve(ctx, s.Ask, d)
		if err == nil {
			q.onDecision(decided.Ask)
			return decided.Ask, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			// Perhaps the resolver refused because another decision came first.
			if current, getErr := q.get(ctx, s.ID, now); getErr == nil && current.State != AskPending {
				return current.Ask, fmt.Errorf("%w: it is %s", ErrAskGone, current.State)
			}
			return s.Ask, err
		}
	}
	return Ask{}, fmt.Errorf("decide ask: %w", store.ErrConflict)
}

// decide returns the ask as the decision leaves it.
func (s storedAsk) decide(choice Choice, via string, now time.Time) storedAsk {
	s.State = AskRejected
	if choice.Approves() {
		s.State = AskApproved
	}
	s.Choice, s.By, s.Decided = choice, via, now.UTC()
	return s
}

// checkDecision refuses an invalid decision. tail has the asks queued behind s, and shown is how many of them hash covers.
func (s storedAsk) checkDecision(tail []storedAsk, hash string, choice Choice) (shown int, err error) {
	if s.State != AskPending {
		return 0, fmt.Errorf("%w: it is %s", ErrAskGone, s.State)
	}
	shown, ok := s.countShown(tail, hash)
	switch {
	case !ok:
		return 0, ErrHashMismatch
	case !slices.Contains(s.Choices, choice):
		return 0, ErrChoice
	}
	return shown, nil
}
