package daemon

import (
	"context"
	"os"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Where says what runs where.
type Where struct {
	PID       int          `json:"pid"`
	Profile   string       `json:"profile"`
	Address   string       `json:"address"` // of the listener
	URL       string       `json:"url"`     // under which others reach it
	Directory string       `json:"directory,omitempty"`
	Endpoint  string       `json:"endpoint,omitempty"`
	AgentID   wire.AgentID `json:"agent_id,omitempty"`
	Name      string       `json:"name,omitempty"`
	Data      string       `json:"data"`
	Socket    string       `json:"owner_socket"`
	OwnerAPI  string       `json:"owner_api,omitempty"`
}

// where returns what runs where once it works.
func (p *Process) where(ctx context.Context, address, base string) (Where, error) {
	p.awaitListed(ctx)
	w := Where{PID: os.Getpid(), Profile: "local", Address: address, URL: base, Data: string(p.home)}
	if p.cfg.Public() {
		w.Profile = "public"
	}
	if p.registry != nil {
		w.Directory = base + "/v1"
	}
	if p.node != nil {
		card := p.node.Card()
		w.Endpoint, w.AgentID, w.Name = card.Endpoint, card.ID, card.Name
	}
	if addr := p.owner.Addr(); addr != nil {
		w.OwnerAPI = "http://" + addr.String()
	}
	var err error
	w.Socket, err = httpapi.OwnerSocket(string(p.home))
	return w, err
}

// listedWithin is how long start-up waits for the node's own directory to list it.
const listedWithin = 5 * time.Second

// awaitListed waits until the process's own directory lists its node, so that what is printed works when pasted.
func (p *Process) awaitListed(ctx context.Context) {
	if p.node == nil || p.registry == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listedWithin)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := p.store.Cards().Get(ctx, string(p.node.ID()), time.Now()); err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
