package link

import (
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsPeers      = "agentrelay/peers"
	maxPeersSeen = 10_000
	maxPeersKept = 1000 // records
	maxSkills    = 16
)

// Peer is the stored record of an agent behind a link: a decision of the owner.
type Peer struct {
	Peer  string       `json:"peer"`               // its id on the relay
	Agent wire.AgentID `json:"agent_id,omitempty"` // the agent of the mesh that this peer is
}

// peers holds what a link knows about the agents behind it: the ids that it saw, with the skills that they announced,
// and stored records.
type peers struct {
	records store.Records
	link    string

	mu     sync.Mutex
	skills map[string][]string // by id; an agent that announced none has an empty entry
}

func (p *peers) addSeen(peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.skills[peer]; !known && len(p.skills) < maxPeersSeen {
		p.skills[peer] = nil
	}
}

func (p *peers) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.skills)
}

// noteSkills handles the frame in which a peer announces its skills, which are unproven.
func (p *peers) noteSkills(h *incoming) {
	skills, _ := h.payload.Get("skills")
	list, _ := frame.ReadKeywords(skills) // nil if it is not valid
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.skills[h.from]; known {
		p.skills[h.from] = list[:min(len(list), maxSkills)]
	}
}

func (p *peers) recordKey(peer string) string { return p.link + "/" + peer }

func (p *peers) all(ctx context.Context) (map[string]Peer, error) {
	out := make(map[string]Peer)
	for peer, err := range store.DecodeAll(ctx, p.records, nsPeers, "link:"+p.link, time.Now(), store.Decode[Peer]) {
		if err != nil {
			return nil, err
		}
		out[peer.Peer] = peer
	}
	return out, nil
}

// put stores what the owner says about a peer, or deletes the record if the owner names no agent.
func (p *peers) put(ctx context.Context, peer Peer) error {
	rec := store.Record{
		NS: nsPeers, Key: p.recordKey(peer.Peer), Body: wire.MustMarshal(peer), Terms: []string{"link:" + p.link, "agent:" + string(peer.Agent)},
	}
	return p.records.Apply(ctx, []store.Change{{Record: rec, IfRev: store.Any, Max: maxPeersKept, Delete: peer.Agent == ""}}, time.Now())
}
