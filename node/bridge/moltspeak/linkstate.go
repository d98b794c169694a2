package moltspeak

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
)

// linkState is a link and how it stands.
type linkState struct {
	bridge.Link
	status bridge.LinkStatus
}

// Links returns how the links stand.
func (b *Bridge) Links() []bridge.LinkStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []bridge.LinkStatus{}
	for _, l := range b.cfg.Links {
		out = append(out, b.links[l.Name].status)
	}
	return out
}

func (b *Bridge) link(name string) (bridge.Link, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.links[name]
	if !ok {
		return bridge.Link{}, false
	}
	return l.Link, true
}

// stands records how a call over a link went.
func (b *Bridge) stands(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.links[name]
	if !ok {
		return
	}
	state, text := stateAfter(err), ""
	if state != bridge.LinkUp {
		text = err.Error()
	}
	if state == bridge.LinkDown && l.status.State != bridge.LinkDown {
		b.cfg.Logger.Warn("moltspeak: the link is down until you act", "link", name, "err", err)
	}
	if l.status.State != state {
		l.status.State, l.status.Since = state, time.Now().UTC()
	}
	l.status.Error = text
	l.status.Peers = max(l.status.Peers, 1)
}

// stateAfter returns how a link stands after a call that ended with err. A refusal of one message says nothing about the
// link. A token that is refused, and a key that either side does not take for the one it pinned, end the trying: every later
// call would end in the same way.
func stateAfter(err error) bridge.LinkState {
	if err == nil {
		return bridge.LinkUp
	}
	if f, ok := errors.AsType[message.Fault](err); ok {
		if f.Code == message.CodeAuthFailed {
			return bridge.LinkDown
		}
		return bridge.LinkUp
	}
	if e, ok := errors.AsType[*message.Error](err); ok && e.Code == message.CodeAuthFailed {
		return bridge.LinkDown
	}
	if sent, ok := errors.AsType[*client.SendError](err); ok && (sent.Status == http.StatusUnauthorized || sent.Status == http.StatusForbidden) {
		return bridge.LinkDown
	}
	return bridge.LinkConnecting
}

// downAgain is when a message for a link that is down is looked at again. No call is made while it is.
const downAgain = 10 * time.Minute

// mayCall refuses a delivery over a link that is down. The message waits until a test of the link succeeds.
func (b *Bridge) mayCall(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.links[name]
	if !ok || l.status.State != bridge.LinkDown {
		return nil
	}
	return fmt.Errorf("link %s is down (%s); mend it, then: agentmesh links test %s: %w", name, l.status.Error, name, &client.SendError{Retry: true, After: downAgain})
}
