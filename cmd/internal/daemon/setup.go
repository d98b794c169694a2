package daemon

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
)

// setup implements [web.Setup], through which the first-run pages reach the process.
type setup struct{ p *Process }

var _ web.Setup = setup{}

// Profile implements [web.Setup].
func (s setup) Profile() web.Profile {
	cfg, card := s.p.cfg, s.p.node.Card()
	profile := web.Profile{
		Name: card.Name, Owner: cfg.Owner.Name, Zone: cfg.Owner.Zone, Description: cfg.Description, Directories: cfg.Directories, File: s.p.src.File,
		Fresh: card.Name == config.Default().Name && !s.p.src.Sets("name"), // the owner has chosen no name yet
	}
	if absolute, err := filepath.Abs(profile.File); err == nil {
		profile.File = absolute
	}
	for _, key := range []string{"name", "owner.name", "owner.zone", "description", "directories"} {
		if s.p.src.Overrides(key) {
			profile.Fixed = append(profile.Fixed, key)
		}
	}
	return profile
}

// SaveProfile implements [web.Setup].
func (s setup) SaveProfile(_ context.Context, profile web.Profile) error {
	var edits []config.Edit
	for _, e := range []config.Edit{
		{Key: "name", Value: profile.Name}, {Key: "owner.name", Value: profile.Owner}, {Key: "owner.zone", Value: profile.Zone}, {Key: "description", Value: profile.Description},
	} {
		if !s.p.src.Overrides(e.Key) {
			edits = append(edits, e)
		}
	}
	var rewriteErr error // the page shows this error, not the one that apply makes of it
	_, err := configChanger(s).apply("", nil, func() error {
		rewriteErr = configChanger(s).rewrite(edits, profile.Directories)
		return rewriteErr
	}, s.p.dataDir.Path(datadir.FileInvites))
	return cmp.Or(rewriteErr, err)
}

// Programs implements [web.Setup].
func (s setup) Programs() web.Programs {
	programs := web.Programs{DoorUsed: s.p.owner.AgentUsed(), Data: string(s.p.dataDir)}
	if absolute, err := filepath.Abs(programs.Data); err == nil {
		programs.Data = absolute
	}
	for _, h := range s.p.cfg.Hooks {
		if !h.Inbox {
			programs.Hooks = append(programs.Hooks, h.Label())
		}
	}
	return programs
}

// LookUp implements [web.Setup].
func (s setup) LookUp(ctx context.Context, id wire.AgentID) []owner.Found {
	var answers []owner.Found
	for _, d := range s.p.directories {
		record, err := d.Record(ctx, id)
		answer := owner.Found{Directory: d.Base}
		switch {
		case errors.Is(err, client.ErrUnknownAgent):
			continue
		case err != nil:
			answer.Error, answer.Hint = wire.OneLine(err.Error(), 300), client.HintOf(err)
		default:
			answer.Listing.Agents = []wire.Value{record.Card}
			answer.Listing.Verification = map[wire.AgentID]wire.Verification{id: record.Verification}
			if client.CheckCardID(record.Card, time.Now()) != nil {
				answer.Unproven = []wire.AgentID{id}
			}
		}
		answers = append(answers, answer)
	}
	return answers
}

// EchoAddress implements [web.Setup].
func (s setup) EchoAddress() string { return echoAddress.String() }
