package config

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// checkLinks finds what is wrong with the links as they are written, among it each key of a policy that the kind of the
// link does not honor. The bridges check the rest of what one kind alone needs.
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
		p.oneOf(key+".kind", l.Kind, names...)
		if !c.Has(RoleNode) {
			p.add(key, "needs the role node")
		}
	}
}
