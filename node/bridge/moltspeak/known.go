package moltspeak

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
)

// What strangers use up must not be missing for peers that the owner knows: each has a share of its own of every table
// in memory.
const (
	maxSessions          = 100 // MS-27
	strangersSessions    = 75  // of them, where known peers leave so many
	maxChallenges        = 1000
	strangersChallenges  = maxChallenges / 2
	maxSockets           = 1000
	strangersSockets     = maxSockets * 4 / 10
	unboundSockets       = maxSockets * 2 / 10 // before their hello
	socketsPerPeer       = 4
	maxConsentAsks       = 200
	strangersConsentAsks = maxConsentAsks / 4
	tracked              = 10_000 // names whose rates are known
)

// meet learns what the owner decided about the sender, and refuses one that is blocked: before anything is computed
// for it (MS-50).
func (b *Bridge) meet(c *exchange) *message.Error {
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

// known says whether the sender is no stranger: it stands behind a link, the owner decided about it, or it answers a
// call of ours.
func (c *exchange) known() bool {
	return c.called || c.address.Link != InboundLink || c.standing.Known() || c.peer.Chosen || len(c.peer.Granted) > 0
}
