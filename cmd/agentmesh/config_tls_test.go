package main

import (
	"strings"
	"testing"
)

// --tls NAME is all that a public node needs, and flags beside it win.
func TestTLSFlag(t *testing.T) {
	load := func(g Globals) (Config, error) {
		settings, err := g.settings()
		if err != nil {
			return Config{}, err
		}
		return loadConfig(source{File: "none", Settings: settings})
	}
	for name, want := range map[string][2]string{
		"mesh.example.org":      {"https://mesh.example.org", ":443"},
		"mesh.example.org:443":  {"https://mesh.example.org", ":443"},
		"mesh.example.org:8443": {"https://mesh.example.org:8443", ":8443"},
	} {
		c, err := load(Globals{TLS: &name})
		if err == nil {
			err = c.check()
		}
		if err != nil || c.PublicURL != want[0] || c.Listen != want[1] || !c.TLS.ACME || !c.TLS.AcceptTerms || c.TLS.PlainListen != ":80" || c.TLS.Authority != letsEncrypt {
			t.Errorf("--tls %s: %+v, listen %s, public_url %s, %v", name, c.TLS, c.Listen, c.PublicURL, err)
		}
	}
	name, listen := "mesh.example.org", "127.0.0.1:1"
	if c, err := load(Globals{TLS: &name, Listen: &listen, Set: []string{"tls.plain_listen="}}); err != nil || c.Listen != listen || c.TLS.PlainListen != "" {
		t.Errorf("with other flags: %+v, %v", c.TLS, err)
	}
	for _, name := range []string{"", "https://mesh.example.org", "mesh.example.org/path", "a b", "user@mesh.example.org", ":443"} {
		if _, err := load(Globals{TLS: &name}); err == nil {
			t.Errorf("--tls %q was accepted", name)
		}
	}
}

func TestTLSCheck(t *testing.T) {
	const public = "https://mesh.example.org"
	acme := TLSConfig{ACME: true, AcceptTerms: true, Authority: letsEncrypt}
	with := func(change func(*TLSConfig)) TLSConfig {
		c := acme
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name, url string
		tls       TLSConfig
		want      string // in the error, "" for none
	}{
		{"acme", public, acme, ""},
		{"files", public, TLSConfig{CertFile: "c", KeyFile: "k", PlainListen: ":80"}, ""},
		{"no terms", public, with(func(c *TLSConfig) { c.AcceptTerms = false }), "letsencrypt.org/repository"},
		{"both", public, with(func(c *TLSConfig) { c.CertFile, c.KeyFile = "c", "k" }), "both"},
		{"no key", public, TLSConfig{CertFile: "c"}, "needs both"},
		{"no cert", public, TLSConfig{KeyFile: "k"}, "needs both"},
		{"no public_url", "", acme, "public_url with https"},
		{"path", public + "/mesh", acme, "without a path"},
		{"address", "https://203.0.113.7", acme, "a name such as"},
		{"one word", "https://mesh", acme, "a name such as"},
		{"not ASCII", "https://mésh.example.org", acme, "xn--"},
		{"authority", public, with(func(c *TLSConfig) { c.Authority = "http://127.0.0.1/dir" }), "no https URL"},
		{"contact", public, with(func(c *TLSConfig) { c.Contact = "mailto:a@example.org" }), "no mail address"},
		{"plain alone", public, TLSConfig{PlainListen: ":80"}, "is for a listener with TLS"},
		{"plain without port", public, with(func(c *TLSConfig) { c.PlainListen = "80" }), "host:port"},
		{"plain is listen", public, with(func(c *TLSConfig) { c.PlainListen = "127.0.0.1:3141" }), "the address of listen"},
	} {
		c := defaultConfig()
		c.PublicURL, c.TLS = tt.url, tt.tls
		err := c.check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
