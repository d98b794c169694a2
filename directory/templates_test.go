package directory

import (
	"testing"

	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	for name, data := range map[string]any{"search": searchPage{}, "missing": searchPage{}, "agent": agentPage{}} {
		apitest.CheckPage(t, site.Files, nil, data, "page/shell.html", "page/"+name+".html")
	}
}
