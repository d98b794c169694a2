package mew

import "github.com/agentmesh/agentmesh/node/bridge"

// LinkKind declares links of this kind to the node.
func LinkKind() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "limits", "tools", "broadcast", "transit"}}
}
