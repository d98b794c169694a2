package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/wire"
)

// member is a participant that the space knows: configured, or invited. All of it belongs to the lock of its space.
type member struct {
	name    string
	runtime string                  // the id it goes by; its name while it is not connected
	own     []capability.Capability // of the configuration, or the defaults; an invited one has its own in lasting
	lasting *lasting                // what survives a restart; replaced, never changed

	held  []held
	caps  []*capability.Capability // of held, in its order
	shown wire.Value               // of held, as others see it: the first maxShownCaps bytes
	cut   bool                     // shown lacks some

	session   *session  // its live connection
	output    *lineFile // its output log
	virtualOn bool      // the log takes part

	paused      bool
	pausedUntil time.Time // zero: until somebody resumes it
	down        bool      // shut down until it joins again
	takeovers   []time.Time
	refusals    []time.Time
}

// held is a capability that counts, and why.
type held struct {
	cap   *capability.Capability
	grant *grant // nil for one of its own
	fixed bool   // cannot be revoked (MEW-D7)
}

// key names what a grant can rest on (MEW-25).
func (h held) key() string {
	if h.grant != nil {
		return "grant:" + h.grant.Key + ":" + h.cap.Rule()
	}
	return "own:" + h.cap.Rule()
}

// source is how the decision log calls it (MEW-D9).
func (h held) source() string {
	if h.grant != nil {
		return "dynamic"
	}
	return "static"
}

// implicit is what every participant of a drop-in space holds (MEW-D7).
var implicit = mustCapability(`{"id":"mcp-response","kind":"mcp/response"}`)

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

// recompute finds what the member holds now. It acts from the next envelope on (MEW-Q1).
func (m *member) recompute(dropIn bool) {
	m.held, m.caps = nil, nil
	own := m.own
	if m.lasting.Invited {
		own = m.lasting.own
	}
	for i := range own {
		if !slices.Contains(m.lasting.Masks, own[i].Rule()) {
			m.held = append(m.held, held{cap: &own[i]})
		}
	}
	if dropIn {
		m.held = append(m.held, held{cap: &implicit, fixed: true})
	}
	for _, g := range m.lasting.Grants {
		for i := range g.caps {
			m.held = append(m.held, held{cap: &g.caps[i], grant: g})
		}
	}
	values, size := make([]wire.Value, 0, len(m.held)), 0
	m.cut = false
	for _, h := range m.held {
		m.caps = append(m.caps, h.cap)
		if size += len(h.cap.Value().JSON()); size > maxShownCaps {
			m.cut = true
			continue
		}
		values = append(values, h.cap.Value())
	}
	m.shown = wire.Arr(values...)
}

// maxShownCaps bounds the capabilities that others see of a participant, and that a refusal lists.
const maxShownCaps = 256 << 10

// present says whether the member is in the space now.
func (m *member) present() bool { return m.session != nil || m.virtualOn }

// isPaused says whether a pause holds; one that has run out is over.
func (m *member) isPaused(now time.Time) bool {
	if m.paused && !m.pausedUntil.IsZero() && !now.Before(m.pausedUntil) {
		m.paused = false
	}
	return m.paused
}

// info is the member as others see it.
func (m *member) info() wire.Value { return m.infoWith(m.shown) }

func (m *member) infoWith(capabilities wire.Value) wire.Value {
	return wire.Obj(wire.TextField("id", m.runtime), wire.Field("capabilities", capabilities))
}
