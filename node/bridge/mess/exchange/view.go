package exchange

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// target resolves a reference for this actor. The id of a suggestion or a question names its thread where nothing else has
// that name: it is an executor's choice, and the requester's own names come before it.
func (t *tx) target(ctx context.Context, re string) (thread.Target, error) {
	return t.targetOf(ctx, re, named{})
}

// targetOf is target for an entry that may be about a suggestion, or about a question.
func (t *tx) targetOf(ctx context.Context, re string, by named) (thread.Target, error) {
	if re == "" {
		re = t.opts.Re
	}
	if re == "" {
		return thread.Target{}, thread.Bad("re", "is required")
	}
	by.view = view{t, ctx}
	to, ok := thread.Resolve(by, re, t.x.id)
	if !ok {
		to, ok = thread.Resolve(by.view, re, t.x.id)
	}
	switch {
	case !ok:
		return thread.Target{}, thread.Missing("re" + thread.Quoted(re) + " names nothing that is there")
	case t.opts.Lax && t.opts.Re != "" && to.Ref != t.opts.Re && !t.among(to):
		return thread.Target{}, thread.Bad("re", "names another thread")
	}
	return to, nil
}

// among says whether a suggestion is about the thread of the call too: it may be answered in each of its threads.
func (t *tx) among(to thread.Target) bool {
	th := t.threads[to.Ref]
	if to.Suggestion == "" || th == nil {
		return false
	}
	s := th.FindSuggestion(to.Suggestion)
	return s != nil && slices.Contains(s.Re, t.opts.Re)
}

// about returns the thread that a reference names.
func (t *tx) about(ctx context.Context, re string) (*thread.Thread, error) {
	to, err := t.target(ctx, re)
	if err != nil {
		return nil, err
	}
	th, err := t.load(ctx, to.Ref)
	if errors.Is(err, store.ErrNotFound) { // a request further down in this block
		return nil, thread.Missing("re" + thread.Quoted(re) + " names nothing that is there")
	}
	return th, err
}

// view is the resolver of one transaction: what its actor may name.
type view struct {
	t   *tx
	ctx context.Context
}

func (v view) HasThread(ref string) bool {
	th, err := v.t.load(v.ctx, ref)
	return err == nil && v.t.x.sees(v.t.who, th)
}

func (v view) SuggestionThread(id string) (string, bool) {
	return v.tagged(id, func(th *thread.Thread) bool { return th.FindSuggestion(id) != nil })
}

func (v view) QuestionThread(id string) (string, bool) {
	return v.tagged(id, func(th *thread.Thread) bool { return th.OpenQuestion(id) != nil })
}

func (v view) tagged(id string, open func(*thread.Thread) bool) (string, bool) {
	for _, ref := range v.t.order { // of this block
		if th := v.t.threads[ref]; th.Requester == v.t.who.ID && open(th) {
			return ref, true
		}
	}
	ref, ok := v.t.x.index.tagged(v.t.who.ID, id)
	if !ok {
		return "", false
	}
	th, err := v.t.load(v.ctx, ref)
	return ref, err == nil && open(th)
}

// NewestWith finds the actor's newest request with a client id; for an executor, the newest that it holds or may claim.
func (v view) NewestWith(id string) (string, bool) {
	if ref, ok := v.t.ids[id]; ok {
		return ref, true
	}
	if ref, ok := v.t.x.index.ownWith(v.t.who.ID, id); ok {
		return ref, true
	}
	c := v.t.x.Executors.get(v.t.who.ID)
	return v.t.x.index.newestWith(id, func(e *entry) bool { return v.t.x.seesEntry(v.t.who, c, e) })
}

func (v view) Newest() (string, bool) {
	if v.t.last != "" {
		return v.t.last, true
	}
	return v.t.x.index.newestOf(v.t.who.ID)
}

// named is a view in which the ids of suggestions, of questions or of both name nothing.
type named struct {
	view
	suggestions, questions bool // name their thread
}

func (v named) SuggestionThread(id string) (string, bool) {
	if !v.suggestions {
		return "", false
	}
	return v.view.SuggestionThread(id)
}

func (v named) QuestionThread(id string) (string, bool) {
	if !v.questions {
		return "", false
	}
	return v.view.QuestionThread(id)
}

// Summary is what a list shows of a thread; [Exchange.Thread] has the rest.
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

// Page is a page of threads. A list is asked for often and over many open threads, so a page is little to collect again.
type Page struct {
	Threads []Summary
	Next    string // where the next page begins; "" for the last one
}

// List returns threads that the actor may see, newest change first (MESS-52). An empty code means all states.
func (x *Exchange) List(ctx context.Context, who Actor, code thread.Code, cursor string, limit int) (Page, error) {
	if err := x.Load(); err != nil {
		return Page{}, err
	}
	after, err := parsePosition(cursor)
	if err != nil {
		return Page{}, err
	}
	name := allThreads
	if code != "" {
		name = "state:" + string(code)
	}
	c := x.Executors.get(who.ID)
	if c == nil && !who.Owner {
		name = "from:" + who.ID // it can only see its own
	}
	list, next := x.index.entries(name, after, limit, func(e *entry) bool {
		return (code == "" || e.status == code) && x.seesEntry(who, c, e)
	})
	page := Page{Threads: make([]Summary, 0, len(list)), Next: next.String()}
	now := time.Now()
	for _, e := range list {
		if s, whole := e.summary(); whole {
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

// Count returns how many threads are in a state, 0 if they cannot be read.
func (x *Exchange) Count(code thread.Code) int {
	if x.Load() != nil {
		return 0
	}
	return x.index.length("state:" + string(code))
}

// Has reports whether a thread is here.
func (x *Exchange) Has(ref string) bool { return x.index.get(ref) != nil }

// Refs returns the threads that keep lets through, the newest change first.
func (x *Exchange) Refs(keep func(ref string) bool) []string {
	refs, _ := x.index.page(allThreads, position{}, math.MaxInt, func(e *entry) bool { return keep(e.ref) })
	return refs
}
