package doctor

import (
	"context"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// ownCertificate asks the process how it stands with its certificate: outside one sees only that there is none.
func (d *examination) ownCertificate(ctx context.Context, o *daemon.Client) {
	const check = "TLS"
	raw, err := o.Call(ctx, http.MethodGet, "certificate", nil, nil)
	if err != nil {
		return // another version serves
	}
	c, err := daemon.Decode[daemon.Certificate](raw)
	if err != nil || !c.TLS {
		return
	}
	do := "correct tls.cert_file and tls.key_file; they are read again within seconds"
	if c.Authority != "" {
		do = "does the name lead here, and are ports 443 and 80 open? the log says when it is tried again"
	}
	switch {
	case c.NotAfter.Before(time.Now()):
		d.fail(check, do, "the process has no good certificate: %s", terminal.Clean(c.Error))
	case c.Error != "":
		d.warn(check, do, "the certificate, good until %s, cannot be replaced: %s", terminal.When(c.NotAfter), terminal.Clean(c.Error))
	default:
		d.ok(check, "the process has a certificate until %s", terminal.When(c.NotAfter))
	}
}
