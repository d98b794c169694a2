package directory

import (
	"context"
	"net/netip"

	"github.com/agentmesh/agentmesh/directory/a2arelay"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// newCallRelay returns the service that takes A2A calls for the agents whose mailbox is here.
func newCallRelay(r *Registry) *a2arelay.Service {
	find := func(ctx context.Context, id wire.AgentID) (wire.Card, store.Card, error) {
		held, err := listing.Get(ctx, r.cards, id, wire.Now())
		if err != nil {
			return wire.Card{}, held, err
		}
		card, err := listing.ParseCard(held)
		if err == nil && !r.ownsMailbox(card) {
			err = wire.ErrNoAgent
		}
		return card, held, err
	}
	return a2arelay.New(a2arelay.Config{
		BaseURL: r.cfg.BaseURL, Records: r.recs, Addresses: r.cfg.Addresses, ParseKey: r.keys.Parse,
		Secret: func(ctx context.Context) ([]byte, error) { return r.cursors.Get(ctx) },
		Agent:  find,
		CheckBan: func(ctx context.Context, client netip.Addr) error {
			return r.bans.Check(ctx, "", nil, "", client, wire.Now())
		},
		Queue: func(ctx context.Context, m mailbox.Mail, call []byte, changes []store.Change) (string, error) {
			_, held, err := find(ctx, m.Box)
			if err != nil {
				return "", err
			}
			m.Created = wire.Now()
			return r.countOutcome(keepMail(context.WithoutCancel(ctx), r, m, held.Owner, call, func(string) []store.Change { return changes }))
		},
	})
}
