package main

import (
	"context"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messSendToLink sends the requests in a block only to the exchange behind a link.
func messSendToLink(ctx context.Context, a *app, b thread.Block, link string) error {
	v, err := messCallIdempotent(ctx, a, http.MethodPost, "mess/send/"+url.PathEscape(link), b.Tree().JSON(), "")
	if err != nil {
		return err
	}
	state, err := a.findLink(ctx, link)
	if err == nil && state.State != bridge.LinkUp { // if findLink fails, only this note is missing
		a.Note("the link %s is %s, so nothing was sent yet; the requests are sent when the link is up", terminal.Clean(link), state.State)
	}
	threads, _ := v.Get("threads")
	for t := range threads.Elems() {
		ref, status := terminal.Clean(t.GetStr("ref")), terminal.Clean(t.GetStr("status"))
		sent, _ := t.Get("sent")
		later, _ := t.Get("later")
		switch isSent, _ := sent.Boolean(); {
		case isSent:
		case later.Kind() == wire.True: // the request waits for another request, or is scheduled for later
			a.Note("%s is %s and not yet sent to %s: it is sent when it no longer has to wait", ref, status, terminal.Clean(link))
		default:
			a.Note("%s is %s and was not sent to %s", ref, status, terminal.Clean(link))
		}
	}
	return a.showMess(v.Without("threads"), nil)
}
