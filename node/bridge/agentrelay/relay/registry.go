package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
)

// The namespaces of the registered agents, and of the invite codes (AR-36). A removed agent leaves a tombstone, so that
// for a long time nobody gets the id of an agent that others have met (AR-2).
const (
	nsAgents  = "agentrelay/agents"
	nsInvites = "agentrelay/invites"
)

// keepRemoved is how long the id of a removed agent stays taken.
const keepRemoved = 365 * 24 * time.Hour

// member is a registered agent. Its key is its token (AR-5).
type member struct {
	credential.Account
	Trusted bool `json:"trusted,omitempty"` // no rate limit (AR-31)
	Own     bool `json:"own,omitempty"`     // it is the node of this process
}

type registry = credential.Registry[member, *member]

func newRegistry(cfg Config) *registry {
	return credential.NewRegistry[member](credential.Config[*member]{
		Records: cfg.Records, NS: nsAgents, Prefix: "tok_", Mode: cfg.Registration, Max: cfg.MaxAgents, PerHour: cfg.RegistrationsPerHour, Reserve: keepRemoved,
		Invites: credential.Invites{Records: cfg.Records, NS: nsInvites, Name: credential.Hash.String, Max: maxInvites, Forget: true},
	})
}

var errBadID = errors.New("agentrelay: the id is not usable")

// name checks the id that an agent asks for, or chooses one if it asks for none, and sets the time of its registration.
func (r *Relay) name(a *member) error {
	for a.ID == "" {
		if id := "agent-" + strings.ToLower(rand.Text()[:8]); !r.agents.IsTaken(id) {
			a.ID = id
		}
	}
	if !frame.ValidAgentID(a.ID) || a.ID == frame.RelayID {
		return errBadID
	}
	a.Created = r.stamps.registrationTime()
	return nil
}

// markSeen notes that an agent sent a message (AR-42).
func (r *Relay) markSeen(ctx context.Context, id string) {
	a := r.agents.Get(id)
	if a == nil {
		return
	}
	if err := r.agents.MarkSeen(ctx, a, time.Now()); err != nil && !errors.Is(err, credential.ErrUnknown) {
		r.log.Error("cannot store the activity of an agent", "err", err)
	}
}

// register registers an agent for the owner, and returns what the agent connects with.
func (r *Relay) register(ctx context.Context, a member) (frame.Credentials, error) {
	if err := r.name(&a); err != nil {
		return frame.Credentials{}, err
	}
	token, err := r.agents.Add(ctx, &a, "")
	return frame.Credentials{AgentID: a.ID, Token: token}, err
}
