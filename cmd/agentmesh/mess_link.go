package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messLink says whether a link leads to a foreign exchange. It is asked before a request is made: one that is made and
// cannot be sent would stay here, for somebody else to claim.
func messLink(ctx context.Context, a *app, name string) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	raw, err := o.call(ctx, http.MethodGet, "links", nil, nil)
	if err = errors.Join(err, o.close()); err != nil {
		return err
	}
	page, err := decode[items[bridge.LinkStatus]](raw)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(page.Items, func(l bridge.LinkStatus) bool { return l.Name == name && l.Kind == mess.Kind }) {
		return failHint(exitInput, fmt.Errorf("there is no link %s of kind mess", clean(name)), "agentmesh links list")
	}
	return nil
}

// messSendOn sends the threads that an answer acknowledges to the exchange behind a link.
func messSendOn(ctx context.Context, a *app, answer wire.Value, link string) error {
	for _, ref := range ackedRefs(answer) {
		shown, err := messCall(ctx, a, http.MethodGet, "requests/"+url.PathEscape(ref), nil, nil)
		if err != nil {
			return err
		}
		thread, _ := shown.Get("thread")
		if status := thread.GetStr("status"); status != "pending" { // it waits for another request, or for its time
			a.note("%s is %s and was not sent to %s", clean(ref), clean(status), clean(link))
			continue
		}
		o, err := a.owner(ctx)
		if err != nil {
			return err
		}
		_, err = o.call(ctx, http.MethodPost, "mess/send/"+url.PathEscape(ref)+"/"+url.PathEscape(link), nil, struct{}{})
		if err = errors.Join(err, o.close()); err != nil {
			return fmt.Errorf("%s was made and not sent: %w", clean(ref), err)
		}
	}
	return nil
}

// ackedRefs are the threads that a block of acks names: of one request, or of several (MESS-35).
func ackedRefs(answer wire.Value) []string {
	var refs []string
	list, _ := answer.Get("MESS")
	for e := range list.Elems() {
		ack, _ := e.Get("ack")
		requests, several := ack.Get("requests")
		if !several {
			requests = wire.Arr(ack)
		}
		for r := range requests.Elems() {
			if _, made := r.Get("ref"); made {
				refs = append(refs, r.GetStr("ref"))
			}
		}
	}
	return refs
}
