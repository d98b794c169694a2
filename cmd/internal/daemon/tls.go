package daemon

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

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/certs"
)

// newCertificate returns the source of the listener's certificate, or nil if the listener speaks plain HTTP.
func (p *Process) newCertificate() (*certs.Source, error) {
	t := p.cfg.TLS
	if !t.On() {
		return nil, nil
	}
	u, err := url.Parse(p.cfg.PublicURL)
	if err != nil {
		return nil, exit.Fail(exit.Config, err)
	}
	host := strings.ToLower(u.Hostname())
	if t.ACME {
		return certs.ACME(certs.ACMEConfig{
			Host: host, Authority: t.Authority, Dir: p.dataDir.Path(ACMEFolder(t.Authority)), Plain: t.PlainListen != "",
			Transport: ownerTransport{p}, Logger: p.log, UserAgent: "agentmesh/" + p.build.Version,
		}), nil
	}
	key := p.src.ResolvePath(t.KeyFile)
	s, err := certs.Files(host, p.src.ResolvePath(t.CertFile), key, p.log)
	switch {
	case errors.Is(err, certs.ErrKeyMode):
		return nil, exit.FailHint(exit.Config, err, "chmod o= "+key)
	case err != nil:
		return nil, exit.FailHint(exit.Config, err, "correct tls.cert_file and tls.key_file")
	}
	return s, nil
}

// ACMEFolder returns the folder for the account and the certificate of an authority, relative to the data directory.
// Each host of an authority has its own folder, so that the certificate of a staging authority is not used after the
// owner has switched to another authority.
func ACMEFolder(authority string) string {
	name := "unnamed"
	if u, err := url.Parse(authority); err == nil && u.Host != "" {
		name = strings.ReplaceAll(u.Host, ":", "_")
	}
	return filepath.Join(datadir.DirACME, name)
}

// ownerTransport is the http.RoundTripper for URLs that the owner configured. They may be at any address.
type ownerTransport struct{ p *Process }

func (o ownerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return o.p.http.Do(req.Context(), client.Owner, req)
}

// tlsConfig returns the TLS configuration of the listener, or nil if the listener speaks plain HTTP.
func (p *Process) tlsConfig() *tls.Config {
	if p.certs == nil {
		return nil
	}
	return p.certs.Config()
}

// registerCertificate adds the metric and the health check of the certificate.
func (p *Process) registerCertificate() {
	p.metrics.Gauge("certificate_expires_seconds", "When the listener's certificate ends, in seconds since 1970; NaN if the listener has no certificate.", func() float64 {
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
	p.server.Health("certificate", func(context.Context) (any, error) {
		return nil, p.certs.State().Check(time.Now())
	})
}

// Certificate is the state of the listener's certificate in the owner API.
type Certificate struct {
	TLS       bool      `json:"tls"`                 // the listener speaks TLS
	Authority string    `json:"authority,omitempty"` // the ACME authority, or "" for files of the owner
	NotAfter  time.Time `json:"not_after,omitzero"`
	Error     string    `json:"error,omitempty"` // why the last attempt to get or replace the certificate failed
}

func (p *Process) certificate() Certificate {
	if p.certs == nil {
		return Certificate{}
	}
	state := p.certs.State()
	c := Certificate{TLS: true, NotAfter: state.NotAfter}
	if p.cfg.TLS.ACME {
		c.Authority = p.cfg.TLS.Authority
	}
	if state.Err != nil {
		c.Error = state.Err.Error()
	}
	return c
}

func (p *Process) ownerCertificate(c echo.Context) error {
	return httpapi.JSON(c, http.StatusOK, p.certificate())
}

// certificateWait is the longest wait of AwaitCertificate.
const certificateWait = 20 * time.Second

// AwaitCertificate waits until the first attempt to get a certificate has ended, but no longer than certificateWait.
// It returns the state of the certificate, which has an Error if the attempt failed.
func (p *Process) AwaitCertificate(ctx context.Context) Certificate {
	if p.certs != nil {
		ctx, cancel := context.WithTimeout(ctx, certificateWait)
		defer cancel()
		p.certs.Await(ctx)
	}
	return p.certificate()
}
