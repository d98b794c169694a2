package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const nsAliases = "aliases" // key: alias; body: agent id or principal; term aliasTerm

var aliasForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ListPeers implements [owner.Peers]. It lists the peers that the node knows from rules, recipients, aliases, pinned
// keys and the configuration. If onlyID is not empty, it lists at most the peer with that id.
func (o OwnerAPI) ListPeers(ctx context.Context, onlyID string) ([]owner.Peer, error) {
	n := o.n
	now := time.Now()
	views := map[string]*owner.Peer{}
	view := func(id string) *owner.Peer {
		if views[id] == nil {
			views[id] = &owner.Peer{ID: id}
		}
		return views[id]
	}
	for r, err := range n.rules.All(ctx, onlyID, now) {
		if err != nil {
			return nil, err
		}
		v := view(r.Principal)
		v.Standing, v.Since = r.Standing, r.Since
	}
	for r, err := range n.recipients.All(ctx, onlyID, now) {
		if err != nil {
			return nil, err
		}
		view(r.Principal).Write = r.Standing == acl.Approved
	}
	term := ""
	if onlyID != "" {
		term = aliasTerm(onlyID)
	}
	for r, err := range store.AllRecords(ctx, n.store.Records(), nsAliases, term, now) {
		if err != nil {
			return nil, err
		}
		v := view(string(r.Body))
		v.Aliases = append(v.Aliases, r.Key)
	}
	for p, err := range n.cards.Pins(ctx, wire.AgentID(onlyID), now) {
		if err != nil {
			return nil, err
		}
		v := view(string(p.Agent))
		v.Name, v.Fingerprint, v.FromOwner, v.Unproven = p.Name, p.Fingerprint, p.FromOwner, p.IsUnproven()
	}
	for _, id := range n.cfg.Policy.Allow {
		if v := view(id); v.Standing != acl.Blocked { // a block is stronger
			v.Standing, v.Configured = acl.Allowed, true
		}
	}
	for _, id := range n.cfg.Policy.Block {
		v := view(id)
		v.Standing, v.Configured = acl.Blocked, true
	}
	for _, r := range n.cfg.Policy.Hold {
		for _, id := range r.Unless.Peers {
			view(id).Alone = r.Words()
		}
	}
	items := make([]owner.Peer, 0, len(views))
	for id, v := range views {
		if onlyID == "" || onlyID == id {
			items = append(items, *v)
		}
	}
	slices.SortFunc(items, func(a, b owner.Peer) int { return strings.Compare(a.ID, b.ID) })
	return items, nil
}

// AddPeer implements [owner.Peers].
func (o OwnerAPI) AddPeer(ctx context.Context, in owner.NewPeer, by string) (owner.AddedPeer, error) {
	if (in.URL == "") == (in.Card.Kind() != wire.Object) {
		return owner.AddedPeer{}, owner.Fault(http.StatusBadRequest, "give either a card or the url of a card", "")
	}
	if err := checkAlias(in.Alias); in.Alias != "" && err != nil {
		return owner.AddedPeer{}, err
	}
	card := in.Card
	if in.URL != "" {
		var err error
		if card, err = o.fetchCard(ctx, in.URL); err != nil {
			return owner.AddedPeer{}, owner.Fault(http.StatusBadGateway, "cannot fetch the card: "+err.Error(), "")
		}
	}
	peer, err := o.n.cards.AddPeer(ctx, card, time.Now())
	if err != nil {
		return owner.AddedPeer{}, owner.Fault(http.StatusBadRequest, "the card is not acceptable: "+err.Error(), "check it with: agentmesh card validate")
	}
	entry := acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditRule, Subject: string(peer.Card.ID), By: by, Note: "card given by the owner",
		Digest: peer.Key.Fingerprint(),
	}
	if err := o.n.audit.Add(ctx, entry); err != nil {
		return owner.AddedPeer{}, err
	}
	if in.Alias != "" {
		if err := o.n.store.Records().Apply(ctx, []store.Change{aliasChange(in.Alias, string(peer.Card.ID))}, time.Now()); err != nil {
			return owner.AddedPeer{}, err
		}
	}
	return owner.AddedPeer{
		ID: peer.Card.ID, Name: peer.Card.Name, Endpoint: peer.Card.Endpoint, Fingerprint: peer.Key.Fingerprint(),
		Unproven: peer.Unproven != nil,
	}, nil
}

func (o OwnerAPI) fetchCard(ctx context.Context, from string) (wire.Value, error) {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return wire.Value{}, errors.New("not an http URL")
	}
	resp, body, err := o.n.cfg.HTTP.Get(ctx, client.Owner, u.String(), nil, wire.MaxCard)
	switch {
	case resp != nil && resp.StatusCode != http.StatusOK:
		return wire.Value{}, errors.New("the server answered " + resp.Status)
	case err != nil:
		return wire.Value{}, err
	}
	return wire.ParseObject(body)
}

// ChangePeer implements [owner.Peers].
func (o OwnerAPI) ChangePeer(ctx context.Context, name string, change owner.PeerChange, by string) (owner.Peer, error) {
	id, err := o.resolvePrincipal(ctx, name)
	if err == nil {
		err = o.changePeer(ctx, id, change, by)
	}
	if err != nil {
		return owner.Peer{}, err
	}
	peers, err := o.ListPeers(ctx, string(id))
	return append(peers, owner.Peer{ID: string(id)})[0], err // a forgotten peer is not in the list
}

// changePeer applies a change to a peer, with an audit line.
func (o OwnerAPI) changePeer(ctx context.Context, id wire.AgentID, change owner.PeerChange, by string) error {
	n := o.n
	peer, now := string(id), time.Now()
	entry := acl.AuditEntry{At: now, Kind: acl.AuditRule, Subject: peer, By: by, Note: change.Action}
	standings := map[string]acl.Standing{
		"allow": acl.Allowed, "approve": acl.Approved, "block": acl.Blocked, "unblock": acl.Unknown,
	}
	var changes []store.Change
	switch change.Action {
	case "allow", "approve", "block", "unblock":
		pins, err := n.pinChanges(ctx, id, nil, standings[change.Action].Known(), now)
		if err != nil {
			return err
		}
		changes = append(pins, n.rules.Change(peer, standings[change.Action], now))
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
		if err := n.cards.Forget(ctx, id); err != nil {
			return err
		}
		for r, err := range store.AllRecords(ctx, n.store.Records(), nsAliases, aliasTerm(peer), now) {
			if err != nil {
				return err
			}
			changes = append(changes, store.Change{Record: store.Record{NS: nsAliases, Key: r.Key}, IfRev: store.Any, Delete: true})
		}
		changes = append(changes, n.rules.Change(peer, acl.Unknown, now), n.recipients.Change(peer, acl.Unknown, now))
	default:
		return owner.Fault(http.StatusBadRequest, "action must be allow, approve, block, unblock, forget, alias, repin, write or no-write", "")
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
		return owner.Fault(http.StatusBadRequest, "an alias has 1 to 64 characters (a-z 0-9 . _ -), begins with a letter or digit, and does not begin with am_", "")
	}
	return nil
}

func aliasChange(alias, peer string) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsAliases, Key: alias, Body: []byte(peer), Terms: []string{aliasTerm(peer)},
	}}
}

// aliasTerm returns the index term of the aliases of a peer.
func aliasTerm(peer string) string { return "peer:" + peer }

// Peer returns the agent id for what the owner typed as a recipient. Its errors are for the owner.
func (n *Node) Peer(ctx context.Context, name string) (wire.AgentID, error) {
	return n.OwnerAPI().resolveShown(ctx, name)
}

func (o OwnerAPI) resolvePeer(ctx context.Context, s string) (wire.AgentID, error) {
	r, err := o.n.store.Records().Get(ctx, nsAliases, s, time.Now())
	switch {
	case s != "" && err == nil:
		return wire.AgentID(r.Body), nil
	case s != "" && !errors.Is(err, store.ErrNotFound):
		return "", err
	case wire.AgentID(s).Valid():
		return wire.AgentID(s), nil
	}
	return "", errNoPeer
}

var errNoPeer = owner.Fault(http.StatusNotFound, "no such peer", "name an agent id (am_…), an alias, or a name as it is shown; find agents with: agentmesh discover")

// resolveShown is resolvePeer for the recipient of a message. It also accepts what the owner sees of a peer: the name that it
// gives itself, or the beginning of its id with an ellipsis, without which am_bob is another agent than am_bob2. It never
// guesses: two peers of that name are an error. Rules need an id or an alias, because anybody can take a name.
func (o OwnerAPI) resolveShown(ctx context.Context, s string) (wire.AgentID, error) {
	id, err := o.resolvePeer(ctx, s)
	if !errors.Is(err, errNoPeer) {
		return id, err
	}
	peers, err := o.ListPeers(ctx, "")
	if err != nil {
		return "", err
	}
	typed := strings.Trim(strings.TrimSpace(s), "\"“”")
	start, isStart := strings.CutSuffix(typed, "…")
	isMeant := func(p owner.Peer) bool {
		if isID := strings.HasPrefix(typed, "am_"); isID || typed == "" {
			return isID && isStart && strings.HasPrefix(p.ID, start)
		}
		return strings.EqualFold(p.Shown().Text, typed) || slices.Contains(p.Aliases, strings.ToLower(typed))
	}
	found := slices.DeleteFunc(peers, func(p owner.Peer) bool {
		return p.Standing == acl.Blocked || !wire.AgentID(p.ID).Valid() || !isMeant(p)
	})
	switch {
	case len(found) == 0:
		return "", errNoPeer
	case len(found) > 1:
		const most = 5
		var ids []string
		for _, p := range found[:min(len(found), most)] {
			ids = append(ids, p.ID)
		}
		return "", owner.Fault(http.StatusConflict, fmt.Sprintf("%d peers are called that", len(found)), "name one of them by its id, or give it an alias: "+strings.Join(ids, ", "))
	}
	return wire.AgentID(found[0].ID), nil
}

// resolvePrincipal is resolvePeer for rules. It also accepts a foreign address, a link, which stands for all peers behind
// it, and every principal that already has a rule, such as a link that was removed.
func (o OwnerAPI) resolvePrincipal(ctx context.Context, s string) (wire.AgentID, error) {
	id, err := o.resolvePeer(ctx, s)
	if err == nil {
		return id, nil
	}
	_, parseErr := bridge.ParseAddress(s)
	_, isLink := o.n.bridges.modes.Load(s)
	standing, ruleErr := o.n.rules.Standing(ctx, s, time.Now())
	if parseErr == nil || isLink || ruleErr == nil && standing != acl.Unknown {
		return wire.AgentID(s), nil
	}
	return "", err
}

// ForeignCard returns the card of an agent in another network, which may have had no message yet. It fetches the card
// only if the owner's rules let a message leave for that agent, because the request tells something, too. ok is false
// for what is no such address.
func (n *Node) ForeignCard(ctx context.Context, name string) (card wire.Value, ok bool, err error) {
	address, err := bridge.ParseAddress(name)
	if err != nil {
		return card, false, nil
	}
	attached, _ := n.bridges.find(address.Kind)
	reader, ok := attached.service.(bridge.CardReader)
	if !ok {
		return card, false, nil
	}
	p, err := n.permit(ctx, Outgoing{To: address.Pseudonym(), Address: address.String(), Intent: wire.Deliver}, time.Now())
	switch {
	case err != nil:
		return card, true, err
	case p.NeedsOwner:
		return card, true, httpapi.ErrOwnerDecides
	}
	if card, err = reader.ReadCard(ctx, address); err != nil {
		err = owner.Fault(http.StatusBadGateway, "the card of this address cannot be read now", "the address may be wrong; a message would wait until the agent can be reached")
	}
	return card, true, err
}

// Card implements [owner.Listings].
func (o OwnerAPI) Card() wire.Card { return o.n.Card() }

// RegisterIn implements [owner.Listings].
func (o OwnerAPI) RegisterIn(ctx context.Context, in owner.Register, by string) ([]owner.Listing, error) {
	do, what := o.n.registrar.Register, "register"
	if in.Adopt {
		do, what = o.n.registrar.Adopt, "register and adopt the id that the directory assigns"
	}
	if err := o.auditListing(ctx, what, in.Directory, by); err != nil {
		return nil, err
	}
	before := o.n.ID()
	listings, err := do(ctx, in.Directory)
	if err == nil && o.n.ID() != before {
		err = o.auditListing(ctx, "the agent id was "+string(before), in.Directory, by)
	}
	return listings, err
}

// WithdrawFrom implements [owner.Listings].
func (o OwnerAPI) WithdrawFrom(ctx context.Context, in owner.Withdraw, by string) ([]owner.Listing, error) {
	if err := o.auditListing(ctx, "withdraw", in.Directory, by); err != nil {
		return nil, err
	}
	return o.n.registrar.Withdraw(ctx, in.Directory)
}

// auditListing writes an audit line about a change of the node's registrations by the owner.
func (o OwnerAPI) auditListing(ctx context.Context, what, directory, by string) error {
	return o.n.audit.Add(ctx, acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditRegistration, Subject: string(o.n.ID()), By: by, Note: what, Rule: wire.OneLine(directory, 200),
	})
}

// RotateKey implements [owner.Listings].
func (o OwnerAPI) RotateKey(ctx context.Context, by string) ([]owner.Listing, error) {
	listings, err := o.n.registrar.RotateKey(ctx)
	if err != nil {
		return nil, err
	}
	return listings, o.n.audit.Add(ctx, acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditKey, Subject: string(o.n.ID()), By: by, Note: "our key was rotated", Digest: o.n.fingerprint(),
	})
}

// Discover implements [owner.Listings].
func (o OwnerAPI) Discover(ctx context.Context, directory string, q client.Query) ([]owner.Found, error) {
	directories, err := o.n.registrar.Directories(directory)
	if err != nil {
		return nil, err
	}
	answers := make([]owner.Found, len(directories))
	var all sync.WaitGroup
	for i, d := range directories {
		all.Go(func() {
			answer := owner.Found{Directory: d.Base}
			listing, err := d.Search(ctx, q)
			if err != nil {
				answer.Error, answer.Hint = wire.OneLine(err.Error(), 300), client.HintOf(err)
			}
			answer.Listing = listing
			for _, card := range listing.Agents {
				if client.CheckCardID(card, time.Now()) != nil {
					answer.Unproven = append(answer.Unproven, wire.AgentID(card.GetStr("agent_id")))
				}
			}
			answers[i] = answer
		})
	}
	all.Wait()
	return answers, nil
}
