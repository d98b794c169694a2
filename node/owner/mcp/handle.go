package mcp

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
)

// handles maps the names that results have in place of ids that a peer chose (THREATS 43) to these ids.
type handles struct{ ids *lru.Cache[string, handled] }

type handled struct{ id, peer string }

// party is an agent: its id or pseudonym, and its address in a foreign network, in the form that people write.
type party struct{ peer, address string }

func newParty(peer, address string) party { return party{peer, shortAddress(address)} }

// keptHandles bounds the names that a process remembers; mesh_inbox gives a forgotten one again.
const keptHandles = 4096

// sharedHandles serves all servers and channels of the process. The names depend only on the ids and their authors.
var sharedHandles = newHandles()

func newHandles() *handles {
	ids, err := lru.New[string, handled](keptHandles)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &handles{ids}
}

// name returns the name of an id in a result.
func (h *handles) name(id untrusted.Text, peer string) string {
	name := id.Handle(peer)
	if name != string(id) {
		h.ids.Add(name, handled{string(id), peer})
	}
	return name
}

// partner returns the name of an agent in the results of every tool: its id, or a handle if the agent chose the id or a
// foreign network names it.
func (h *handles) partner(p party) string {
	id, name := p.address, untrusted.Text(p.address).Handle("")
	if id == "" {
		id, name = p.peer, untrusted.Agent(wire.AgentID(p.peer))
	}
	if name != id {
		h.ids.Add(name, handled{id, p.peer})
	}
	return name
}

// conversation returns the id of a conversation and of its peer for the names that a result had.
func (h *handles) conversation(name, peer string) (id, author string) {
	_, peer = h.find(peer, peer)
	return h.find(name, peer)
}

// find returns the id with a name, and its author. A name that is unknown here is an id.
func (h *handles) find(name, peer string) (id, author string) {
	if found, ok := h.ids.Get(name); ok {
		return found.id, found.peer
	}
	return name, peer
}
