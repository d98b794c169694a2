package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

func isDirectoryURL(u *url.URL) bool {
	path := strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/agents")
	return strings.HasSuffix(path, "/v1")
}

// directoryURLs returns what may be the base URL of the directory that the user named by u.
func directoryURLs(u *url.URL) []string {
	origin := u.Scheme + "://" + u.Host
	base := origin + strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/agents")
	switch {
	case isDirectoryURL(u):
		return []string{base}
	case base == origin:
		return []string{origin + "/v1", origin}
	}
	return []string{base + "/v1", base, origin + "/v1"}
}

// checkDirectory examines the directory at u as its users see it: whether it lists agents, returns the first card as
// listed, reports good health, and has the right time. It returns false, without a finding, if u is not a directory.
func (d *examination) checkDirectory(ctx context.Context, p peer, u *url.URL) bool {
	for _, base := range directoryURLs(u) {
		s, err := p.get(ctx, base+"/agents?limit=1", nil)
		if err != nil || s.status != http.StatusOK {
			continue
		}
		page, err := wire.ParseObject(s.body)
		agents, listed := page.Get("agents")
		if err != nil || !listed || agents.Kind() != wire.Array {
			continue
		}
		if s.dated {
			d.checkClock(base, s.ahead)
		}
		if agents.Len() == 0 {
			d.ok("directory", "%s answers and lists no agent yet", terminal.Clean(base))
		} else {
			d.ok("directory", "%s answers and lists agents", terminal.Clean(base))
		}
		d.checkHealth(ctx, p, u.Scheme+"://"+u.Host)
		for card := range agents.Elems() {
			d.checkListedCard(ctx, p, base, card)
		}
		return true
	}
	return false
}

// checkHealth reads the health document. Only directories of this project have one.
func (d *examination) checkHealth(ctx context.Context, p peer, origin string) {
	s, err := p.get(ctx, origin+"/health", nil)
	var doc struct {
		Status string
		Parts  map[string]struct{ Status string }
	}
	if err != nil || s.status != http.StatusOK || json.Unmarshal(s.body, &doc) != nil || doc.Status == "" {
		return // other directories need not have one
	}
	var failing []string
	for name, part := range doc.Parts {
		if part.Status != "" && part.Status != "ok" {
			failing = append(failing, name+" is "+part.Status)
		}
	}
	slices.Sort(failing)
	switch text := terminal.Clean(strings.Join(failing, ", ")); {
	case doc.Status != "ok":
		d.fail("service", "its operator can run: agentmesh doctor", "%s reports that it is %s: %s", terminal.Clean(origin), terminal.Clean(doc.Status), text)
	case len(failing) > 0:
		d.warn("service", "its operator can run: agentmesh doctor", "%s reports: %s", terminal.Clean(origin), text)
	default:
		d.ok("service", "every part works")
	}
}

// checkListedCard fetches a card that the list shows and compares the two.
func (d *examination) checkListedCard(ctx context.Context, p peer, base string, listed wire.Value) {
	const check = "cards"
	id := wire.AgentID(listed.GetStr("agent_id"))
	if !id.Valid() {
		d.fail(check, "peers refuse such a card", "the list shows a card without a valid agent_id")
		return
	}
	s, err := p.get(ctx, base+"/agents/"+url.PathEscape(string(id)), nil)
	if err != nil || s.status != http.StatusOK {
		d.fail(check, "does the proxy forward every path, and answers of every size?", "the card of %s is listed but cannot be fetched", id)
		return
	}
	card, err := wire.ParseObject(s.body)
	switch {
	case err != nil:
		d.fail(check, "a proxy must change neither paths nor bodies", "the card of %s is not a JSON object", id)
		return
	case !bytes.Equal(signing.Canonical(card, signing.JCS), signing.Canonical(listed, signing.JCS)):
		d.warn(check, "a cache in between may be out of date", "the card of %s differs from the one in the list", id)
		return
	}
	s, err = p.get(ctx, base+"/agents/"+url.PathEscape(string(id))+"/record", nil)
	var record struct {
		Verification struct{ Key string }
	}
	hasRecord := err == nil && s.status == http.StatusOK && json.Unmarshal(s.body, &record) == nil
	if hasRecord && record.Verification.Key != "" {
		d.ok(check, "the card of %s is the same as in the list, and its key is proven", id)
		return
	}
	d.ok(check, "the card of %s is the same as in the list", id)
}
