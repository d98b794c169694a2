package doctor

import (
	"bytes"
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

// What the doctor sees from outside: the directories that should list the card, and the endpoint as a peer reaches it.

// patience bounds one look.
const patience = 10 * time.Second

// seen is one answer from outside.
type seen struct {
	status int
	body   []byte
	ahead  time.Duration // of this machine's clock before the other's, if dated
	dated  bool
}

func look(ctx context.Context, h *client.HTTP, reach client.Reach, target string) (seen, error) {
	return lookWith(ctx, h, reach, target, http.Header{})
}

// lookWith is look with headers.
func lookWith(ctx context.Context, h *client.HTTP, reach client.Reach, target string, header http.Header) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return seen{}, err
	}
	req.Header = header
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(ctx, reach, req)
	if err != nil {
		return seen{}, err
	}
	s := seen{status: resp.StatusCode}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		s.ahead, s.dated = time.Since(date), true
	}
	s.body, err = client.ReadAll(resp, client.MaxAnswer)
	return s, err
}

// listings asks each directory of the node for its card.
func (d *examination) listings(ctx context.Context, h *client.HTTP) {
	urls := d.cfg.Joined()
	if d.status != nil && len(d.opts.Directories) == 0 { // those that it really uses
		urls = nil
		for _, joined := range d.status.Directories {
			urls = append(urls, joined.Directory)
			if joined.Error != "" {
				d.fail("registration", "agentmesh register says more", "%s: %s", terminal.Clean(joined.Directory), terminal.Clean(joined.Error))
			}
		}
	}
	if len(urls) == 0 && (d.status != nil || !d.cfg.Has(config.RoleDirectory)) {
		d.warn("directory", "name one: --directory URL, or directories in the configuration", "none is configured: nobody finds the agent, peers add its card by hand")
	}
	for _, u := range urls {
		d.listing(ctx, h, strings.TrimRight(u, "/"))
	}
}

func (d *examination) listing(ctx context.Context, h *client.HTTP, base string) {
	id := d.card.GetStr("agent_id")
	s, err := look(ctx, h, client.Owner, base+"/agents/"+url.PathEscape(id))
	if err != nil {
		d.fail("directory", "is the URL right, and does this machine reach the network?", "%s cannot be reached: %s", terminal.Clean(base), terminal.Clean(err.Error()))
		return
	}
	if s.dated {
		d.clock(base, s.ahead)
	}
	switch {
	case s.status == http.StatusNotFound:
		d.fail("directory", d.whenRunning("agentmesh register"), "%s does not list the agent", terminal.Clean(base))
		return
	case s.status != http.StatusOK:
		d.fail("directory", "is it the URL of an AgentMesh directory? it ends in /v1", "%s answers %d", terminal.Clean(base), s.status)
		return
	}
	listed, err := wire.ParseObject(s.body)
	if err != nil {
		d.fail("directory", "is it the URL of an AgentMesh directory? it ends in /v1", "%s answers no card", terminal.Clean(base))
		return
	}
	if differ := differences(d.card, listed); len(differ) > 0 {
		d.fail("registration", d.whenRunning("agentmesh register"), "%s lists another %s than %s has", terminal.Clean(base), strings.Join(differ, ", "), datadir.FileCard)
		return
	}
	d.ok("registration", "%s lists the card as it is", terminal.Clean(base))
}

// whenRunning is what to do, which takes a serve to last.
func (d *examination) whenRunning(command string) string {
	if d.running {
		return command
	}
	return "agentmesh serve, which registers and renews by itself"
}

// differences names the members of our card that are not the same in a listed one. What a directory adds is its own,
// and the lists of access control it drops (AM-6).
func differences(ours, listed wire.Value) []string {
	var out []string
	for _, m := range ours.Members() {
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

// aLittle is how far clocks may be apart before somebody should look.
const aLittle = 30 * time.Second

// clock compares this machine's clock with the Date of an answer (AM-84). A sender whose clock is ahead is refused
// earlier than one that is behind.
func (d *examination) clock(base string, ahead time.Duration) {
	const do = "run a time service: signed messages outside the window of the receiver are refused (AM-84)"
	off, text := ahead.Abs(), "%s behind that of %s"
	if ahead > 0 {
		text = "%s ahead of that of %s"
	}
	text = fmt.Sprintf("this machine's clock is "+text, off.Round(time.Second), terminal.Clean(base))
	switch {
	case ahead > d.cfg.Window.Future || -ahead > d.cfg.Window.Past:
		d.fail("clock", do, "%s", text)
	case off > aLittle:
		d.warn("clock", do, "%s", text)
	default:
		d.ok("clock", "agrees with that of %s", terminal.Clean(base))
	}
}

// endpoint asks for the card where the card says that the agent is, with the guard that peers have: an address that
// it refuses is one that no peer of this project connects to either.
func (d *examination) endpoint(ctx context.Context, h *client.HTTP, local bool) {
	const check = "endpoint"
	target := d.card.GetStr("endpoint")
	reach := client.Public
	if local {
		if !d.running {
			return
		}
		reach = client.Loopback
	}
	s, err := look(ctx, h, reach, target)
	guard, refused := errors.AsType[*client.GuardError](err)
	switch {
	case refused:
		d.fail(check, "give it a public name and https: public_url, or card.endpoint", "no peer would connect to %s: %s", terminal.Clean(target), terminal.Clean(guard.Error()))
	case err != nil:
		d.fail(check, "is the reverse proxy up, the name right, the certificate good? (docs/operations.md)", "%s cannot be reached: %s", terminal.Clean(target), terminal.Clean(err.Error()))
	case s.status != http.StatusOK:
		d.fail(check, "the reverse proxy must pass every path on", "%s answers %d", terminal.Clean(target), s.status)
	default:
		d.endpointCard(target, s.body)
	}
}

func (d *examination) endpointCard(target string, body []byte) {
	const check = "endpoint"
	card, err := wire.ParseObject(body)
	id := d.card.GetStr("agent_id")
	switch {
	case err != nil || card.GetStr("agent_id") == "":
		d.fail(check, "the reverse proxy must change neither paths nor bodies", "%s answers no card", terminal.Clean(target))
	case card.GetStr("agent_id") != id || card.GetStr("public_key") != d.card.GetStr("public_key"):
		d.fail(check, "one endpoint is one agent: does another one run there, or an old copy of this one?", "%s answers as %s", terminal.Clean(target), terminal.Clean(card.GetStr("agent_id")))
	default:
		d.ok(check, "%s answers with the card", terminal.Clean(target))
	}
}
