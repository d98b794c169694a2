package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// member is a participant that the space knows: the owner, the node of this process, or one that is configured or was
// invited. The lock of the space guards it.
type member struct {
	name   string
	id     string                  // its current id in the space; equals name while it is not connected
	own    []capability.Capability // the configured or default capabilities; not used for an invited member
	record *memberRecord           // the part that survives a restart; replaced, never changed

	held  []heldCapability         // all its capabilities; recompute sets this field and the next three
	caps  []*capability.Capability // the capabilities of held, in the same order
	shown wire.Value               // the capabilities that others see, bounded by maxShownCaps and maxNested
	cut   bool                     // shown lacks some of held

	session     *session  // its live connection
	output      *lineFile // its output log; nil for none
	joinedByLog bool      // it is in the space through its output log

	paused      bool
	pausedUntil time.Time   // zero: until another participant resumes it
	down        bool        // shut down until it joins again
	takeovers   []time.Time // new connections of the last minute that replaced another one; see exceedsRate
	refusals    []time.Time // refusals of the last minute that were logged at level info
}

// heldCapability is a capability of a member, with its source.
type heldCapability struct {
	cap   *capability.Capability
	grant *grant // nil for the member's own capability
}

// key returns the key of the capability. If the member grants a part of the capability to others, those grants store
// the key, and end when the member loses the capability (MEW-25).
func (h heldCapability) key() string {
	if h.grant != nil {
		return "grant:" + h.grant.Key + ":" + h.cap.Rule()
	}
	return "own:" + h.cap.Rule()
}

// source returns the source of the capability in the words of the decision log (MEW-D9).
func (h heldCapability) source() string {
	if h.grant != nil {
		return "dynamic"
	}
	return "static"
}

// implicitCapability is a capability that every participant of a drop-in space holds. It cannot be revoked (MEW-D7).
var implicitCapability = mustCapability(`{"id":"mcp-response","kind":"mcp/response"}`)

func mustCapability(text string) capability.Capability {
	v, err := wire.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	c, err := capability.Parse(v)
	if err != nil {
		panic(err)
	}
	return c
}

// ownUnder returns the member's own capabilities if rec is its record. A member that was invited has those of its last
// invite.
func (m *member) ownUnder(rec *memberRecord) []capability.Capability {
	if rec.Invited {
		return rec.own
	}
	return m.own
}

// recompute updates the capabilities of the member. They apply from the next envelope on (MEW-Q1).
func (m *member) recompute(dropIn bool) {
	m.held, m.caps = nil, nil
	own := m.ownUnder(m.record)
	for i := range own {
		if !slices.Contains(m.record.RevokedRules, own[i].Rule()) {
			m.held = append(m.held, heldCapability{cap: &own[i]})
		}
	}
	if dropIn {
		m.held = append(m.held, heldCapability{cap: &implicitCapability})
	}
	for _, g := range m.record.Grants {
		for i := range g.caps {
			m.held = append(m.held, heldCapability{cap: &g.caps[i], grant: g})
		}
	}
	values, size := make([]wire.Value, 0, len(m.held)), 0
	m.cut = false
	for _, h := range m.held {
		m.caps = append(m.caps, h.cap)
		if size += len(h.cap.Value().JSON()); size > maxShownCaps || envelope.Depth(h.cap.Value()) > maxNested {
			m.cut = true
			continue
		}
		values = append(values, h.cap.Value())
	}
	m.shown = wire.Arr(values...)
}

// maxShownCaps is the maximum size, in bytes, of the list of capabilities of a participant in a welcome or a refusal.
const maxShownCaps = 256 << 10

func (m *member) isPresent() bool { return m.session != nil || m.joinedByLog }

// isPaused reports whether the member is paused. It ends a pause whose time has passed.
func (m *member) isPaused(now time.Time) bool {
	if m.paused && !m.pausedUntil.IsZero() && !now.Before(m.pausedUntil) {
		m.paused = false
	}
	return m.paused
}

// info describes the member to other participants.
func (m *member) info() wire.Value { return m.infoWith(m.shown) }

// infoWith works like info, with other capabilities in place of m.shown.
func (m *member) infoWith(capabilities wire.Value) wire.Value {
	return wire.Obj(wire.TextField("id", m.id), wire.Field("capabilities", capabilities))
}
