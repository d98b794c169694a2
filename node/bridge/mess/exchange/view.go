package exchange

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// resolve resolves a reference of this actor (MESS-6). It tries the client ids of requests before the ids of
// suggestions and questions: executors choose the latter, and could otherwise hide a request. For an entry that may be
// about a suggestion or a question, preferred selects the ids that come before the client ids.
func (t *tx) resolve(ctx context.Context, re string, preferred tagKinds) (thread.Target, error) {
	if re = cmp.Or(re, t.opts.Re); re == "" {
		return thread.Target{}, thread.Bad("re", "is required")
	}
	to, ok := thread.Resolve(view{t, ctx, preferred}, re, t.x.id)
	if !ok {
		to, ok = thread.Resolve(view{t, ctx, allTags}, re, t.x.id)
	}
	switch {
	case !ok:
		return thread.Target{}, newUnknownNameError(re)
	case t.opts.Lax && t.opts.Re != "" && to.Ref != t.opts.Re && !isAbout(t.threads[to.Ref], to.Suggestion, t.opts.Re):
		return thread.Target{}, thread.Bad("re", "must not name another thread")
	}
	return to, nil
}

// isAbout reports whether a suggestion of th is also about the thread ref, and so may be answered there.
func isAbout(th *thread.Thread, suggestion, ref string) bool {
	if suggestion == "" || th == nil {
		return false
	}
	s := th.FindSuggestion(suggestion)
	return s != nil && slices.Contains(s.Re, ref)
}

// resolveThread returns the thread that a reference names, and what else the reference names (see [tx.resolve]).
func (t *tx) resolveThread(ctx context.Context, re string, preferred tagKinds) (*thread.Thread, thread.Target, error) {
	to, err := t.resolve(ctx, re, preferred)
	if err != nil {
		return nil, to, err
	}
	th, err := t.load(ctx, to.Ref)
	return th, to, explainMissing(err, re)
}

func newUnknownNameError(re string) error {
	return thread.Missing("re" + thread.QuoteName(re) + " names nothing here")
}

// explainMissing returns a refusal instead of [store.ErrNotFound], because re then names a later request of the block.
func explainMissing(err error, re string) error {
	if errors.Is(err, store.ErrNotFound) {
		return newUnknownNameError(re)
	}
	return err
}

// view resolves references to threads that the actor of one transaction may name.
type view struct {
	t   *tx
	ctx context.Context
	tagKinds
}

// tagKinds selects tags, the ids of open suggestions and questions. A selected tag may be used as a name of its thread.
type tagKinds struct{ suggestions, questions bool }

var (
	threadsFirst = tagKinds{} // prefers no tags
	allTags      = tagKinds{suggestions: true, questions: true}
)

// find returns a thread that the block may change, or nil if it does not exist. A failure of the store fails the block:
// otherwise the answer to the sender would be that the thread does not exist.
func (v view) find(ref string) *thread.Thread {
	th, err := v.t.load(v.ctx, ref)
	v.t.err = cmp.Or(v.t.err, IgnoreMissing(err))
	return th
}

func (v view) HasThread(ref string) bool {
	th := v.find(ref)
	return th != nil && v.t.x.canSee(v.t.who, th)
}

func (v view) SuggestionThread(id string) (string, bool) {
	return v.findByTag(id, v.suggestions, func(th *thread.Thread) bool { return th.FindSuggestion(id) != nil })
}

func (v view) QuestionThread(id string) (string, bool) {
	return v.findByTag(id, v.questions, func(th *thread.Thread) bool { return th.OpenQuestion(id) != nil })
}

// findByTag returns the thread of the actor in which the suggestion or question id is open, as isOpen reports. It
// returns false if these ids are not selected.
func (v view) findByTag(id string, selected bool, isOpen func(*thread.Thread) bool) (string, bool) {
	if !selected {
		return "", false
	}
	for _, ref := range v.t.changedRefs { // of this block
		if th := v.t.threads[ref]; th.Requester == v.t.who.ID && isOpen(th) {
			return ref, true
		}
	}
	ref, ok := v.t.x.index.threadByTag(v.t.who.ID, id)
	if !ok {
		return "", false
	}
	th := v.find(ref)
	return ref, th != nil && isOpen(th)
}

// NewestWith returns the actor's newest request with a client id. If the actor made none, it returns the newest one
// that the actor may see: for an executor, one that it holds or may claim.
func (v view) NewestWith(id string) (string, bool) {
	if ref, ok := v.t.ids[id]; ok {
		return ref, true
	}
	if ref, ok := v.t.x.index.ownByClientID(v.t.who.ID, id); ok {
		return ref, true
	}
	c := v.t.x.Executors.Find(v.t.who.ID)
	return v.t.x.index.newestByClientID(id, func(e *entry) bool { return v.t.x.canSeeEntry(v.t.who, c, e) })
}

func (v view) Newest() (string, bool) {
	if v.t.lastRequest != "" {
		return v.t.lastRequest, true
	}
	return v.t.x.index.newestOf(v.t.who.ID)
}

// Summary is what a list shows of a thread; [Exchange.Thread] returns the rest.
type Summary struct {
	Ref, ClientID, Requester, Holder string
	Status                           thread.Code
	Intent, Priority                 string
	Created, Updated                 time.Time
}

// Summarize returns the summary of a thread.
func Summarize(t *thread.Thread) Summary {
	return Summary{t.Ref, t.ClientID, t.Requester, t.Holder, t.Status, t.Intent, t.Priority, t.Created, t.Updated}
}

// Page is a page of threads.
type Page struct {
	Threads []Summary
	Next    string // position of the next page; "" on the last one
}

// List returns threads that the actor may see, the newest change first (MESS-52). An empty code means all states. start
// is Page.Next of the previous page, or "" for the first.
func (x *Exchange) List(ctx context.Context, who Actor, code thread.Code, start string, limit int) (Page, error) {
	return x.list(ctx, who, code, start, limit, func(*entry) bool { return true })
}

// list works like List, but skips the threads that do not pass keep.
func (x *Exchange) list(ctx context.Context, who Actor, code thread.Code, start string, limit int, keep func(*entry) bool) (Page, error) {
	if err := x.Load(); err != nil {
		return Page{}, err
	}
	after, err := parsePosition(start)
	if err != nil {
		return Page{}, err
	}
	name := allThreads
	if code != "" {
		name = "state:" + string(code)
	}
	c := x.Executors.Find(who.ID)
	if c == nil && !who.Owner && x.index.length("held:"+who.ID) == 0 {
		name = "from:" + who.ID // only its own threads
	}
	list, next := x.index.entries(name, after, limit, func(e *entry) bool {
		return (code == "" || e.status.Value() == code) && x.canSeeEntry(who, c, e) && keep(e)
	})
	page := Page{Threads: make([]Summary, 0, len(list)), Next: next.String()}
	now := time.Now()
	for _, e := range list {
		if s, complete := e.summary(); complete {
			page.Threads = append(page.Threads, s)
			continue
		}
		t, err := x.Read(ctx, e.ref, now)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return Page{}, err
		}
		page.Threads = append(page.Threads, Summarize(t))
	}
	return page, nil
}

// Count returns the number of threads in a state, or 0 if the exchange cannot be loaded.
func (x *Exchange) Count(code thread.Code) int {
	if x.Load() != nil {
		return 0
	}
	return x.index.length("state:" + string(code))
}

// Has reports whether the exchange has a thread.
func (x *Exchange) Has(ref string) bool { return x.index.get(ref) != nil }

// Refs returns the threads that pass keep, the newest change first.
func (x *Exchange) Refs(keep func(ref string) bool) []string {
	return x.index.refs(allThreads, math.MaxInt, func(e *entry) bool { return keep(e.ref) })
}
