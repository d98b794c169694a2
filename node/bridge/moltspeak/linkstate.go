package moltspeak

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
)

// links holds the links. MoltSpeak keeps no connection to a peer.
type links struct {
	bridge.LinkSet[*bridge.CalledLink]
	log *slog.Logger
}

// PutLink adds a link, or replaces the one with the same name.
func (b *Bridge) PutLink(l bridge.Link, token client.Credential) error {
	if l.Name == InboundLink {
		return fmt.Errorf("link %s: the name is reserved for peers without a link", l.Name)
	}
	if _, err := message.Endpoint(l.URL); err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	for key, value := range l.Options {
		_, named := message.ParseName(value)
		if valid := key == "peer" && named || key == "reply_ops" && value == "core"; !valid {
			return fmt.Errorf("link %s: the only options are peer: agent@org and reply_ops: core", l.Name)
		}
	}
	b.links.Put(bridge.NewCalledLink(l, token, b.testLink))
	return nil
}

// configured returns the links as they are configured.
func (s *links) configured() (out []bridge.Link) {
	for _, l := range s.All() {
		out = append(out, l.Link)
	}
	return out
}

// RemoveLink removes a link.
func (b *Bridge) RemoveLink(name string) { b.links.Remove(name) }

func (s *links) encryptsAlways(name string) bool {
	l, ok := s.Find(name)
	return ok && l.Policy.Encrypt == encryptAlways
}

// usesCoreOnly reports whether to answer a peer with the nine core operations only, because the public SDKs read no
// others (MS-25). It returns true until the peer uses another operation, and always if the peer's link demands it.
func (s *links) usesCoreOnly(a message.Agent, p peer) bool {
	return !p.AllOps || slices.ContainsFunc(s.All(), func(l *bridge.CalledLink) bool {
		return l.Options["peer"] == a.Name() && l.Options["reply_ops"] == "core"
	})
}

// record sets the status of a link, if there is one with this name, after a call that began then and ended with err.
func (s *links) record(name string, began time.Time, err error) {
	l, ok := s.Find(name)
	if !ok {
		return
	}
	state, text := stateAfter(err), ""
	if state != bridge.LinkUp {
		text = err.Error()
	}
	if before := l.Record(began, state, text); before != bridge.LinkDown && state == bridge.LinkDown {
		s.log.Warn("moltspeak: the link is down until agentmesh links test succeeds or the node restarts", "link", name, "err", err)
	}
}

// stateAfter returns the state of a link after a call that ended with err. A peer that refuses a single message, or
// whose answer we refuse for its content, has answered, so the link is up. A refused token, or a key that either side
// does not accept as the pinned one, takes the link down, because every later call would fail in the same way.
func stateAfter(err error) bridge.LinkState {
	if err == nil || errors.Is(err, client.ErrReplyUnverified) {
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
	if sendErr, ok := errors.AsType[*client.SendError](err); ok && (sendErr.Status == http.StatusUnauthorized || sendErr.Status == http.StatusForbidden) {
		return bridge.LinkDown
	}
	return bridge.LinkConnecting
}

// linkAddress returns the address of all peers behind a link.
func linkAddress(name string) bridge.Address { return bridge.Address{Kind: Kind, Link: name} }

// errorIfDown refuses a delivery over a link that is down. The message waits until `agentmesh links test` succeeds. A
// link that names no peer cannot be tested, so its deliveries go on.
func errorIfDown(l *bridge.CalledLink) error {
	status := l.Status()
	if status.State != bridge.LinkDown || l.Options["peer"] == "" {
		return nil
	}
	return &client.SendError{Retry: true, Awaits: linkAddress(l.Name).String(), Cause: fmt.Errorf("link %s is down (%s); mend it, then: agentmesh links test %s", l.Name, status.Error, l.Name)}
}
