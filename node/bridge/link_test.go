package bridge_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
)

func TestLinkValidate(t *testing.T) {
	good := bridge.Link{Name: "home", Kind: "mew", URL: "wss://mew.example"}
	for _, tt := range []struct {
		name string
		edit func(*bridge.Link)
		want string // part of the error; empty: none
	}{
		{"good", func(*bridge.Link) {}, ""},
		{"no name", func(l *bridge.Link) { l.Name = "" }, "name"},
		{"name with a slash", func(l *bridge.Link) { l.Name = "a/b" }, "name"},
		{"no kind", func(l *bridge.Link) { l.Kind = "" }, "kind"},
		{"neither url nor dir", func(l *bridge.Link) { l.URL = "" }, "url or dir"},
		{"both url and dir", func(l *bridge.Link) { l.Dir = "x" }, "url or dir"},
		{"relative url", func(l *bridge.Link) { l.URL = "mew.example" }, "link home: url must be absolute"},
		{"relative registry", func(l *bridge.Link) { l.RegistryURL = "mew.example" }, "link home: registry_url must be absolute"},
		{"secret in the url", func(l *bridge.Link) { l.URL = "wss://me:secret@mew.example" }, "user name or a password"},
		{"secret in the registry url", func(l *bridge.Link) { l.RegistryURL = "https://t@x.example" }, "user name or a password"},
		{"access", func(l *bridge.Link) { l.Policy.Access = "all" }, "access"},
		{"tool", func(l *bridge.Link) { l.Policy.Tools = []string{"discover", "shell"} }, "shell"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			link := good
			tt.edit(&link)
			err := link.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Validate() = %v, want an error with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
	if err := bridge.ValidateLinks([]bridge.Link{good, good}); err == nil {
		t.Error("two links of one name were accepted")
	}
}
