package main

import (
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

// TestTLSFlag: --tls NAME sets everything that a public node needs, and other flags override it.
func TestTLSFlag(t *testing.T) {
	load := func(f serverFlags, set ...string) (config.Config, error) {
		a := app{globals: Globals{Set: set}, server: f}
		settings, err := a.settings()
		if err != nil {
			return config.Config{}, err
		}
		return config.Load(config.Source{File: "none", Settings: settings})
	}
	for name, want := range map[string][2]string{
		"mesh.example.org":      {"https://mesh.example.org", ":443"},
		"mesh.example.org:443":  {"https://mesh.example.org", ":443"},
		"mesh.example.org:8443": {"https://mesh.example.org:8443", ":8443"},
	} {
		c, err := load(serverFlags{TLS: &name})
		if err == nil {
			err = c.Check(daemon.LinkKinds())
		}
		if err != nil || c.PublicURL != want[0] || c.Listen != want[1] || !c.TLS.ACME || !c.TLS.AcceptTerms || c.TLS.PlainListen != ":80" || c.TLS.Authority != config.LetsEncrypt {
			t.Errorf("--tls %s: %+v, listen %s, public_url %s, %v", name, c.TLS, c.Listen, c.PublicURL, err)
		}
	}
	name, listen := "mesh.example.org", "127.0.0.1:1"
	if c, err := load(serverFlags{TLS: &name, Listen: &listen}, "tls.plain_listen="); err != nil || c.Listen != listen || c.TLS.PlainListen != "" {
		t.Errorf("with other flags: %+v, %v", c.TLS, err)
	}
	for _, name := range []string{"", "https://mesh.example.org", "mesh.example.org/path", "a b", "user@mesh.example.org", ":443"} {
		if _, err := load(serverFlags{TLS: &name}); err == nil {
			t.Errorf("--tls %q was accepted", name)
		}
	}
}
