package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// TLS configures the listener's certificate. If TLS is empty, the listener speaks plain HTTP, and a reverse proxy
// terminates TLS.
type TLS struct {
	// Get a certificate for the host of public_url from an ACME authority, and renew it.
	ACME bool `key:"acme"`
	// Accept the terms of that authority. acme requires this.
	AcceptTerms bool `key:"accept_terms"`
	// Directory URL of the authority.
	Authority string `key:"authority"`
	// Address and port of a second listener, for plain HTTP. It answers the authority (HTTP-01) and redirects browsers to
	// https. Forward port 80 of public_url to it. Empty: no second listener; the authority connects to port 443
	// (TLS-ALPN-01), which you must forward to the address in the key listen.
	PlainListen string `key:"plain_listen"`
	// File with your own certificate and its chain (PEM), instead of acme. The process reads it again when it changes.
	CertFile string `key:"cert_file"`
	// File with the private key of the certificate. Danger: anyone who can read it can impersonate you.
	KeyFile string `key:"key_file"`
}

// LetsEncrypt is the directory URL of the default authority.
const LetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// On reports whether the listener terminates TLS.
func (t TLS) On() bool { return t.ACME || t.CertFile != "" }

func (c Config) checkTLS(p *problems) {
	t := c.TLS
	u, err := url.Parse(c.PublicURL)
	switch {
	case t.ACME && t.CertFile+t.KeyFile != "":
		p.add("tls", "has both acme and a certificate of your own")
	case (t.CertFile == "") != (t.KeyFile == ""):
		p.add("tls", "needs both cert_file and key_file")
	case !t.On() && t.PlainListen != "":
		p.add("tls.plain_listen", "is for a listener with TLS: set tls.acme, or tls.cert_file and tls.key_file")
	case !t.On():
	case err != nil || u.Scheme != "https" || strings.Trim(u.Path, "/") != "":
		p.add("tls", "needs a public_url with https and without a path")
	case t.ACME:
		t.checkACME(p, u.Hostname())
	}
	if t.PlainListen == "" {
		return
	}
	if _, ok := p.checkAddress("tls.plain_listen", t.PlainListen); ok && t.PlainListen == c.Listen {
		p.add("tls.plain_listen", "is the same address as listen")
	}
}

func (t TLS) checkACME(p *problems, host string) {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(strings.Trim(host, "."), ".") {
		p.add("tls.acme", fmt.Sprintf("needs a public_url with a name such as mesh.example.org, which %s is not", host))
	}
	for _, r := range host {
		if r > 127 {
			p.add("public_url", "must have its host in ASCII, as xn--…")
			break
		}
	}
	if !t.AcceptTerms {
		p.add("tls.accept_terms", "must be true: read the terms of the authority (of Let's Encrypt: https://letsencrypt.org/repository/)")
	}
	if u, err := url.Parse(t.Authority); err != nil || u.Scheme != "https" || u.Host == "" {
		p.add("tls.authority", fmt.Sprintf("%q is not an https URL", t.Authority))
	}
}
