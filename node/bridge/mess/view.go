package mess

import (
	"context"
	"errors"
	"slices"

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
	c := v.t.x.crew.get(v.t.who.ID)
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
