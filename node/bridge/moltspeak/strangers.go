package moltspeak

import (
	"iter"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
)

// The maximum size of each table, and the part that strangers may use, so that they cannot fill a table.
const (
	maxChallenges        = 1000
	strangersChallenges  = maxChallenges / 2
	maxSockets           = 1000
	strangersSockets     = maxSockets * 4 / 10
	unboundSockets       = maxSockets * 2 / 10 // of connections that are not bound
	socketsPerPeer       = 4
	maxConsentAsks       = 200
	strangersConsentAsks = maxConsentAsks / 4
	maxTracked           = 10_000 // names for which rates are counted
)

func count[T any](all iter.Seq[T], matches func(T) bool) (n int) {
	for e := range all {
		if matches(e) {
			n++
		}
	}
	return n
}

// checkStanding reads the owner's decision about the sender. It refuses a blocked sender before costly work (MS-50).
func (b *Bridge) checkStanding(c *request) *message.Error {
	c.address = b.pins.address(c.m.From)
	var err error
	if c.standing, err = b.cfg.Mesh.Standing(c.ctx, c.address.String(), c.now); err != nil {
		return message.Fail(message.CodeInternal).Because(err)
	}
	if c.standing == acl.Blocked {
		return message.Fail(message.CodeCapability)
	}
	return nil
}

// quotas are the message quotas of peers (MS-48).
type quotas struct {
	known     quota.Known
	strangers quota.Strangers // all other peers: they cannot use up the quota of known peers
}

// charge charges one message to its verified sender.
func (q quotas) charge(c *request) *message.Error {
	wait, ok := time.Duration(0), false
	if c.isKnown() {
		wait, ok = q.known.Take(c.m.From.Name(), c.m.From.Org, c.now)
	} else {
		wait, ok = q.strangers.Take(c.m.From.Name(), c.sources, c.now)
	}
	if ok {
		return nil
	}
	e := message.Fail(message.CodeRateLimit)
	e.Delay = wait
	return e
}

// isKnown reports whether the sender is a known peer: it is behind a link, we called it, the owner decided about it, or
// it answers our call.
func (c *request) isKnown() bool {
	return c.answersCall || c.address.Link != InboundLink || c.standing.Known() || c.peer.Chosen || c.peer.GrantedPII
}
