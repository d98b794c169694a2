package mess

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Summary is what a list shows of a thread; [Exchange.Thread] has the rest.
type Summary struct {
	Ref, ClientID, Requester, Holder string
	Status                           thread.Code
	Intent, Priority                 string
	Created, Updated                 time.Time
}

func summarize(t *thread.Thread) Summary {
	return Summary{t.Ref, t.ClientID, t.Requester, t.Holder, t.Status, t.Intent, t.Priority, t.Created, t.Updated}
}

// Page is a page of threads. A list is asked for often and over many open threads, so a page is little to collect again.
type Page struct {
	Threads []Summary
	Next    position
}

// List returns threads that the actor may see, newest change first (MESS-52). An empty code means all states.
func (x *Exchange) List(ctx context.Context, who Actor, code thread.Code, after position, limit int) (Page, error) {
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
	page := Page{Threads: make([]Summary, 0, len(list)), Next: next}
	now := time.Now()
	for _, e := range list {
		if s, whole := e.summary(); whole {
			page.Threads = append(page.Threads, s)
			continue
		}
		t, err := x.read(ctx, e.ref, now)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return Page{}, err
		}
		page.Threads = append(page.Threads, summarize(t))
	}
	return page, nil
}
