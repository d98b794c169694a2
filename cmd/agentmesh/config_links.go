package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
)

// checkLinks finds what is wrong with the links as they are written, among it each key of a policy that the kind of the
// link does not honor. The bridges check the rest of what one kind alone needs.
func (c Config) checkLinks(p *problems) {
	if err := bridge.ValidateLinks(c.Links); err != nil {
		p.add("links", err.Error())
	}
	for i, l := range c.Links {
		key := fmt.Sprintf("links[%d]", i)
		p.oneOf(key+".kind", l.Kind, bridgeNames()...)
		for _, kind := range bridgeKinds() {
			if kind.Name != l.Kind {
				continue
			}
			for _, e := range kind.CheckPolicy(l) {
				p.add(key+"."+e.Key, e.Reason())
			}
		}
		if !c.has(roleNode) {
			p.add(key, "needs the role node")
		}
	}
}

// token reads the secret of a link; empty where it has none.
func (a *app) token(l bridge.Link) (client.Credential, error) {
	text, err := a.secret("link "+l.Name, l.TokenFile, l.TokenEnv)
	return client.Credential(text), err
}

// secret reads a secret from the file or the environment variable that the configuration names; empty where it names
// neither.
func (a *app) secret(of, file, env string) (string, error) {
	var text string
	switch {
	case file != "":
		data, err := os.ReadFile(a.beside(file))
		if err != nil {
			return "", fmt.Errorf("%s: read secret: %w", of, err)
		}
		text = string(data)
	case env != "":
		text = os.Getenv(env)
	default:
		return "", nil
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", fmt.Errorf("%s: the secret is empty", of)
	}
	return text, nil
}
