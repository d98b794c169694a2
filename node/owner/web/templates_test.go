package web

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	for name, data := range map[string]any{
		"today": todayView{}, "settings": settingsView{}, "discover": discoverView{}, "approvals": approvalsView{}, "approval": askView{},
		"inbox": inboxView{}, "item": itemView{}, "conversations": conversationsView{}, "conversation": conversationView{}, "compose": composeView{},
		"peers": peersView{}, "outbox": outboxView{}, "notices": noticesView{}, "log": logView{}, "profile": profileView{},
		"connect": connectView{}, "person": personView{},
	} {
		apitest.CheckPage(t, pageFiles, viewFuncs, httpapi.View{Data: data}, "page/"+name+".html", "page/parts.html", "page/message.html")
	}
	apitest.CheckPage(t, pageFiles, viewFuncs, decisionView{}, "page/decision.html", "page/message.html")
}
