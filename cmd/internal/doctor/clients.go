package doctor

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// checkClients sends a request with a forged X-Forwarded-For to the public URL and asks the running process which
// client address it saw. A proxy corrects or extends the header; a tunnel passes it on unchanged.
func (d *examination) checkClients(ctx context.Context, base string) {
	const check = "clients"
	status := d.status.Clients
	if status == nil {
		return // another version of agentmesh serves
	}
	o := daemon.Running(ctx, string(d.dir))
	if o == nil {
		return // serve has stopped
	}
	defer o.Close()
	probe, err := daemon.Fetch(ctx, o, daemon.ExpectProbe.Call())
	if err != nil {
		d.fail(check, "look at the log of the process", "%v", err)
		return
	}
	forged, instances := forgedAddr(), 1
	if db := d.status.Database; db != nil {
		instances = max(instances, len(db.Instances))
	}
	var seen daemon.SeenClient
	for try := 0; !seen.Seen && try < 1+4*(instances-1); try++ { // of several instances, another one may get a request
		if err := d.sendForged(ctx, strings.TrimRight(base, "/")+"/health?probe="+url.QueryEscape(probe.Probe), forged); err != nil {
			d.warn(check, "is the reverse proxy up? (docs/operations.md)", "the public URL does not answer, so this check cannot tell how clients are distinguished: %s", terminal.Clean(err.Error()))
			return
		}
		if seen, err = daemon.Fetch(ctx, o, daemon.ShowProbe.Call(probe.Probe)); err != nil {
			d.fail(check, "look at the log of the process", "%v", err)
			return
		}
	}
	d.reportClient(seen, forged, status.Proxy, instances)
}

// sendForged sends a request with the client address forged on a connection of its own.
func (d *examination) sendForged(ctx context.Context, url string, forged netip.Addr) error {
	const local = false // clients come through the public URL
	p := d.newPeer(local)
	defer p.Close()
	_, err := p.get(ctx, url, http.Header{"X-Forwarded-For": {forged.String()}})
	return err
}

// reportClient adds a finding about the client address that the process saw for a request with the forged address.
// trustsProxy is set if the process trusts the header of any proxy. instances is the number of processes that may have
// got the request.
func (d *examination) reportClient(seen daemon.SeenClient, forged netip.Addr, trustsProxy bool, instances int) {
	const check = "clients"
	switch {
	case !seen.Seen && instances > 1:
		d.warn(check, "let the reverse proxy send requests to this instance too, or run doctor at another one", "requests to the public URL reached other instances only, so this check cannot tell how clients are distinguished")
	case !seen.Seen:
		d.fail(check, "does the name point to another machine or an old copy, or does a cache answer?", "a request to the public URL did not reach this process")
	case seen.Client == forged:
		d.fail(check, "behind a TCP tunnel: network.trusted_proxies: none; behind a reverse proxy: let it set X-Forwarded-For itself (docs/operations.md)",
			"a forged X-Forwarded-For is trusted: anyone can evade every limit, and get others blocked")
	case seen.Unknown && trustsProxy:
		d.warn(check, "let the reverse proxy set X-Forwarded-For (docs/operations.md); behind a TCP tunnel, set network.trusted_proxies: none",
			"the proxy does not name its clients: all of them share one allowance")
	case seen.Client.IsLoopback():
		d.warn(check, "remove loopback addresses from limits.exempt", "limits.exempt exempts everyone who comes through the proxy or tunnel on this machine from every limit")
	case seen.Unknown:
		d.ok(check, "a tunnel hides the clients: all of them share one allowance, and a forged X-Forwarded-For is not trusted")
	default:
		d.ok(check, "the process distinguishes clients, and does not trust a forged X-Forwarded-For")
	}
}

// forgedAddr returns a random address from the range that is reserved for documentation, so that nobody has it.
func forgedAddr() netip.Addr {
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	_, _ = rand.Read(a[4:]) // it never fails
	return netip.AddrFrom16(a)
}
