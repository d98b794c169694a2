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

// linkState is a link with its status.
type linkState struct {
	bridge.Link
	status bridge.LinkStatus
}

// Links returns the status of each link.
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

// recordLink records the result of a call over a link.
func (b *Bridge) recordLink(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.links[name]
	if !ok {
		return
	}
	state, text := stateAfter(err), ""
	if state == bridge.LinkUp {
		l.status.Peers = 1
	} else {
		text = err.Error()
	}
	if state == bridge.LinkDown && l.status.State != bridge.LinkDown {
		b.cfg.Logger.Warn("moltspeak: the link is down until you act", "link", name, "err", err)
	}
	l.status.Set(state, text)
}

// stateAfter returns the state of a link after a call that ended with err. A peer that refuses a single message has
// answered, so the link is up. A refused token, or a key that either side does not accept as the pinned one, takes the
// link down, because every later call would fail in the same way.
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

// downAgain is the time after which the outbox tries again to deliver a message whose link is down. While a link is
// down, only a test makes calls over it.
const downAgain = 10 * time.Minute

// checkLink refuses a delivery over a link that is down. The message waits until a test of the link succeeds.
func (b *Bridge) checkLink(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.links[name]
	if !ok || l.status.State != bridge.LinkDown {
		return nil
	}
	return &client.SendError{Retry: true, After: downAgain, Cause: fmt.Errorf("link %s is down (%s); mend it, then: agentmesh links test %s", name, l.status.Error, name)}
}
