package doctor

import (
	"context"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

// checkOwnCertificate asks the process for the state of its certificate. The process knows why it has no certificate;
// from outside, one sees only that it is missing.
func (d *examination) checkOwnCertificate(ctx context.Context, o *daemon.Client) {
	const check = "TLS"
	c, err := daemon.Fetch(ctx, o, owner.Call[daemon.Certificate]{Method: http.MethodGet, Path: "certificate"})
	if err != nil || !c.TLS {
		return // an error means that another version of agentmesh serves
	}
	advice := "correct tls.cert_file and tls.key_file; they are read again within seconds"
	if c.Authority != "" {
		advice = "does the name point here, and are ports 443 and 80 open? the log says when the process tries again"
	}
	switch {
	case c.NotAfter.Before(time.Now()):
		d.fail(check, advice, "the process has no valid certificate: %s", terminal.Clean(c.Error))
	case c.Error != "":
		d.warn(check, advice, "the certificate, valid until %s, cannot be replaced: %s", terminal.FormatTime(c.NotAfter), terminal.Clean(c.Error))
	default:
		d.ok(check, "the process has a certificate, valid until %s", terminal.FormatTime(c.NotAfter))
	}
}
