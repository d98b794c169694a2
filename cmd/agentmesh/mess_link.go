package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messRequestTo makes the requests of a block for the exchange behind a link, and for nobody else.
func messRequestTo(ctx context.Context, a *app, out messOut, b thread.Block, link string) error {
	raw, err := messOnce(ctx, a, http.MethodPost, "mess/send/"+url.PathEscape(link), b.Tree().JSON(), nil)
	if err != nil {
		return err
	}
	v, err := wire.Parse(raw)
	if err != nil {
		return fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
	}
	threads, _ := v.Get("threads")
	for t := range threads.Elems() {
		ref, status := clean(t.GetStr("ref")), clean(t.GetStr("status"))
		sent, _ := t.Get("sent")
		later, _ := t.Get("later")
		switch yes, _ := sent.Boolean(); {
		case yes:
		case later.Kind() == wire.True: // it waits for another request, or for its time
			a.note("%s is %s and was not sent to %s yet: it goes there when that is over", ref, status, clean(link))
		default:
			a.note("%s is %s and was not sent to %s", ref, status, clean(link))
		}
	}
	return out.show(a, v.Without("threads"))
}
