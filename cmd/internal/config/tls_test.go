package config

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

func TestTLSCheck(t *testing.T) {
	const public = "https://mesh.example.org"
	acme := TLS{ACME: true, AcceptTerms: true, Authority: LetsEncrypt}
	with := func(change func(*TLS)) TLS {
		c := acme
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name, url string
		tls       TLS
		refused   bool
	}{
		{"acme", public, acme, false},
		{"files", public, TLS{CertFile: "c", KeyFile: "k", PlainListen: ":80"}, false},
		{"no terms", public, with(func(c *TLS) { c.AcceptTerms = false }), true},
		{"both", public, with(func(c *TLS) { c.CertFile, c.KeyFile = "c", "k" }), true},
		{"no key", public, TLS{CertFile: "c"}, true},
		{"no cert", public, TLS{KeyFile: "k"}, true},
		{"no public_url", "", acme, true},
		{"path", public + "/mesh", acme, true},
		{"address", "https://203.0.113.7", acme, true},
		{"one word", "https://mesh", acme, true},
		{"not ASCII", "https://mésh.example.org", acme, true},
		{"authority", public, with(func(c *TLS) { c.Authority = "http://127.0.0.1/dir" }), true},
		{"plain alone", public, TLS{PlainListen: ":80"}, true},
		{"plain without port", public, with(func(c *TLS) { c.PlainListen = "80" }), true},
		{"plain is listen", public, with(func(c *TLS) { c.PlainListen = "127.0.0.1:3141" }), true},
	} {
		c := Default()
		c.PublicURL, c.TLS = tt.url, tt.tls
		err := c.Check(kinds)
		if (err != nil) != tt.refused || err != nil && !goldentest.Refuses(t, tt.name, err) {
			t.Errorf("%s: %v, refused must be %t", tt.name, err, tt.refused)
		}
	}
}
