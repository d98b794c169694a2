package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// What doctor says about an agent somewhere else: name, certificate, clock, and whether the endpoint proof of a
// directory (AM-63) would go well. It needs no agent of one's own. A directory is judged in doctor_directory.go.

// soon is how long before its end a certificate is worth a word.
const soon = 14 * 24 * time.Hour

// visit examines the agent at a URL, its endpoint or the public URL of its node, or the directory there.
func (d *examination) visit(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return exit.FailHint(exit.Usage, fmt.Errorf("%s is no URL", terminal.Clean(target)), "name an endpoint like https://host.example/agentmesh, the public URL of a node, or a directory")
	}
	if d.cfg, err = config.Load(d.opts.Source); err != nil {
		d.cfg = config.Default()
	}
	local := daemon.IsLoopback(target)
	if !d.resolve(ctx, u, local) || !d.certificate(ctx, u) {
		return nil
	}
	h, reach := d.outside(local)
	defer h.Close()
	if namesDirectory(u) && d.directory(ctx, h, reach, u) {
		return nil
	}
	where, listedAt, ok := d.find(ctx, h, reach, u)
	if !ok {
		return nil
	}
	d.prove(ctx, h, reach, where)
	urls := d.opts.Directories
	if len(urls) == 0 {
		urls = d.cfg.Directories
	}
	if len(urls) == 0 && listedAt != "" {
		urls = []string{listedAt}
	}
	if len(urls) == 0 {
		d.warn("registration", "name one: --directory URL", "no directory to compare the card with")
	}
	for _, base := range urls {
		d.listing(ctx, h, strings.TrimRight(base, "/"))
	}
	return nil
}

// outside returns the guarded client that a peer elsewhere would use, or one on this machine if local, and what it may
// reach. The caller closes the client.
func (d *examination) outside(local bool) (*client.HTTP, client.Reach) {
	h := client.NewHTTP(client.HTTPConfig{Local: local, AllowPrivate: d.cfg.Network.AllowPrivate, Version: d.opts.Version})
	if local {
		return h, client.Loopback
	}
	return h, client.Public
}

// resolve looks the host's name up.
func (d *examination) resolve(ctx context.Context, u *url.URL, local bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		d.fail("name", "make a DNS record for it, or wait until it is known everywhere", "%s has no address: %s", terminal.Clean(u.Hostname()), terminal.Clean(err.Error()))
		return false
	}
	var list []string
	inside := false
	for _, a := range addrs {
		a = a.Unmap()
		list = append(list, a.String())
		inside = inside || !local && hidden(a) && !slices.ContainsFunc(d.cfg.Network.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if inside {
		d.fail("name", "peers on the internet refuse such addresses: point the name at a public one", "%s is at %s", terminal.Clean(u.Hostname()), strings.Join(list, ", "))
		return false
	}
	d.ok("name", "%s is at %s", terminal.Clean(u.Hostname()), strings.Join(list, ", "))
	return true
}

// hidden says whether an address is one that nobody outside reaches. The client's guard knows many more.
func hidden(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast()
}

// certificate connects as a peer does and looks at when the certificate ends.
func (d *examination) certificate(ctx context.Context, u *url.URL) bool {
	if u.Scheme == "http" {
		if !daemon.IsLoopback(u.String()) {
			d.fail("certificate", "serve https: cards with http endpoints are refused (AM-5)", "%s is not encrypted", terminal.Clean(u.String()))
			return false
		}
		d.ok("certificate", "none is needed on this machine")
		return true
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		do := "is something listening there, and does the firewall let it in? from behind a router that does not lead home its own address, ask elsewhere: agentmesh doctor URL"
		if _, bad := errors.AsType[*tls.CertificateVerificationError](err); bad {
			do = "get a certificate for the name from a public authority, and send its whole chain"
		}
		d.fail("certificate", do, "%s", terminal.Clean(err.Error()))
		return false
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState() // a tls.Dialer's connection is one
	end := state.PeerCertificates[0].NotAfter
	if left := time.Until(end); left < soon {
		d.warn("certificate", "renew it", "good for %d more days, %s", int(left.Hours()/24), tls.VersionName(state.Version))
		return true
	}
	d.ok("certificate", "good until %s, %s", terminal.When(end), tls.VersionName(state.Version))
	return true
}

// find gets the card from the URL itself, or from the endpoint that the node there names, and with it the directory
// that the node is listed in.
func (d *examination) find(ctx context.Context, h *client.HTTP, reach client.Reach, u *url.URL) (where, listedAt string, ok bool) {
	known, knownErr := look(ctx, h, reach, u.Scheme+"://"+u.Host+"/.well-known/agentmesh.json")
	var doc wire.WellKnown
	if knownErr == nil && known.status == http.StatusOK && json.Unmarshal(known.body, &doc) == nil {
		listedAt = doc.Directory
	}
	where = u.String()
	s, err := look(ctx, h, reach, where)
	if err == nil && s.status != http.StatusOK || err == nil && !isCard(s.body) {
		if doc.Endpoint != "" {
			where = doc.Endpoint
			s, err = look(ctx, h, reach, where)
		}
	}
	guard, refused := errors.AsType[*client.GuardError](err)
	switch {
	case refused:
		d.fail("endpoint", "give it a public name and https, on port 443 or from 1024 up", "no peer would connect to %s: %s", terminal.Clean(where), terminal.Clean(guard.Error()))
		return "", "", false
	case err != nil:
		d.fail("endpoint", "is the reverse proxy up, and does it pass the request on?", "%s cannot be reached: %s", terminal.Clean(where), terminal.Clean(err.Error()))
		return "", "", false
	}
	card := s.status == http.StatusOK && isCard(s.body)
	if !card && doc.Endpoint == "" && d.directory(ctx, h, reach, u) {
		return "", "", false
	}
	if s.dated {
		d.clock(u.Scheme+"://"+u.Host, s.ahead)
	}
	if !card {
		d.fail("endpoint", "a node answers GET at its endpoint with its card; is it another path?", "%s answers %d and no card", terminal.Clean(where), s.status)
		return "", "", false
	}
	d.card, err = wire.ParseObject(s.body)
	return where, listedAt, err == nil
}

func isCard(body []byte) bool {
	v, err := wire.ParseObject(body)
	return err == nil && wire.AgentID(v.GetStr("agent_id")).Valid()
}

// prove does what a directory does to prove an endpoint (AM-63), and looks at the card as a directory would.
func (d *examination) prove(ctx context.Context, h *client.HTTP, reach client.Reach, where string) {
	card, err := wire.ParseCard(d.card, wire.CardRules{AllowHTTP: func(string) bool { return reach == client.Loopback }})
	if field, bad := errors.AsType[*wire.FieldError](err); bad {
		d.fail("card", "correct it: no directory takes it so", "%s", field.Error())
		return
	}
	if card.Endpoint != where {
		d.fail("card", "card.endpoint must be the address under which the node answers", "the card names %s", terminal.Clean(card.Endpoint))
	}
	if err := directory.CheckEndpoint(ctx, h, reach, card, "agentmesh-doctor"); err != nil {
		d.fail("endpoint proof", "a directory would show the endpoint as not proven", "%s", terminal.Clean(err.Error()))
		return
	}
	d.ok("endpoint proof", "%s answers with the card of %s", terminal.Clean(card.Endpoint), terminal.Clean(string(card.ID)))
}
