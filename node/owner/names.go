package owner

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
)

// PeerNames are the names of a peer. The owner API has them beside the id of each peer.
type PeerNames struct {
	PeerAlias string `json:"peer_alias,omitempty"` // given by the owner
	PeerName  string `json:"peer_name,omitempty"`  // given by the peer itself: untrusted
}

// ShownName is how a peer is shown to people.
type ShownName struct {
	Text string // untrusted, except if Trusted
	// Trusted reports that Text is the owner's alias.
	Trusted bool
	// Claimed reports that Text is what the peer calls itself. If Text is neither trusted nor claimed, it is a short
	// form of an id or an address.
	Claimed bool
	// Face is the agent id from which pages draw the peer's face; "" if the name is not that of a peer. For a foreign peer,
	// it is the id that stands for the peer in conversations.
	Face string
	// Network is the bridge and the link of a foreign peer without an alias, as in "agentrelay:free".
	Network string
}

// String returns the name on one line, with the network of a foreign peer. A claimed name is in quotes and an alias is
// not, so no claimed name can pass for an alias.
func (s ShownName) String() string {
	text := s.Text
	if s.Claimed {
		text = `"` + strings.ReplaceAll(s.Text, `"`, "'") + `"`
	}
	if s.Network != "" {
		text += " (" + s.Network + ")"
	}
	return text
}

// Faceless returns the name for somebody who only claims to be the peer.
func (s ShownName) Faceless() ShownName {
	s.Face = ""
	return s
}

// The lengths of names, in characters.
const (
	maxClaimedName = 40
	maxShortID     = 11 // enough of an agent id to tell peers apart
	maxSubject     = 100
)

// Pseudonym returns the agent id that stands for a foreign peer behind a link in conversations and transcripts. It is
// stable, local to this node and never registered anywhere.
func Pseudonym(link, peer string) wire.AgentID {
	return wire.DeriveAgentID([]byte("agentmesh-bridge"), []byte(link), []byte(peer))
}

// ShowName decides how a peer is shown: by the owner's alias, else by the name that it gives itself, else by a short
// form of its foreign address or its id. address and id may be the same or empty.
func ShowName(names PeerNames, address, id string) ShownName {
	network, foreignID, foreign := strings.Cut(address, "/")
	_, link, _ := strings.Cut(network, ":")
	shown := ShownName{Face: id}
	if foreign && link != "" {
		shown.Face, shown.Network = string(Pseudonym(link, foreignID)), network
	} else {
		foreignID = ""
	}
	claimed := wire.OneLine(names.PeerName, maxClaimedName)
	switch {
	case names.PeerAlias != "":
		shown.Text, shown.Trusted, shown.Network = names.PeerAlias, true, ""
	case claimed != "" && names.PeerName != foreignID: // a name that repeats the id adds nothing
		shown.Text, shown.Claimed = claimed, true
	case foreignID != "":
		shown.Text = wire.OneLine(foreignID, maxClaimedName)
	default:
		shown.Text = ShortID(cmp.Or(id, address))
	}
	return shown
}

// ShowSubject decides how the subject of an audit entry is shown. An operator decides about a card or a ban, such as
// network:192.0.2.0/24, which is shown whole: it is not a peer.
func ShowSubject(e acl.AuditEntry, names PeerNames) ShownName {
	if e.Kind == acl.AuditOperator {
		return ShownName{Text: wire.OneLine(e.Subject, maxSubject)}
	}
	return ShowName(names, e.Subject, e.Subject)
}

// ShortID returns the beginning of an agent id, or another id on one line.
func ShortID(id string) string {
	if wire.AgentID(id).Valid() && len(id) > maxShortID+3 {
		return id[:maxShortID] + "…"
	}
	return wire.OneLine(id, maxClaimedName)
}

// Shown returns how to show the peer of a conversation.
func (c Conversation) Shown() ShownName {
	return ShowName(c.PeerNames, cmp.Or(c.Address, c.Principal), c.Peer)
}

// Shown returns how to show the peer of an item.
func (i Item) Shown() ShownName {
	return ShowName(PeerNames{i.PeerAlias, i.PeerName}, i.Address, string(i.Peer))
}

// Shown returns how to show the other side of a question.
func (a Approval) Shown() ShownName { return ShowName(a.PeerNames, a.Address(), a.Subject) }

// Shown returns how to show the recipient of a message.
func (e OutboxEntry) Shown() ShownName { return ShowName(e.PeerNames, e.Address, string(e.To)) }

// Shown returns how to show the peer of a notice. Without a peer, the text is empty.
func (n Notice) Shown() ShownName { return ShowName(n.PeerNames, "", string(n.Peer)) }

// Detail returns the text of the notice, without the peer's name and id if the text begins with them.
func (n Notice) Detail() string {
	before, after, found := strings.Cut(n.Text, ShortID(string(n.Peer)))
	if n.Peer != "" && found && (before == "" || strings.HasSuffix(before, " (")) {
		return strings.TrimLeft(after, "): ")
	}
	return n.Text
}

// Shown returns how to show a peer.
func (p Peer) Shown() ShownName { return p.ShownAt(p.ID) }

// ShownAt returns how to show a peer with a foreign address. address is the id of the peer if the peer has no foreign
// address.
func (p Peer) ShownAt(address string) ShownName {
	names := PeerNames{PeerName: p.Name}
	if len(p.Aliases) > 0 {
		names.PeerAlias = p.Aliases[0]
	}
	return ShowName(names, address, p.ID)
}

// Names looks up the names of peers.
type Names interface {
	// NamesOf returns the names that the node has stored for the peer with an agent id or a foreign address.
	NamesOf(ctx context.Context, id string) (PeerNames, error)
}

// namer looks up each peer of one answer once.
type namer struct {
	ctx   context.Context
	names Names
	seen  map[string]PeerNames
	err   error // the first error
}

func newNamer(ctx context.Context, names Names) *namer {
	return &namer{ctx: ctx, names: names, seen: make(map[string]PeerNames)}
}

// fill sets the alias to that of the first of ids that has one, and the claimed name likewise. It keeps a name that is
// already set, because that name comes from the message.
func (l *namer) fill(into *PeerNames, ids ...string) {
	for _, id := range ids {
		if id == "" || l.err != nil {
			continue
		}
		found, ok := l.seen[id]
		if !ok {
			found, l.err = l.names.NamesOf(l.ctx, id)
			l.seen[id] = found
		}
		into.PeerAlias, into.PeerName = cmp.Or(into.PeerAlias, found.PeerAlias), cmp.Or(into.PeerName, found.PeerName)
	}
}

func (l *namer) fillItem(i *Item) {
	names := PeerNames{i.PeerAlias, i.PeerName}
	l.fill(&names, string(i.Peer), i.Address)
	i.PeerAlias, i.PeerName = names.PeerAlias, names.PeerName
}

func (l *namer) fillApproval(a *Approval) {
	a.PeerName = a.Name
	l.fill(&a.PeerNames, a.Subject)
	if len(a.Messages) > 0 {
		l.fill(&a.PeerNames, string(a.Messages[0].From))
	}
}

func (l *namer) fillConversation(c *Conversation) {
	l.fill(&c.PeerNames, c.Peer, c.Address, c.Principal)
}

// WithNames returns n with names beside the ids of peers in what it lists.
func WithNames(n Node) Node { return named{n} }

// named adds names to what a Node lists.
type named struct{ Node }

// fillOne returns v with the names that fill adds. err is the error of the call that returned v; fillOne prefers it to
// an error of a look-up.
func fillOne[T any](ctx context.Context, n Names, v T, err error, fill func(*namer, *T)) (T, error) {
	l := newNamer(ctx, n)
	fill(l, &v)
	return v, cmp.Or(err, l.err)
}

func fillList[T any](ctx context.Context, n Names, page List[T], err error, fill func(*namer, *T)) (List[T], error) {
	return fillOne(ctx, n, page, err, func(l *namer, page *List[T]) {
		for i := range page.Items {
			fill(l, &page.Items[i])
		}
	})
}

func (n named) ListItems(ctx context.Context, q Query) (List[Item], error) {
	page, err := n.Node.ListItems(ctx, q)
	return fillList(ctx, n, page, err, (*namer).fillItem)
}

func (n named) FindItem(ctx context.Context, id string) (Item, error) {
	item, err := n.Node.FindItem(ctx, id)
	return fillOne(ctx, n, item, err, (*namer).fillItem)
}

func (n named) ListOutbox(ctx context.Context, q Query) (List[OutboxEntry], error) {
	page, err := n.Node.ListOutbox(ctx, q)
	return fillList(ctx, n, page, err, func(l *namer, e *OutboxEntry) { l.fill(&e.PeerNames, string(e.To), e.Address) })
}

func (n named) ListApprovals(ctx context.Context, q Query) (List[Approval], error) {
	page, err := n.Node.ListApprovals(ctx, q)
	return fillList(ctx, n, page, err, (*namer).fillApproval)
}

func (n named) FindApproval(ctx context.Context, id string) (Approval, error) {
	ask, err := n.Node.FindApproval(ctx, id)
	return fillOne(ctx, n, ask, err, (*namer).fillApproval)
}

func (n named) Decide(ctx context.Context, id string, d Decision, wait time.Duration) (Decided, error) {
	decided, err := n.Node.Decide(ctx, id, d, wait)
	newNamer(ctx, n).fill(&decided.PeerNames, decided.Subject) // the decision is made, even if the look-up fails
	return decided, err
}

func (n named) ListConversations(ctx context.Context, q Query) (ConversationList, error) {
	list, err := n.Node.ListConversations(ctx, q)
	items, err := fillList(ctx, n, List[Conversation]{Items: list.Items}, err, (*namer).fillConversation)
	return ConversationList{items.Items, list.Next}, err
}

func (n named) ReadTranscript(ctx context.Context, id, peer string, after uint64) (Transcript, error) {
	t, err := n.Node.ReadTranscript(ctx, id, peer, after)
	return fillOne(ctx, n, t, err, func(l *namer, t *Transcript) { l.fillConversation(&t.Conversation) })
}

// Notice is a notice with the names of the peer that it is about.
type Notice struct {
	notify.Notice
	PeerNames
}

// NamedNotices lists notices with names.
func NamedNotices(ctx context.Context, n Node, q Query) (List[Notice], error) {
	page, err := n.ListNotices(ctx, q)
	list := Page(make([]Notice, len(page.Items)), page.Next)
	for i, notice := range page.Items {
		list.Items[i].Notice = notice
	}
	return fillList(ctx, n, list, err, func(l *namer, v *Notice) { l.fill(&v.PeerNames, string(v.Peer)) })
}

// AddNames returns v, an answer of a bridge, with a member "peer_names": the names of the parties with these ids.
func AddNames(ctx context.Context, names Names, v wire.Value, ids ...string) (wire.Value, error) {
	all := wire.Obj()
	for _, id := range ids {
		if !strings.HasPrefix(id, "am_") {
			continue // not an agent of the mesh; only the bridge knows this id
		}
		found, err := names.NamesOf(ctx, id)
		if err != nil {
			return v, err
		}
		if one := wire.Obj().WithOptional("peer_alias", found.PeerAlias).WithOptional("peer_name", found.PeerName); one.Len() > 0 {
			all = all.With(id, one)
		}
	}
	if all.Len() == 0 {
		return v, nil
	}
	return v.With("peer_names", all), nil
}

// ShowParty returns how to show the party whose id is a member of v, with the names that [AddNames] added, or "-".
func ShowParty(v wire.Value, member string) string {
	all, _ := v.Get("peer_names")
	id := v.GetStr(member)
	found, _ := all.Get(id)
	return cmp.Or(ShowName(PeerNames{found.GetStr("peer_alias"), found.GetStr("peer_name")}, id, id).String(), "-")
}

// NameParties returns v, an answer of a bridge, for a person: names that [AddNames] added replace the ids of the
// requester, the executor and the senders. The requester and the executor keep their id beside the name. Messages stay
// as they were sent.
func NameParties(v wire.Value) wire.Value { return nameParties(v, wire.Obj()) }

func nameParties(v, names wire.Value) wire.Value {
	if v.Kind() == wire.Array {
		var list []wire.Value
		for e := range v.Elems() {
			list = append(list, nameParties(e, names))
		}
		return wire.Arr(list...)
	}
	if v.Kind() != wire.Object {
		return v
	}
	if found, ok := v.Get("peer_names"); ok {
		names = found
	}
	members := slices.Clone(v.Without("peer_names").Members())
	for i, m := range members {
		switch m.Key {
		case "requestor_id", "executor_id", "from":
			id, _ := m.Value.Str()
			if _, ok := names.Get(id); !ok {
				continue
			}
			shown := ShowParty(wire.Obj(m, wire.Field("peer_names", names)), m.Key)
			if m.Key != "from" {
				shown += " (" + id + ")"
			}
			members[i].Value = wire.Text(shown)
		case "mess": // a message, which stays as it was sent
		default:
			members[i].Value = nameParties(m.Value, names)
		}
	}
	return wire.Obj(members...)
}
