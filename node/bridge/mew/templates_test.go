package mew

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	apitest.CheckPage(t, pageFiles, pageFuncs, httpapi.View{Data: []spaceRow{}}, "page/spaces.html")
	apitest.CheckPage(t, pageFiles, pageFuncs, httpapi.View{Data: spaceView{}}, "page/space.html")
}
