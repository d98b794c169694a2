package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
)

// checkLinks says what is wrong with the links as they are written; their bridges check what one kind alone needs.
func (c Config) checkLinks(p *problems) {
	if err := bridge.ValidateLinks(c.Links); err != nil {
		p.add("links", err.Error())
	}
	for i, l := range c.Links {
		key := fmt.Sprintf("links[%d]", i)
		p.oneOf(key+".kind", l.Kind, bridgeNames()...)
		if !c.has(roleNode) {
			p.add(key, "needs the role node")
		}
	}
}

// token reads the secret of a link; empty where it has none.
func (a *app) token(l bridge.Link) (client.Credential, error) {
	switch {
	case l.TokenFile != "":
		data, err := os.ReadFile(a.beside(l.TokenFile))
		if err != nil {
			return "", fmt.Errorf("link %s: read token_file: %w", l.Name, err)
		}
		return notEmpty(l, strings.TrimSpace(string(data)))
	case l.TokenEnv != "":
		return notEmpty(l, strings.TrimSpace(os.Getenv(l.TokenEnv)))
	}
	return "", nil
}

func notEmpty(l bridge.Link, token string) (client.Credential, error) {
	if token == "" {
		return "", fmt.Errorf("link %s: %w", l.Name, errors.New("the token is empty"))
	}
	return client.Credential(token), nil
}
