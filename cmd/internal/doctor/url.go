package doctor

import (
	"cmp"
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
	"github.com/agentmesh/agentmesh/directory/probe"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// expiresSoon is the remaining lifetime of a certificate below which checkCertificate warns.
const expiresSoon = 14 * 24 * time.Hour

// examineURL examines a directory, or an agent by its endpoint or the public URL of its node. It checks the name, the
// certificate and the clock, and whether a directory could prove the endpoint (AM-63). The user needs no agent.
func (d *examination) examineURL(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return exit.FailHint(exit.Usage, fmt.Errorf("%s is not an http or https URL", terminal.Clean(target)), "name an endpoint like https://host.example/agentmesh, the public URL of a node, or a directory")
	}
	d.elsewhere = true
	if d.cfg, err = config.Load(d.opts.Source); err != nil {
		d.cfg = config.Default()
	}
	local := daemon.IsLoopback(target)
	if !d.checkName(ctx, u, local) || !d.checkCertificate(ctx, u) {
		return nil
	}
	p := d.newPeer(local)
	defer p.Close()
	if isDirectoryURL(u) && d.checkDirectory(ctx, p, u) {
		return nil
	}
	endpoint, listedAt, ok := d.findCard(ctx, p, u)
	if !ok {
		return nil
	}
	d.checkEndpointProof(ctx, p, endpoint)
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
		d.checkListing(ctx, p, strings.TrimRight(base, "/"))
	}
	return nil
}

// checkPublicName is [examination.checkName] for a URL that peers on other machines use.
func (d *examination) checkPublicName(ctx context.Context, u *url.URL) bool {
	return d.checkName(ctx, u, false)
}

// checkName looks up the host's name and reports whether peers can use its addresses. Unless local is set, all of them
// must be public or permitted by network.allow_private.
func (d *examination) checkName(ctx context.Context, u *url.URL, local bool) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) && !dns.IsNotFound {
		d.fail("name", "check the network and the name server of this machine", "%s cannot be looked up: %s", terminal.Clean(u.Hostname()), terminal.Clean(err.Error()))
		return false
	}
	if err != nil {
		d.fail("name", "make a DNS record for the name, or wait until it has spread", "%s has no address: %s", terminal.Clean(u.Hostname()), terminal.Clean(err.Error()))
		return false
	}
	var list []string
	private := false
	for _, a := range addrs {
		a = a.Unmap()
		list = append(list, a.String())
		private = private || !local && !client.IsPublic(a) && !slices.ContainsFunc(d.cfg.Network.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if private {
		d.fail("name", "peers on the internet refuse such addresses: point the name at a public address", "%s is at %s", terminal.Clean(u.Hostname()), strings.Join(list, ", "))
		return false
	}
	d.ok("name", "%s is at %s", terminal.Clean(u.Hostname()), strings.Join(list, ", "))
	return true
}

// checkCertificate connects as a peer does, checks the certificate and its remaining lifetime, and reports whether a
// peer could connect.
func (d *examination) checkCertificate(ctx context.Context, u *url.URL) bool {
	if u.Scheme == "http" {
		if !daemon.IsLoopback(u.String()) {
			d.fail("certificate", "serve https: directories and peers refuse cards with http endpoints", "%s is not encrypted", terminal.Clean(u.String())) // AM-5
			return false
		}
		d.ok("certificate", "not needed on this machine")
		return true
	}
	port := cmp.Or(u.Port(), "443")
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		advice := "is a process listening there, and does the firewall allow connections? if your router cannot reach its own public address, run agentmesh doctor URL from elsewhere"
		if _, bad := errors.AsType[*tls.CertificateVerificationError](err); bad {
			advice = "get a certificate for the name from a public authority, and send its whole chain"
		}
		d.fail("certificate", advice, "%s", terminal.Clean(err.Error()))
		return false
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState() // a tls.Dialer always returns a *tls.Conn
	end := state.PeerCertificates[0].NotAfter
	if left := time.Until(end); left < expiresSoon {
		d.warn("certificate", "renew it", "valid for %d more days, %s", int(left.Hours()/24), tls.VersionName(state.Version))
		return true
	}
	d.ok("certificate", "valid until %s, %s", terminal.FormatTime(end), tls.VersionName(state.Version))
	return true
}

// findCard fetches the card from the URL u, or else from the endpoint in the node's well-known document. It returns the
// URL that has the card, and the directory that the well-known document names. If u is a directory and not a node,
// findCard examines the directory and returns false.
func (d *examination) findCard(ctx context.Context, p peer, u *url.URL) (endpoint, listedAt string, ok bool) {
	wellKnown, wellKnownErr := p.get(ctx, u.Scheme+"://"+u.Host+"/.well-known/agentmesh.json", nil)
	var doc wire.WellKnown
	if wellKnownErr == nil && wellKnown.status == http.StatusOK && json.Unmarshal(wellKnown.body, &doc) == nil {
		listedAt = doc.Directory
	}
	endpoint = u.String()
	s, err := p.get(ctx, endpoint, nil)
	if err == nil && (s.status != http.StatusOK || !isCard(s.body)) && doc.Endpoint != "" {
		endpoint = doc.Endpoint
		s, err = p.get(ctx, endpoint, nil)
	}
	guard, refused := errors.AsType[*client.GuardError](err)
	switch {
	case refused:
		d.fail("endpoint", "give it a public name and https, on port 443 or from 1024 up", "no peer would connect to %s: %s", terminal.Clean(endpoint), terminal.Clean(guard.Error()))
		return "", "", false
	case err != nil:
		d.fail("endpoint", "is the reverse proxy up, and does it forward the request?", "%s cannot be reached: %s", terminal.Clean(endpoint), terminal.Clean(err.Error()))
		return "", "", false
	}
	hasCard := s.status == http.StatusOK && isCard(s.body)
	if !hasCard && doc.Endpoint == "" && d.checkDirectory(ctx, p, u) {
		return "", "", false
	}
	if s.dated {
		d.checkClock(u.Scheme+"://"+u.Host, s.ahead)
	}
	if !hasCard {
		d.fail("endpoint", "a node answers GET at its endpoint with its card; is the path right?", "%s answers %d without a card", terminal.Clean(endpoint), s.status)
		return "", "", false
	}
	d.card, err = wire.ParseObject(s.body)
	return endpoint, listedAt, err == nil
}

func isCard(body []byte) bool {
	v, err := wire.ParseObject(body)
	return err == nil && wire.AgentID(v.GetStr("agent_id")).Valid()
}

// checkEndpointProof validates the card and proves its endpoint (AM-63) as a directory does.
func (d *examination) checkEndpointProof(ctx context.Context, p peer, endpoint string) {
	card, err := wire.ParseCard(d.card, wire.CardRules{AllowHTTP: func(string) bool { return p.reach == client.Loopback }})
	if field, bad := errors.AsType[*wire.FieldError](err); bad {
		d.fail("card", "correct it: no directory accepts this card", "%s", field.Error())
		return
	}
	if card.Endpoint != endpoint {
		d.fail("card", "card.endpoint must be the address under which the node answers", "the card names %s", terminal.Clean(card.Endpoint))
	}
	if err := probe.Check(ctx, p.HTTP, p.reach, card, "agentmesh-doctor"); err != nil {
		d.fail("endpoint proof", "a directory would show the endpoint as not proven", "%s", terminal.Clean(err.Error()))
		return
	}
	d.ok("endpoint proof", "%s answers with the card of %s", terminal.Clean(card.Endpoint), terminal.Clean(string(card.ID)))
}
