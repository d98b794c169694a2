package mess

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Page is a page of threads: ref, who, state, intent, priority and times of each; [Exchange.Thread] has the rest.
type Page struct {
	Threads []*Thread
	Next    position
}

// List returns threads that the actor may see, newest change first (MESS-52). An empty code means all states.
func (x *Exchange) List(ctx context.Context, who Actor, code Code, after position, limit int) (Page, error) {
	if err := x.load(); err != nil {
		return Page{}, err
	}
	name := allThreads
	if code != "" {
		name = "state:" + string(code)
	}
	c := x.crew.get(who.ID)
	if c == nil && !who.Owner {
		name = "from:" + who.ID // it can only see its own
	}
	list, next := x.index.entries(name, after, limit, func(e *entry) bool {
		return (code == "" || e.status == code) && x.seesEntry(who, c, e)
	})
	page := Page{Next: next}
	now := time.Now()
	for _, e := range list {
		t, whole := e.summary()
		if whole {
			page.Threads = append(page.Threads, t)
			continue
		}
		t, err := x.read(ctx, e.ref, now)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return Page{}, err
		}
		page.Threads = append(page.Threads, t)
	}
	return page, nil
}
