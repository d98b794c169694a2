package site

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestTemplates checks what the templates read and call, in all branches.
func TestTemplates(t *testing.T) {
	for name, data := range map[string]any{"join": &QR{}, "changes": []Change{}, "terms": "", "reported": "", "fault": ""} {
		apitest.CheckPage(t, Files, nil, view{Data: data}, "page/shell.html", "page/"+name+".html")
	}
}
