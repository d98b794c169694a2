package config

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// checkLinks reports problems with the links, including each policy key that the kind of the link does not use. The
// bridges check the requirements of their own kind.
func (c Config) checkLinks(p *problems, kinds []bridge.Kind) {
	if err := bridge.ValidateLinks(c.Links); err != nil {
		p.add("links", err.Error())
	}
	for i, l := range c.Links {
		key := fmt.Sprintf("links[%d]", i)
		names := make([]string, len(kinds))
		for i, kind := range kinds {
			names[i] = kind.Name
			if kind.Name != l.Kind {
				continue
			}
			for _, e := range kind.CheckPolicy(l) {
				p.add(key+"."+e.Key, e.Reason())
			}
		}
		p.checkOneOf(key+".kind", l.Kind, names...)
		if !c.Has(RoleNode) {
			p.add(key, "needs the role node")
		}
	}
}
