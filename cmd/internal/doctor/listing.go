package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// checkTimeout bounds one request, name lookup or TLS handshake.
const checkTimeout = 10 * time.Second

// answer is the answer to a GET request.
type answer struct {
	status int
	body   []byte
	ahead  time.Duration // how far this machine's clock is ahead of the other machine's; only if dated
	dated  bool          // the answer has a Date header
}

// peer makes requests as a peer of the agent does. It refuses the addresses that peers refuse, such as private ones.
type peer struct {
	*client.HTTP
	reach client.Reach
}

// newPeer returns a peer. If local is set, the examined process is on this machine. The caller closes the peer.
func (d *examination) newPeer(local bool) peer {
	p := peer{client.NewHTTP(client.HTTPConfig{Local: local, AllowPrivate: d.cfg.Network.AllowPrivate, Version: d.opts.Version}), client.Public}
	if local {
		p.reach = client.Loopback
	}
	return p
}

// get makes a GET request with additional headers, which may be nil.
func (p peer) get(ctx context.Context, target string, header http.Header) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	resp, body, err := p.HTTP.Get(ctx, p.reach, target, header, client.MaxAnswer)
	if resp == nil {
		return answer{}, err
	}
	s := answer{status: resp.StatusCode, body: body}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		s.ahead, s.dated = time.Since(date), true
	}
	return s, err
}

// checkListings asks each directory of the node for the node's card.
func (d *examination) checkListings(ctx context.Context, p peer) {
	urls := d.cfg.DirectoryURLs()
	if d.status != nil && len(d.opts.Directories) == 0 { // the directories that the running node really uses
		urls = nil
		for _, joined := range d.status.Directories {
			urls = append(urls, joined.Directory)
			if joined.Error != "" {
				d.fail("registration", cmp.Or(terminal.Clean(joined.Hint), "agentmesh register tries again"), "%s: %s", terminal.Clean(joined.Directory), terminal.Clean(joined.Error))
			}
		}
	}
	// A process with the role directory joins its own directory, whose URL is unknown while it is not running.
	if len(urls) == 0 && (d.status != nil || !d.cfg.Has(config.RoleDirectory)) {
		d.warn("directory", "name one: --directory URL, or directories in the configuration", "no directory is configured: nobody can find the agent, and peers must add its card by hand")
	}
	for _, u := range urls {
		d.checkListing(ctx, p, strings.TrimRight(u, "/"))
	}
}

// checkListing asks a directory for the card. The owner chose the directory, so it may be at any address.
func (d *examination) checkListing(ctx context.Context, p peer, base string) {
	p.reach = client.Owner
	s, err := p.get(ctx, base+"/agents/"+url.PathEscape(d.card.GetStr("agent_id")), nil)
	if err != nil {
		d.fail("directory", "check the URL, and the network of this machine", "%s cannot be reached: %s", terminal.Clean(base), terminal.Clean(err.Error()))
		return
	}
	if s.dated {
		d.checkClock(base, s.ahead)
	}
	switch {
	case s.status == http.StatusNotFound:
		d.fail("directory", d.registerAdvice(), "%s does not list the agent", terminal.Clean(base))
		return
	case s.status != http.StatusOK:
		d.fail("directory", "is it the URL of an AgentMesh directory? it ends in /v1", "%s answers %d", terminal.Clean(base), s.status)
		return
	}
	listed, err := wire.ParseObject(s.body)
	if err != nil {
		d.fail("directory", "is it the URL of an AgentMesh directory? it ends in /v1", "%s does not answer with a card", terminal.Clean(base))
		return
	}
	if differences := diffCards(d.card, listed); len(differences) > 0 {
		own := datadir.FileCard
		if d.elsewhere {
			own = "the card of the agent"
		}
		d.fail("registration", d.registerAdvice(), "the card that %s lists differs from %s in: %s", terminal.Clean(base), own, terminal.Clean(strings.Join(differences, ", ")))
		return
	}
	d.ok("registration", "%s lists the current card", terminal.Clean(base))
}

// registerAdvice returns how to register the card again. If serve is not running here, the advice is to start it,
// because without serve nobody would renew the registration.
func (d *examination) registerAdvice() string {
	switch {
	case d.elsewhere:
		return "where the agent runs: agentmesh register"
	case d.running:
		return "agentmesh register"
	}
	return "agentmesh serve, which registers and renews by itself"
}

// diffCards compares our own card with the listed one. It returns the names of the members that the listed card does
// not have, or has with another value. It ignores members that a directory adds, and access_control, whose lists a
// directory drops (AM-6).
func diffCards(own, listed wire.Value) []string {
	var out []string
	for _, m := range own.Members() {
		if m.Key == "access_control" {
			continue
		}
		other, _ := listed.Get(m.Key)
		if !bytes.Equal(signing.Canonical(m.Value, signing.JCS), signing.Canonical(other, signing.JCS)) {
			out = append(out, m.Key)
		}
	}
	slices.Sort(out)
	return out
}

// clockTolerance is the clock difference above which checkClock warns.
const clockTolerance = 30 * time.Second

// checkClock compares this machine's clock with the Date of an answer (AM-84). Receivers tolerate a smaller difference
// if the sender's clock is ahead than if it is behind. Several checks may ask the same server: only the first compares.
func (d *examination) checkClock(base string, ahead time.Duration) {
	const advice = "run a time service: receivers refuse signed messages outside their time window"
	server, err := url.Parse(base)
	if err != nil || slices.Contains(d.clocks, server.Host) {
		return
	}
	d.clocks = append(d.clocks, server.Host)
	off, text := ahead.Abs(), "%s behind that of %s"
	if ahead > 0 {
		text = "%s ahead of that of %s"
	}
	text = fmt.Sprintf("this machine's clock is "+text, off.Round(time.Second), terminal.Clean(base))
	switch {
	case ahead > d.cfg.Window.Future || -ahead > d.cfg.Window.Past:
		d.fail("clock", advice, "%s", text)
	case off > clockTolerance:
		d.warn("clock", advice, "%s", text)
	default:
		d.ok("clock", "agrees with that of %s", terminal.Clean(base))
	}
}

// checkEndpoint fetches the card from the endpoint that the card names. If p refuses the address, so does every peer of
// this project.
func (d *examination) checkEndpoint(ctx context.Context, p peer) {
	const check = "endpoint"
	target := d.card.GetStr("endpoint")
	s, err := p.get(ctx, target, nil)
	guard, refused := errors.AsType[*client.GuardError](err)
	switch {
	case refused:
		d.fail(check, "give it a public name and https: public_url, or card.endpoint", "no peer would connect to %s: %s", terminal.Clean(target), terminal.Clean(guard.Error()))
	case err != nil:
		d.fail(check, "is the reverse proxy up, the name right, the certificate valid? (docs/operations.md)", "%s cannot be reached: %s", terminal.Clean(target), terminal.Clean(err.Error()))
	case s.status == http.StatusNotFound && isMailbox(target):
		d.fail(check, "see registration: the mailbox exists while the directory lists the agent", "there is no mailbox %s", terminal.Clean(target))
	case s.status != http.StatusOK:
		d.fail(check, "the reverse proxy must forward every path", "%s answers %d", terminal.Clean(target), s.status)
	default:
		d.checkEndpointCard(target, s.body)
	}
}

// isMailbox reports whether an endpoint is a mailbox at a directory (AM-64).
func isMailbox(endpoint string) bool { return strings.Contains(endpoint, "/v1/mailbox/") }

func (d *examination) checkEndpointCard(target string, body []byte) {
	const check = "endpoint"
	card, err := wire.ParseObject(body)
	id := d.card.GetStr("agent_id")
	switch {
	case err != nil || card.GetStr("agent_id") == "":
		d.fail(check, "the reverse proxy must change neither paths nor bodies", "%s does not answer with a card", terminal.Clean(target))
	case card.GetStr("agent_id") == id && card.GetStr("public_key") != d.card.GetStr("public_key"):
		d.fail(check, "does an old copy of this agent run at this endpoint?", "%s answers with another public key", terminal.Clean(target))
	case card.GetStr("agent_id") != id:
		d.fail(check, "does another agent run at this endpoint?", "%s answers as %s", terminal.Clean(target), terminal.Clean(card.GetStr("agent_id")))
	default:
		d.ok(check, "%s answers with the card", terminal.Clean(target))
	}
}
