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

// clients sends a request to the public URL, with an X-Forwarded-For that it made up, and asks the process which client it
// saw. A proxy corrects or extends the header; a tunnel passes it on.
func (d *examination) clients(ctx context.Context, base string) {
	const check = "clients"
	o, status := daemon.Running(ctx, string(d.home)), d.status.Clients
	if o == nil || status == nil {
		return // it has stopped, or another version serves
	}
	defer o.Close()
	raw, err := o.Call(ctx, http.MethodPost, "clients/probes", nil, struct{}{})
	if err != nil {
		d.fail(check, "look at the log of the process", "%v", err)
		return
	}
	probe, err := daemon.Decode[daemon.ClientProbe](raw)
	if err != nil {
		d.fail(check, "is it another version of agentmesh?", "%v", err)
		return
	}
	forged := forgedAddr()
	h, reach := d.outside(false)
	defer h.Close()
	header := http.Header{"X-Forwarded-For": {forged.String()}}
	if _, err := lookWith(ctx, h, reach, strings.TrimRight(base, "/")+"/health?probe="+url.QueryEscape(probe.Probe), header); err != nil {
		d.warn(check, "is the reverse proxy up? (docs/operations.md)", "the public URL does not answer, so it is not known how clients are told apart: %s", terminal.Clean(err.Error()))
		return
	}
	if raw, err = o.Call(ctx, http.MethodGet, "clients/probes/"+probe.Probe, nil, nil); err != nil {
		d.fail(check, "look at the log of the process", "%v", err)
		return
	}
	seen, err := daemon.Decode[daemon.SeenClient](raw)
	if err != nil {
		d.fail(check, "is it another version of agentmesh?", "%v", err)
		return
	}
	d.judgeClient(seen, forged, status.Proxy)
}

// judgeClient says what it means that the process saw this client of a request that claimed to come from forged. proxy
// reports whether the process believes the header of some proxy.
func (d *examination) judgeClient(seen daemon.SeenClient, forged netip.Addr, proxy bool) {
	const check = "clients"
	switch {
	case !seen.Seen:
		d.fail(check, "does the name lead to another machine or an old copy, or does a cache answer for it?", "a request to the public URL did not reach this process")
	case seen.Client == forged:
		d.fail(check, "behind a TCP tunnel: network.trusted_proxies: none; behind a reverse proxy: let it set X-Forwarded-For itself (docs/operations.md)",
			"a forged X-Forwarded-For is believed: anybody can evade every limit, and have others barred")
	case seen.Unknown && proxy:
		d.warn(check, "let the reverse proxy set X-Forwarded-For (docs/operations.md); behind a TCP tunnel, set network.trusted_proxies: none",
			"the proxy does not say who its clients are: all of them share one allowance")
	case seen.Client.IsLoopback():
		d.warn(check, "take loopback addresses out of limits.exempt", "limits.exempt frees everybody who comes through the proxy or tunnel on this machine from every limit")
	case seen.Unknown:
		d.ok(check, "a tunnel hides them: all of them share one allowance, and a forged X-Forwarded-For is not believed")
	default:
		d.ok(check, "they are told apart, and a forged X-Forwarded-For is not believed")
	}
}

// forgedAddr returns an address of the range that documentation uses, which nobody has.
func forgedAddr() netip.Addr {
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	_, _ = rand.Read(a[4:]) // it never fails
	return netip.AddrFrom16(a)
}
