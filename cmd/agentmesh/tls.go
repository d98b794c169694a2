package main

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/certs"
)

// What the process does about TLS: where it is configured, certs has the certificate, the edge ends TLS with it, and
// a second listener answers plain HTTP.

// newCertificate returns the source of the listener's certificate, nil where a proxy ends TLS.
func (p *process) newCertificate() (*certs.Source, error) {
	t := p.cfg.TLS
	if !t.on() {
		return nil, nil
	}
	u, err := url.Parse(p.cfg.PublicURL)
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	host := strings.ToLower(u.Hostname())
	if t.ACME {
		return certs.ACME(certs.ACMEConfig{
			Host: host, Authority: t.Authority, Contact: t.Contact, Dir: p.home.path(t.folder()), Plain: t.PlainListen != "",
			Transport: ownerCalls{p}, Logger: p.log, UserAgent: "agentmesh/" + thisBuild().Version,
		}), nil
	}
	s, err := certs.Files(host, t.CertFile, t.KeyFile, p.log)
	switch {
	case errors.Is(err, certs.ErrKeyMode):
		return nil, failHint(exitConfig, err, "chmod o= "+t.KeyFile)
	case err != nil:
		return nil, failHint(exitConfig, err, "correct tls.cert_file and tls.key_file")
	}
	return s, nil
}

// folder is where the data directory keeps what an authority gave: a certificate of one that is for trying out must not
// stay when the authority is changed.
func (t TLSConfig) folder() string {
	name := "unnamed"
	if u, err := url.Parse(t.Authority); err == nil && u.Host != "" {
		name = strings.ReplaceAll(u.Host, ":", "_")
	}
	return filepath.Join(dirACME, name)
}

// ownerCalls are calls of a process to a URL that the owner configured.
type ownerCalls struct{ p *process }

func (o ownerCalls) RoundTrip(req *http.Request) (*http.Response, error) {
	return o.p.http.Do(req.Context(), client.Owner, req)
}

// tlsConfig is for the listener, nil where it speaks plain HTTP.
func (p *process) tlsConfig() *tls.Config {
	if p.certs == nil {
		return nil
	}
	return p.certs.Config()
}

// watchCertificate shows to health, metrics and owner how the certificate is.
func (p *process) watchCertificate() {
	p.metrics.Gauge("certificate_expires_seconds", "When the listener's certificate ends, in seconds since 1970; NaN without TLS of its own, and before there is one.", func() float64 {
		if p.certs == nil {
			return math.NaN()
		}
		end := p.certs.State().NotAfter
		if end.IsZero() {
			return math.NaN()
		}
		return float64(end.Unix())
	})
	if p.certs == nil {
		return
	}
	p.edge.Health("certificate", func(context.Context) (any, error) {
		return nil, p.certs.State().Valid(time.Now())
	})
}

// certificate is what the owner API tells about the listener's certificate.
type certificate struct {
	TLS       bool      `json:"tls"`                 // the listener ends TLS
	Authority string    `json:"authority,omitempty"` // of whom it is asked, empty for files of the owner's
	NotAfter  time.Time `json:"not_after,omitzero"`
	Error     string    `json:"error,omitempty"` // of the last attempt to get or replace it
}

func (p *process) certificate() certificate {
	if p.certs == nil {
		return certificate{}
	}
	state := p.certs.State()
	c := certificate{TLS: true, NotAfter: state.NotAfter}
	if p.cfg.TLS.ACME {
		c.Authority = p.cfg.TLS.Authority
	}
	if state.Err != nil {
		c.Error = state.Err.Error()
	}
	return c
}

func (p *process) ownerCertificate(c echo.Context) error {
	return httpapi.JSON(c, http.StatusOK, p.certificate())
}

// certificateWithin is how long start-up waits for the first certificate, to say whether it came.
const certificateWithin = 20 * time.Second

// listening says how the listener speaks, for whoever has just started it.
func (p *process) listening(ctx context.Context, address string) string {
	if p.certs == nil {
		return address + " without TLS: your reverse proxy ends it"
	}
	ctx, cancel := context.WithTimeout(ctx, certificateWithin)
	defer cancel()
	p.certs.Await(ctx)
	switch c := p.certificate(); {
	case !c.NotAfter.IsZero():
		return address + " with TLS, certificate until " + when(c.NotAfter)
	case c.Error != "":
		return address + " with TLS, and nobody can connect yet: " + clean(c.Error)
	default:
		return address + " with TLS, and waits for the certificate"
	}
}

// ownCertificate asks the process how it stands with its certificate: outside one sees only that there is none.
func (d *doctor) ownCertificate(ctx context.Context, o *ownerClient) {
	const check = "TLS"
	raw, err := o.call(ctx, http.MethodGet, "certificate", nil, nil)
	if err != nil {
		return // another version serves
	}
	c, err := decode[certificate](raw)
	if err != nil || !c.TLS {
		return
	}
	do := "correct tls.cert_file and tls.key_file; they are read again within seconds"
	if c.Authority != "" {
		do = "does the name lead here, and are ports 443 and 80 open? the log says when it is tried again"
	}
	switch {
	case c.NotAfter.Before(time.Now()):
		d.fail(check, do, "the process has no good certificate: %s", clean(c.Error))
	case c.Error != "":
		d.warn(check, do, "the certificate, good until %s, cannot be replaced: %s", when(c.NotAfter), clean(c.Error))
	default:
		d.ok(check, "the process has a certificate until %s", when(c.NotAfter))
	}
}
