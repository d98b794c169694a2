package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	apitest.CheckPage(t, pageFiles, nil, httpapi.View{Data: threadsView{}}, "page/threads.html")
	apitest.CheckPage(t, pageFiles, nil, httpapi.View{Data: threadPage{}}, "page/thread.html")
}
