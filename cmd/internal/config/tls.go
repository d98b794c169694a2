package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// TLS says where the listener's certificate comes from. Empty: the listener speaks plain HTTP, and a reverse
// proxy ends TLS.
type TLS struct {
	// Get a certificate for the host of public_url from an authority that speaks ACME, and renew it.
	ACME bool `key:"acme"`
	// You accept the terms of that authority. acme needs it.
	AcceptTerms bool `key:"accept_terms"`
	// Directory URL of the authority; without it, Let's Encrypt.
	Authority string `key:"authority"`
	// A mail address that the authority may write to.
	Contact string `key:"contact"`
	// Address and port of a second listener, for plain HTTP: it answers the authority (HTTP-01) and sends readers to
	// https. Port 80 of public_url must lead there. Empty: there is none, and the authority asks on port 443
	// (TLS-ALPN-01), which must lead to listen.
	PlainListen string `key:"plain_listen"`
	// File with your own certificate and its chain, PEM, instead of acme. It is read again when it changes.
	CertFile string `key:"cert_file"`
	// File with its private key. Danger: whoever may read it can be you.
	KeyFile string `key:"key_file"`
}

// LetsEncrypt is the authority where none is named.
const LetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// On says whether the listener ends TLS.
func (t TLS) On() bool { return t.ACME || t.CertFile != "" }

// checkTLS says what is wrong about certificates.
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
	if _, _, err := net.SplitHostPort(t.PlainListen); err != nil {
		p.add("tls.plain_listen", "must be host:port")
	} else if t.PlainListen == c.Listen {
		p.add("tls.plain_listen", "is the address of listen")
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
		p.add("tls.authority", fmt.Sprintf("%q is no https URL", t.Authority))
	}
	if t.Contact != "" && (!strings.Contains(t.Contact, "@") || strings.ContainsAny(t.Contact, ": ?,")) {
		p.add("tls.contact", fmt.Sprintf("%q is no mail address", t.Contact))
	}
}
