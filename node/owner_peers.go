package node

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const nsAliases = "aliases" // key: alias; body: agent id or principal; term "peer:<id>"

var aliasForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// peerView is what is remembered about a peer.
type peerView struct {
	ID          string       `json:"id"`
	Aliases     []string     `json:"aliases,omitempty"`
	Standing    acl.Standing `json:"standing,omitempty"`
	Since       time.Time    `json:"since,omitzero"`
	Fingerprint string       `json:"fingerprint,omitempty"` // of the key that is pinned
	Given       bool         `json:"given,omitempty"`       // the owner gave its card, wrote to it or accepted its key
	Write       bool         `json:"write,omitempty"`       // the owner lets every message to it out
	Unproven    bool         `json:"unproven,omitempty"`    // the id, which is made of a key, does not lead to the pinned one
}

func (n *Node) ownerPeers(c echo.Context) error {
	items, err := n.peerViews(c.Request().Context())
	if err != nil {
		return ownerError(err)
	}
	return respond(c, items, "")
}

// peerViews lists everyone whom the node remembers: rules, aliases, pinned keys.
func (n *Node) peerViews(ctx context.Context) ([]peerView, error) {
	now := time.Now()
	views := map[string]*peerView{}
	view := func(id string) *peerView {
		if views[id] == nil {
			views[id] = &peerView{ID: id}
		}
		return views[id]
	}
	for after := ""; ; {
		rules, next, err := n.rules.List(ctx, acl.Unknown, after, 500, now)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			v := view(r.Principal)
			v.Standing, v.Since = r.Standing, r.Since
		}
		if after = next; after == "" {
			break
		}
	}
	for after := ""; ; {
		rules, next, err := n.recipients.List(ctx, acl.Unknown, after, 500, now)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			view(r.Principal).Write = r.Standing == acl.Approved
		}
		if after = next; after == "" {
			break
		}
	}
	err := n.eachRecord(ctx, nsAliases, now, func(r store.Record) {
		v := view(string(r.Body))
		v.Aliases = append(v.Aliases, r.Key)
	})
	if err != nil {
		return nil, err
	}
	for after := wire.AgentID(""); ; {
		pins, next, err := n.cards.Pins(ctx, after, 500, now)
		if err != nil {
			return nil, err
		}
		for _, p := range pins {
			v := view(string(p.Agent))
			v.Fingerprint, v.Given, v.Unproven = p.Fingerprint, p.Owner, p.IsUnproven()
		}
		if after = next; after == "" {
			break
		}
	}
	for _, id := range n.cfg.Policy.Allow {
		view(id).Standing = acl.Allowed
	}
	for _, id := range n.cfg.Policy.Block {
		view(id).Standing = acl.Blocked
	}
	items := make([]peerView, 0, len(views))
	for _, v := range views {
		items = append(items, *v)
	}
	slices.SortFunc(items, func(a, b peerView) int { return strings.Compare(a.ID, b.ID) })
	return items, nil
}

func (n *Node) eachRecord(ctx context.Context, ns string, now time.Time, do func(store.Record)) error {
	for after := ""; ; {
		page, err := n.store.Records().List(ctx, ns, "", after, 500, now)
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			do(r)
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// ownerAddPeer takes a card by the owner's word: as a document, or fetched from a URL that the owner names.
func (n *Node) ownerAddPeer(c echo.Context) error {
	var req struct {
		Card  wire.Value `json:"card"`
		URL   string     `json:"url"`
		Alias string     `json:"alias"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	if (req.URL == "") == (req.Card.Kind() != wire.Object) {
		return fault(http.StatusBadRequest, "name either a card or the url of one", "")
	}
	if err := checkAlias(req.Alias); req.Alias != "" && err != nil {
		return err
	}
	ctx := c.Request().Context()
	card := req.Card
	if req.URL != "" {
		var err error
		if card, err = n.fetchCard(ctx, req.URL); err != nil {
			return fault(http.StatusBadGateway, "cannot fetch the card: "+err.Error(), "")
		}
	}
	peer, err := n.cards.AddPeer(ctx, card, time.Now())
	if err != nil {
		return fault(http.StatusBadRequest, "the card is not acceptable: "+err.Error(), "check it with: agentmesh card validate")
	}
	entry := acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditRule, Subject: string(peer.Card.ID), By: door(c), Note: "card given by the owner",
		Digest: peer.Key.Fingerprint(),
	}
	if err := n.audit.Add(ctx, entry); err != nil {
		return ownerError(err)
	}
	if req.Alias != "" {
		if err := n.setAlias(ctx, req.Alias, string(peer.Card.ID)); err != nil {
			return err
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		ID          wire.AgentID `json:"id"`
		Name        string       `json:"name"`
		Endpoint    string       `json:"endpoint"`
		Fingerprint string       `json:"fingerprint"`
		Unproven    bool         `json:"unproven,omitempty"`
	}{peer.Card.ID, peer.Card.Name, peer.Card.Endpoint, peer.Key.Fingerprint(), peer.Unproven != nil})
}

// fetchCard gets a card from where the owner says it is.
func (n *Node) fetchCard(ctx context.Context, from string) (wire.Value, error) {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return wire.Value{}, errors.New("not an http URL")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return wire.Value{}, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := n.cfg.HTTP.Do(ctx, client.Owner, req)
	if err != nil {
		return wire.Value{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return wire.Value{}, errors.New("it answered " + resp.Status)
	}
	body, err := client.ReadAll(resp, wire.MaxCard)
	if err != nil {
		return wire.Value{}, err
	}
	return wire.ParseObject(body)
}

// ownerChangePeer carries out one word of the owner about a peer.
func (n *Node) ownerChangePeer(c echo.Context) error {
	var req peerChange
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	ctx := c.Request().Context()
	id, err := n.principal(ctx, c.Param("id"))
	if err != nil {
		return err
	}
	if err := n.changePeer(ctx, id, req, door(c)); err != nil {
		return ownerError(err)
	}
	standing, err := n.rules.Standing(ctx, string(id), time.Now())
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, peerView{ID: string(id), Standing: standing})
}

// peerChange is one word of the owner about a peer.
type peerChange struct {
	Action      string `json:"action"` // allow, approve, block, forget, alias, repin, write, no-write
	Alias       string `json:"alias"`
	Fingerprint string `json:"fingerprint"`
}

// changePeer carries it out, with its line in the audit log. by is the door that the owner used.
func (n *Node) changePeer(ctx context.Context, id wire.AgentID, change peerChange, by string) error {
	peer, now := string(id), time.Now()
	entry := acl.AuditEntry{At: now, Kind: acl.AuditRule, Subject: peer, By: by, Note: change.Action}
	standings := map[string]acl.Standing{
		"allow": acl.Allowed, "approve": acl.Approved, "block": acl.Blocked, "forget": acl.Unknown,
	}
	var changes []store.Change
	switch change.Action {
	case "allow", "approve", "block":
		changes = append(changes, n.rules.Change(peer, standings[change.Action], now))
	case "write":
		changes = append(changes, n.recipients.Change(peer, acl.Approved, now))
	case "no-write":
		changes = append(changes, n.recipients.Change(peer, acl.Unknown, now))
	case "alias":
		if err := checkAlias(change.Alias); err != nil {
			return err
		}
		changes = append(changes, aliasChange(change.Alias, peer))
	case "repin":
		repin, err := n.cards.RepinChanges(ctx, id, change.Fingerprint, now)
		if err != nil {
			return err
		}
		changes, entry.Kind, entry.Digest = repin, acl.AuditKey, change.Fingerprint
	case "forget":
		if err := errors.Join(n.cards.Forget(ctx, id), n.dropAliases(ctx, peer)); err != nil {
			return err
		}
		changes = append(changes, n.rules.Change(peer, acl.Unknown, now), n.recipients.Change(peer, acl.Unknown, now))
	default:
		return fault(http.StatusBadRequest, "action must be allow, approve, block, forget, alias, repin, write or no-write", "")
	}
	changes = append(changes, n.audit.Change(entry))
	if err := n.store.Records().Apply(ctx, changes, now); err != nil {
		return err
	}
	if change.Action == "repin" {
		n.cards.Drop(id)
	}
	return nil
}

func checkAlias(alias string) error {
	if !aliasForm.MatchString(alias) || strings.HasPrefix(alias, "am_") {
		return fault(http.StatusBadRequest, "an alias is 1 to 64 of a-z 0-9 . _ - and does not begin with am_", "")
	}
	return nil
}

func (n *Node) setAlias(ctx context.Context, alias, peer string) error {
	if err := checkAlias(alias); err != nil {
		return err
	}
	return n.store.Records().Apply(ctx, []store.Change{aliasChange(alias, peer)}, time.Now())
}

func aliasChange(alias, peer string) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsAliases, Key: alias, Body: []byte(peer), Terms: []string{"peer:" + peer},
	}}
}

func (n *Node) dropAliases(ctx context.Context, peer string) error {
	page, err := n.store.Records().List(ctx, nsAliases, "peer:"+peer, "", 1000, time.Now())
	if err != nil {
		return err
	}
	var changes []store.Change
	for _, r := range page.Records {
		changes = append(changes, store.Change{Record: store.Record{NS: nsAliases, Key: r.Key}, IfRev: store.Any, Delete: true})
	}
	if len(changes) == 0 {
		return nil
	}
	return n.store.Records().Apply(ctx, changes, time.Now())
}

// Peer turns what the owner typed, an alias or an id, into an agent id.
func (n *Node) Peer(ctx context.Context, name string) (wire.AgentID, error) {
	return n.resolvePeer(ctx, name)
}

// resolvePeer turns what the owner typed into an agent id: an alias, an id, or a foreign address.
func (n *Node) resolvePeer(ctx context.Context, s string) (wire.AgentID, error) {
	r, err := n.store.Records().Get(ctx, nsAliases, s, time.Now())
	switch {
	case s != "" && err == nil:
		return wire.AgentID(r.Body), nil
	case s != "" && !errors.Is(err, store.ErrNotFound):
		return "", ownerError(err)
	case wire.AgentID(s).Valid():
		return wire.AgentID(s), nil
	}
	return "", fault(http.StatusNotFound, "no such peer", "name an agent id (am_…) or an alias; find agents with: agentmesh discover")
}

// principal is resolvePeer for rules, which are also about foreign addresses and about those who stand for many, such as
// a space: whoever a rule is remembered of.
func (n *Node) principal(ctx context.Context, s string) (wire.AgentID, error) {
	id, err := n.resolvePeer(ctx, s)
	if err == nil {
		return id, nil
	}
	if _, parsed := bridge.ParseAddress(s); parsed == nil {
		return wire.AgentID(s), nil
	}
	if standing, known := n.rules.Standing(ctx, s, time.Now()); known == nil && standing != acl.Unknown {
		return wire.AgentID(s), nil
	}
	return "", err
}
