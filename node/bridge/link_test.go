package bridge_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

func TestLinkValidate(t *testing.T) {
	good := bridge.Link{Name: "home", Kind: "mew", URL: "wss://mew.example"}
	for _, tt := range []struct {
		name    string
		edit    func(*bridge.Link)
		refused bool
	}{
		{"good", func(*bridge.Link) {}, false},
		{"no name", func(l *bridge.Link) { l.Name = "" }, true},
		{"name with a slash", func(l *bridge.Link) { l.Name = "a/b" }, true},
		{"no kind", func(l *bridge.Link) { l.Kind = "" }, true},
		{"neither url nor dir", func(l *bridge.Link) { l.URL = "" }, true},
		{"both url and dir", func(l *bridge.Link) { l.Dir = "x" }, true},
		{"relative url", func(l *bridge.Link) { l.URL = "mew.example" }, true},
		{"relative registry", func(l *bridge.Link) { l.RegistryURL = "mew.example" }, true},
		{"secret in the url", func(l *bridge.Link) { l.URL = "wss://me:secret@mew.example" }, true},
		{"secret in the registry url", func(l *bridge.Link) { l.RegistryURL = "https://t@x.example" }, true},
		{"access", func(l *bridge.Link) { l.Policy.Access = "all" }, true},
		{"tool", func(l *bridge.Link) { l.Policy.Tools = []string{"discover", "shell"} }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			link := good
			tt.edit(&link)
			err := link.Validate()
			if (err != nil) != tt.refused || err != nil && !goldentest.Refuses(t, "", err) {
				t.Errorf("Validate() = %v, refused must be %t", err, tt.refused)
			}
		})
	}
	if err := bridge.ValidateLinks([]bridge.Link{good, good}); err == nil {
		t.Error("two links of one name were accepted")
	}
}
