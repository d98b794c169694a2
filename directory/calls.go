package directory

import (
	"context"
	"net/netip"

	"github.com/agentmesh/agentmesh/directory/a2arelay"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// newCallRelay returns the service that takes A2A calls for the agents whose mailbox is here.
func newCallRelay(r *Registry) *a2arelay.Service {
	return a2arelay.New(a2arelay.Config{
		BaseURL: r.cfg.BaseURL, Records: r.recs, Addresses: r.cfg.Addresses, ParseKey: r.keys.Parse,
		Secret: r.cursors.Get,
		Agent:  r.relay.Agent,
		CheckBan: func(ctx context.Context, client netip.Addr) error {
			return r.bans.Check(ctx, "", nil, "", client, wire.Now())
		},
		Queue: func(ctx context.Context, m mailbox.Mail, call []byte, changes []store.Change) (string, error) {
			_, held, err := r.relay.Agent(ctx, m.Box)
			if err != nil {
				return "", err
			}
			m.Created = wire.Now()
			return r.relay.Queue(ctx, m, held.Owner, call, changes)
		},
	})
}
