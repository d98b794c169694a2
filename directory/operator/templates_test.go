package operator

import (
	"testing"

	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	for name, data := range map[string]any{
		"overview": overview{}, "cards": cardsView{}, "reports": owner.List[namedReport]{}, "bans": owner.List[moderation.Ban]{},
		"invites": invitesView{}, "changes": changesView{},
	} {
		apitest.CheckPage(t, pageFiles, pageFuncs, httpapi.View{Data: data}, "page/"+name+".html")
	}
}
