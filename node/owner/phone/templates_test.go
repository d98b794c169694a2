package phone

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the template reads and calls.
func TestTemplates(t *testing.T) {
	apitest.CheckPage(t, pageFiles, nil, httpapi.View{}, "page/phone.html")
}
