package gateway

import (
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

// maxMembers bounds the participants of a space.
const maxMembers = 20_000

// members holds the participants that a space knows. The lock of the space guards it.
type members struct {
	space  string
	dropIn bool // everybody holds mcp/response (MEW-D7)
	byName map[string]*member
	byID   map[string]*member // by current id, if it differs from the name
	owner  *member            // the owner; nil in a drop-in space
	node   *member            // the node of this process; nil if it takes no part
}

func (ms *members) add(name string, own []capability.Capability) *member {
	m := &member{name: name, id: name, own: own, record: newMemberRecord(ms.space, name)}
	m.recompute(ms.dropIn)
	ms.byName[name] = m
	return m
}

// find returns the participant with a name or a current id, or nil (MEW-22, MEW-J7).
func (ms *members) find(id string) *member {
	if m := ms.byName[id]; m != nil {
		return m
	}
	return ms.byID[id]
}

// findAll returns the known participants to whom an envelope is addressed, each once.
func (ms *members) findAll(to []string) []*member {
	var out []*member
	for _, id := range to {
		if m := ms.find(id); m != nil && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// checkID refuses an id that m cannot use.
func (ms *members) checkID(m *member, id string) *envelope.Refusal {
	if !envelope.IsName(id) {
		return envelope.RefuseToken("The participant id cannot be used")
	}
	if other := ms.find(id); other != nil && other != m {
		return envelope.RefuseToken("The participant id belongs to another participant")
	}
	return nil
}

// rename gives m another current id.
func (ms *members) rename(m *member, id string) {
	if m.id != m.name {
		delete(ms.byID, m.id)
	}
	m.id = id
	if id != m.name {
		ms.byID[id] = m
	}
}
