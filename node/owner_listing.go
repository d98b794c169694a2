package node

import (
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Card implements [owner.Listings].
func (o OwnerAPI) Card() wire.Card { return o.n.Card() }

// RegisterIn implements [owner.Listings].
func (o OwnerAPI) RegisterIn(ctx context.Context, in owner.Register, by string) ([]Listing, error) {
	do, what := o.n.Register, "register"
	if in.Adopt {
		do, what = o.n.Adopt, "register and adopt the id that the directory assigns"
	}
	if err := o.auditListing(ctx, what, in.Directory, by); err != nil {
		return nil, err
	}
	before := o.n.ID()
	listings, err := do(ctx, in.Directory)
	if err == nil && o.n.ID() != before {
		err = o.auditListing(ctx, "the agent id was "+string(before), in.Directory, by)
	}
	return listings, err
}

// WithdrawFrom implements [owner.Listings].
func (o OwnerAPI) WithdrawFrom(ctx context.Context, in owner.Withdraw, by string) ([]Listing, error) {
	if err := o.auditListing(ctx, "withdraw", in.Directory, by); err != nil {
		return nil, err
	}
	return o.n.Withdraw(ctx, in.Directory)
}

// auditListing writes an audit line about a change of the node's registrations by the owner.
func (o OwnerAPI) auditListing(ctx context.Context, what, directory, by string) error {
	return o.n.audit.Add(ctx, acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditRegistration, Subject: string(o.n.ID()), By: by, Note: what, Rule: wire.OneLine(directory, 200),
	})
}

// RotateKey implements [owner.Listings].
func (o OwnerAPI) RotateKey(ctx context.Context, by string) ([]Listing, error) {
	listings, err := o.n.RotateKey(ctx)
	if err != nil {
		return nil, err
	}
	return listings, o.n.audit.Add(ctx, acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditKey, Subject: string(o.n.ID()), By: by, Note: "our key was rotated", Digest: o.n.fingerprint(),
	})
}

// Discover implements [owner.Listings].
func (o OwnerAPI) Discover(ctx context.Context, directory string, q client.Query) ([]owner.Found, error) {
	directories, err := o.n.registrar.Directories(directory)
	if err != nil {
		return nil, err
	}
	answers := make([]owner.Found, len(directories))
	var all sync.WaitGroup
	for i, d := range directories {
		all.Go(func() {
			answer := owner.Found{Directory: d.Base}
			listing, err := d.Search(ctx, q)
			if err != nil {
				answer.Error, answer.Hint = wire.OneLine(err.Error(), 300), client.HintOf(err)
			}
			answer.Listing = listing
			for _, card := range listing.Agents {
				if client.CheckCardID(card, time.Now()) != nil {
					answer.Unproven = append(answer.Unproven, wire.AgentID(card.GetStr("agent_id")))
				}
			}
			answers[i] = answer
		})
	}
	all.Wait()
	return answers, nil
}
