package config

import (
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/wire"
)

// MEW configures the MEW spaces that this process hosts: GET /ws and /participants* on the listener. Without a space
// the process serves no MEW routes.
type MEW struct {
	// The spaces.
	Spaces []MEWSpace `key:"spaces"`
	// Origins of web pages that may connect and call, besides the listener's own origin.
	Origins []string `key:"origins"`
}

// MEWSpace is one space. A participant can only grant rights that it has itself. You are the participant named owner.
type MEWSpace struct {
	// A unique id. Clients name it in /ws?space=.
	ID string `key:"id"`
	// The displayed name.
	Name string `key:"name"`
	// The participants that may join, besides those that you invite with agentmesh mew invite.
	Participants []MEWParticipant `key:"participants"`
	// Capabilities of participants without a list of their own: a kind such as mcp/proposal, or a pattern as JSON.
	Defaults []string `key:"defaults"`
	// Envelopes and frames of streams, counted together, that each participant may send per minute. 0: no limit.
	RatePerMinute int `key:"rate_per_minute"`
}

// MEWParticipant is one participant of a space.
type MEWParticipant struct {
	// The participant's name in the space.
	Name string `key:"name"`
	// The messages that the participant may send: kinds, or patterns as JSON. Empty: the defaults of the space.
	// Danger: capability/grant, space/invite and space/kick let the participant decide about others.
	Capabilities []string `key:"capabilities"`
	// File with the participant's token. Without a file, the participant cannot join until you invite it.
	TokenFile string `key:"token_file"`
}

func (c MEW) check(p *problems) {
	for i, s := range c.Spaces {
		key := fmt.Sprintf("mew.spaces[%d]", i)
		if s.ID == "" {
			p.add(key+".id", "must not be empty")
		}
		if _, err := parseCapabilities(s.Defaults); err != nil {
			p.add(key+".defaults", err.Error())
		}
		for j, participant := range s.Participants {
			key := fmt.Sprintf("%s.participants[%d]", key, j)
			if participant.Name == "" {
				p.add(key+".name", "must not be empty")
			}
			if _, err := parseCapabilities(participant.Capabilities); err != nil {
				p.add(key+".capabilities", err.Error())
			}
		}
	}
}

func parseCapabilities(list []string) ([]capability.Capability, error) {
	var out []capability.Capability
	for _, s := range list {
		v := wire.Text(s)
		if strings.HasPrefix(s, "{") {
			var err error
			if v, err = wire.ParseForeign([]byte(s), wire.MaxDepth, wire.MaxValues); err != nil {
				return nil, fmt.Errorf("%s: %w", s, err)
			}
		}
		c, err := capability.Parse(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// LoadMEWSpace returns the configuration of a space with the tokens of its participants, which it reads from files.
func (s Source) LoadMEWSpace(c MEWSpace) (gateway.SpaceConfig, error) {
	out := gateway.SpaceConfig{ID: c.ID, Name: c.Name, RatePerMinute: c.RatePerMinute}
	var err error
	if out.Defaults, err = parseCapabilities(c.Defaults); err != nil {
		return out, err
	}
	for _, p := range c.Participants {
		participant := gateway.Participant{Name: p.Name}
		if participant.Capabilities, err = parseCapabilities(p.Capabilities); err != nil {
			return out, err
		}
		token, err := s.Secret("participant "+p.Name, p.TokenFile)
		if err != nil {
			return out, err
		}
		if token != "" {
			participant.Tokens = []string{token}
		}
		out.Participants = append(out.Participants, participant)
	}
	return out, nil
}
