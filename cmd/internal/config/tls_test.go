package config

import (
	"strings"
	"testing"
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
		want      string // in the error; "" if there must be no error
	}{
		{"acme", public, acme, ""},
		{"files", public, TLS{CertFile: "c", KeyFile: "k", PlainListen: ":80"}, ""},
		{"no terms", public, with(func(c *TLS) { c.AcceptTerms = false }), "letsencrypt.org/repository"},
		{"both", public, with(func(c *TLS) { c.CertFile, c.KeyFile = "c", "k" }), "both"},
		{"no key", public, TLS{CertFile: "c"}, "needs both"},
		{"no cert", public, TLS{KeyFile: "k"}, "needs both"},
		{"no public_url", "", acme, "public_url with https"},
		{"path", public + "/mesh", acme, "without a path"},
		{"address", "https://203.0.113.7", acme, "a name such as"},
		{"one word", "https://mesh", acme, "a name such as"},
		{"not ASCII", "https://mésh.example.org", acme, "xn--"},
		{"authority", public, with(func(c *TLS) { c.Authority = "http://127.0.0.1/dir" }), "not an https URL"},
		{"plain alone", public, TLS{PlainListen: ":80"}, "is for a listener with TLS"},
		{"plain without port", public, with(func(c *TLS) { c.PlainListen = "80" }), "host:port"},
		{"plain is listen", public, with(func(c *TLS) { c.PlainListen = "127.0.0.1:3141" }), "the same address as listen"},
	} {
		c := Default()
		c.PublicURL, c.TLS = tt.url, tt.tls
		err := c.Check(kinds)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
