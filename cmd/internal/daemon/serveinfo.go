package daemon

import (
	"context"
	"os"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ServeInfo tells the user what serve runs, and at which addresses.
type ServeInfo struct {
	PID       int          `json:"pid"`
	Profile   string       `json:"profile"`
	Address   string       `json:"address"` // of the listener
	URL       string       `json:"url"`     // base URL under which others reach the listener
	Directory string       `json:"directory,omitempty"`
	Endpoint  string       `json:"endpoint,omitempty"`
	AgentID   wire.AgentID `json:"agent_id,omitempty"`
	Name      string       `json:"name,omitempty"`
	Data      string       `json:"data"`
	Socket    string       `json:"owner_socket"`
	OwnerAPI  string       `json:"owner_api,omitempty"`
	// SignIn opens the owner's page and makes a code to sign in, while the process serves.
	SignIn func() (httpapi.SignIn, error) `json:"-"`
}

// serveInfo calls awaitRegistration, and then describes this process, which serves.
func (p *Process) serveInfo(ctx context.Context, address, base string) ServeInfo {
	p.awaitRegistration(ctx)
	info := ServeInfo{
		PID: os.Getpid(), Profile: p.cfg.Profile(), Address: address, URL: base, Data: string(p.dataDir), Socket: httpapi.OwnerSocket(string(p.dataDir)), SignIn: p.owner.SignIn,
	}
	if p.registry != nil {
		info.Directory = base + "/v1"
	}
	if p.node != nil {
		card := p.node.Card()
		info.Endpoint, info.AgentID, info.Name = card.Endpoint, card.ID, card.Name
	}
	if addr := p.owner.Addr(); addr != nil {
		info.OwnerAPI = "http://" + addr.String()
	}
	return info
}

// registrationWait is the longest wait of awaitRegistration.
const registrationWait = 5 * time.Second

// awaitRegistration waits until the directory of this process lists the node, so that the user can paste the commands
// that serve prints. It waits no longer than registrationWait, because a node may join only other directories.
func (p *Process) awaitRegistration(ctx context.Context) {
	if p.node == nil || p.registry == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, registrationWait)
	defer cancel()
	isListed := func() bool {
		_, err := p.store.Cards().Get(ctx, string(p.node.ID()), time.Now())
		return err == nil
	}
	for !isListed() && waiting.Pause(ctx, 10*time.Millisecond) {
	}
}
