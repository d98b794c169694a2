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
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// What doctor says about a directory somewhere else: whether it lists agents, gives their cards as it lists them, says
// that it is well, and has the right time.

// namesDirectory says whether a URL can only mean a directory.
func namesDirectory(u *url.URL) bool {
	path := strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/agents")
	return strings.HasSuffix(path, "/v1")
}

// directoryURLs are where the directory may be that somebody means by u.
func directoryURLs(u *url.URL) []string {
	origin := u.Scheme + "://" + u.Host
	named := origin + strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/agents")
	switch {
	case namesDirectory(u):
		return []string{named}
	case named == origin:
		return []string{origin + "/v1", origin}
	}
	return []string{named + "/v1", named, origin + "/v1"}
}

// directory examines the directory at u. It is false, and nothing was said, where there is none.
func (d *examination) directory(ctx context.Context, h *client.HTTP, reach client.Reach, u *url.URL) bool {
	for _, base := range directoryURLs(u) {
		s, err := look(ctx, h, reach, base+"/agents?limit=1")
		if err != nil || s.status != http.StatusOK {
			continue
		}
		page, err := wire.ParseObject(s.body)
		agents, listed := page.Get("agents")
		if err != nil || !listed || agents.Kind() != wire.Array {
			continue
		}
		if s.dated {
			d.clock(base, s.ahead)
		}
		if agents.Len() == 0 {
			d.ok("directory", "%s answers and lists no agent yet", terminal.Clean(base))
		} else {
			d.ok("directory", "%s answers and lists agents", terminal.Clean(base))
		}
		d.service(ctx, h, reach, u.Scheme+"://"+u.Host)
		for card := range agents.Elems() {
			d.listedCard(ctx, h, reach, base, card)
		}
		return true
	}
	return false
}

// service reads the health document, which a directory of this project has.
func (d *examination) service(ctx context.Context, h *client.HTTP, reach client.Reach, origin string) {
	s, err := look(ctx, h, reach, origin+"/health")
	var doc struct {
		Status string
		Parts  map[string]struct{ Status string }
	}
	if err != nil || s.status != http.StatusOK || json.Unmarshal(s.body, &doc) != nil || doc.Status == "" {
		return // it need not have one
	}
	var unwell []string
	for name, part := range doc.Parts {
		if part.Status != "" && part.Status != "ok" {
			unwell = append(unwell, name+" is "+part.Status)
		}
	}
	slices.Sort(unwell)
	switch said := terminal.Clean(strings.Join(unwell, ", ")); {
	case doc.Status != "ok":
		d.fail("service", "its operator looks with: agentmesh doctor", "%s says that it is %s: %s", terminal.Clean(origin), terminal.Clean(doc.Status), said)
	case len(unwell) > 0:
		d.warn("service", "its operator looks with: agentmesh doctor", "%s says: %s", terminal.Clean(origin), said)
	default:
		d.ok("service", "every part works")
	}
}

// listedCard looks a card up that a list shows.
func (d *examination) listedCard(ctx context.Context, h *client.HTTP, reach client.Reach, base string, listed wire.Value) {
	const check = "cards"
	id := wire.AgentID(listed.GetStr("agent_id"))
	if !id.Valid() {
		d.fail(check, "peers refuse such a card", "the list shows a card without a valid agent_id")
		return
	}
	s, err := look(ctx, h, reach, base+"/agents/"+url.PathEscape(string(id)))
	if err != nil || s.status != http.StatusOK {
		d.fail(check, "does a proxy pass every path on, and answers longer than a list?", "the card of %s is listed and cannot be got", id)
		return
	}
	card, err := wire.ParseObject(s.body)
	switch {
	case err != nil:
		d.fail(check, "a proxy must change neither paths nor bodies", "the card of %s is no JSON object", id)
		return
	case !bytes.Equal(signing.Canonical(card, signing.JCS), signing.Canonical(listed, signing.JCS)):
		d.warn(check, "a cache in between may be old", "the card of %s is another one than the list shows", id)
		return
	}
	s, err = look(ctx, h, reach, base+"/agents/"+url.PathEscape(string(id))+"/record")
	var record struct {
		Verification struct{ Key string }
	}
	if err == nil && s.status == http.StatusOK && json.Unmarshal(s.body, &record) == nil && record.Verification.Key != "" {
		d.ok(check, "that of %s comes as it is listed, with its key proven", id)
		return
	}
	d.ok(check, "that of %s comes as it is listed", id)
}
