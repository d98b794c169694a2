package link

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Conversation is a conversation of the mesh that a space may see, because the owner shares it or a participant opened
// it with the tool send (MEW-L6).
type Conversation struct {
	Conv    wire.ConversationID `json:"conversation_id"`
	Peer    wire.AgentID        `json:"peer"`
	Address string              `json:"address,omitempty"` // of a foreign peer
	To      string              `json:"to,omitempty"`      // the participant who may see it; empty: everybody
	After   uint64              `json:"after,omitempty"`   // number of the last entry that the space got
	Silent  bool                `json:"silent,omitempty"`  // the link sends the space no new entries
}

// network returns the network of the conversation: AgentMesh, or the name of a link.
func (c Conversation) network() string {
	if a, err := bridge.ParseAddress(c.Address); err == nil {
		return a.Link
	}
	return networkMesh
}

func (c Conversation) isVisibleTo(participant string) bool { return c.To == "" || c.To == participant }

// transitMember is a member in the payload of a forwarded message. No node forwards such a message again (MEW-L6).
const transitMember = "agentmesh"

// kindConversation is the kind of the record of a [Conversation], whoever opened it.
const kindConversation = "brought"

const (
	maxConversations = 200 // conversations that the owner shares
	// maxOpened bounds the conversations that all participants together opened. A bound for each participant is not
	// enough, because a participant may have a new id at each join.
	maxOpened      = 500
	maxOpenedByOne = 50 // conversations that one participant opened
	maxShared      = 50 // entries of a conversation that a space gets at once
)

// Conversations returns the conversations that the space may see: those that the owner shares, then those that
// participants opened.
func (l *Link) Conversations(ctx context.Context) ([]Conversation, error) {
	var out []Conversation
	for _, term := range []string{"/" + kindConversation, "/opened"} { // shared by the owner, opened by participants
		for rec, err := range store.AllRecords(ctx, l.records.store, nsLinks, l.cfg.Name+term, time.Now()) {
			if err != nil {
				return nil, err
			}
			var c Conversation
			if json.Unmarshal(rec.Body, &c) == nil {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// changeOf returns the change that stores a conversation. The conversations that the owner shares are counted together,
// and those that a participant opened are counted for that participant.
func (r *records) changeOf(c Conversation) store.Change {
	change := r.remember(kindConversation, openKey(c.Peer, c.Conv), c, keepConversation)
	change.Max = maxConversations
	if c.To != "" {
		change.Record.Terms = []string{r.openedBy(c.To), r.link + "/opened"}
		change.Max = maxOpenedByOne
	}
	return change
}

// openedBy returns the search term of the conversations that a participant opened.
func (r *records) openedBy(participant string) string {
	return r.key("opened", envelope.Digest(participant))
}

// open stores a conversation that a participant opens. If the participant, or all participants together, have opened
// too many, it replaces the conversation whose entries the space got least recently.
func (r *records) open(ctx context.Context, c Conversation) error {
	now := time.Now()
	own, err := r.store.List(ctx, nsLinks, r.openedBy(c.To), "", maxOpenedByOne, now)
	if err != nil {
		return err
	}
	all, err := r.store.List(ctx, nsLinks, r.link+"/opened", "", maxOpened, now)
	if err != nil {
		return err
	}
	var full []store.Record
	switch {
	case len(own.Records) == maxOpenedByOne:
		full = own.Records
	case len(all.Records) == maxOpened:
		full = all.Records
	}
	var changes []store.Change
	if full != nil {
		oldest := slices.MinFunc(full, func(x, y store.Record) int { return x.Expires.Compare(y.Expires) }) // each entry that the space gets extends Expires
		changes = append(changes, store.Change{Record: store.Record{NS: nsLinks, Key: oldest.Key}, IfRev: oldest.Rev, Delete: true})
	}
	return r.store.Apply(ctx, append(changes, r.changeOf(c)), now)
}

// maxUnshared bounds the conversations that the owner can choose from on the page.
const maxUnshared = 30

// Unshared returns conversations that the owner may share with the space and that the space does not see yet. It
// searches only the newest conversations.
func (l *Link) Unshared(ctx context.Context) (list []Conversation, err error) {
	seen, err := l.Conversations(ctx)
	if err != nil {
		return nil, err
	}
	page, err := l.b.cfg.Steps.Conversations(ctx, "", 0, maxUnshared, time.Now())
	if err != nil {
		return nil, err
	}
	for _, row := range page.Conversations {
		conv, err := conversations.Decode(row)
		if err != nil {
			return nil, err
		}
		c := Conversation{Conv: wire.ConversationID(row.Key.ID), Peer: wire.AgentID(row.Key.Peer), Address: conv.Address}
		isSeen := slices.ContainsFunc(seen, func(s Conversation) bool { return s.Conv == c.Conv && s.Peer == c.Peer })
		if !isSeen && l.allowsTransit(c.network(), l.cfg.Name) {
			list = append(list, c)
		}
	}
	return list, nil
}

// SetSharing shows a conversation to the space, or hides it again.
func (l *Link) SetSharing(ctx context.Context, key store.ConvKey, show bool) error {
	rest := openKey(wire.AgentID(key.Peer), wire.ConversationID(key.ID))
	if !show {
		l.records.apply(ctx, l.records.drop(kindConversation, rest))
		return nil
	}
	conv, err := l.b.cfg.Steps.Conversation(ctx, key, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return view.NewFault(http.StatusNotFound, "there is no such conversation")
	} else if err != nil {
		return err
	}
	decoded, err := conversations.Decode(conv)
	if err != nil {
		return err
	}
	c := Conversation{Conv: wire.ConversationID(key.ID), Peer: wire.AgentID(key.Peer), Address: decoded.Address}
	if from := c.network(); !l.allowsTransit(from, l.cfg.Name) {
		return view.NewFault(http.StatusForbidden, "no rule allows messages to pass into this space: policy.transit needs {from: "+from+", to: "+l.cfg.Name+"}")
	}
	if conv.Entries > maxShared {
		c.After = conv.Entries - maxShared
	}
	if err := l.records.store.Apply(ctx, []store.Change{l.records.changeOf(c)}, time.Now()); errors.Is(err, store.ErrQuota) {
		return view.NewFault(http.StatusTooManyRequests, "this space sees as many conversations as it may see; hide one first")
	} else if err != nil {
		return err
	}
	waiting.Wake(l.shareWake)
	return nil
}

// runSharing tells the space about expired proposals and requests, and sends it the new entries of conversations, until
// ctx ends.
func (l *Link) runSharing(ctx context.Context) {
	again := time.Tick(shareEvery)
	for {
		select {
		case <-l.shareWake:
		case <-again:
		case <-ctx.Done():
			return
		}
		l.answerExpired(ctx)
		if !l.space.canSpeak() {
			continue
		}
		all, err := l.Conversations(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("read the conversations that the space sees", "err", err)
		}
		for _, c := range all {
			if err := l.share(ctx, c); err != nil && ctx.Err() == nil {
				l.log.Info("send a conversation to the space", "conversation", c.Conv, "err", err)
			}
		}
	}
}

// share sends the space the new entries of a conversation. It marks an entry as sent once the space has accepted it, and
// stops when the owner hides the conversation.
func (l *Link) share(ctx context.Context, c Conversation) error {
	if c.Silent || c.To != "" && l.space.checkPeer(c.To) != nil {
		return nil
	}
	entries, err := l.b.cfg.Steps.Transcript(ctx, store.ConvKey{Peer: string(c.Peer), ID: string(c.Conv)}, c.After, maxShared)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rec, err := l.records.store.Get(ctx, nsLinks, l.records.key(kindConversation, openKey(c.Peer, c.Conv)), time.Now())
		if errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		if text := c.entryText(e); text != "" && !l.isFromHere(e) {
			if err := l.space.say(ctx, l.newExcerpt(c, e, text)); err != nil {
				return err
			}
		}
		c.After = e.N
		change := l.records.changeOf(c)
		change.IfRev = rec.Rev
		if err := l.records.store.Apply(ctx, []store.Change{change}, time.Now()); errors.Is(err, store.ErrConflict) {
			return nil // the owner has hidden the conversation, or shown it again
		} else if err != nil {
			return err
		}
	}
	if len(entries) == maxShared {
		waiting.Wake(l.shareWake)
	}
	return nil
}

// newExcerpt returns the chat that shows the space an entry of a conversation.
func (l *Link) newExcerpt(c Conversation, e store.Entry, text string) envelope.Draft {
	speaker, direction := string(c.Peer), "in"
	if e.Out {
		speaker, direction = string(l.b.cfg.Mesh.ID()), "out"
	}
	s := envelope.Draft{
		ID: "am-b-" + envelope.Digest(string(c.Peer), string(c.Conv), strconv.FormatUint(e.N, 10)), Kind: envelope.KindChat, Context: string(c.Conv),
		Payload: wire.Obj(wire.TextField("text", speaker+": "+text), wire.TextField("format", "plain"),
			wire.Field(transitMember, wire.Obj(wire.TextField("conversation_id", string(c.Conv)), wire.TextField("agent_id", string(c.Peer)), wire.TextField("direction", direction)))),
	}
	if c.To != "" {
		s.To = []string{c.To}
	}
	return s
}

// isFromHere reports whether an entry came from this space, which then does not get it again (MEW-L6).
func (l *Link) isFromHere(e store.Entry) bool {
	v, err := wire.ParseObject(e.Raw)
	if err != nil {
		return false
	}
	payload, _ := v.Get("payload")
	meta, _ := payload.Get("metadata")
	from, _ := meta.Get("bridge")
	return e.Out && from.GetStr("kind") == Kind && from.GetStr("link") == l.cfg.Name
}

// handleForward gives a chat to the node if its sender wrote it in a conversation of the mesh that the sender sees.
// done is false for any other chat. The node checks the chat like any message (MEW-L2); then the owner's rules for
// outgoing messages apply.
func (l *Link) handleForward(ctx context.Context, j job, text string) (done bool, err error) {
	if j.e.Context == "" {
		return false, nil
	}
	all, err := l.Conversations(ctx)
	if err != nil {
		return true, err
	}
	all = slices.DeleteFunc(all, func(c Conversation) bool { return string(c.Conv) != j.e.Context || !c.isVisibleTo(j.e.From) })
	if len(all) != 1 || !l.allowsTransit(l.cfg.Name, all[0].network()) { // peers choose ids, so two may be equal
		return false, nil
	}
	c := all[0]
	conv := wire.ConversationID("conv_" + envelope.Digest(l.cfg.Name, j.e.From, "forward", string(c.Peer), string(c.Conv)))
	payload := wire.Obj(wire.TextField("action", "forward"), wire.TextField("agent_id", string(c.Peer)), wire.TextField("conversation_id", string(c.Conv)),
		wire.Field("message", wire.Obj(wire.TextField("body", text))))
	in, err := l.newInbound(&j, conv, IntentForward, payload)
	if err != nil {
		return true, err
	}
	return true, l.submit(ctx, &j.e, in)
}

// sendForward sends a participant's chat to the agent in a conversation that the participant sees.
func (l *Link) sendForward(ctx context.Context, from string, payload wire.Value) error {
	out := bridge.Outgoing{To: wire.AgentID(payload.GetStr("agent_id")), Conv: wire.ConversationID(payload.GetStr("conversation_id"))}
	c, ok := load[Conversation](ctx, l.records, kindConversation, openKey(out.To, out.Conv))
	if !ok || !c.isVisibleTo(from) || !l.allowsTransit(l.cfg.Name, c.network()) {
		return errors.New("the space no longer sees this conversation")
	}
	out.Address = c.Address
	message, _ := payload.Get("message")
	text := message.GetStr("body")
	if c.To == "" { // several participants may write
		text = envelope.ToPrintable(from, envelope.MaxName) + ": " + text
	}
	_, err := l.sendToMesh(ctx, from, out, text)
	return err
}

// followEvents reacts to events in the node, until ctx ends.
func (b *Bridge) followEvents(ctx context.Context) {
	b.cfg.Mesh.Follow(ctx, func(e bridge.Event) {
		if e.Item != nil {
			b.followItem(ctx, *e.Item)
		}
		if e.Missing || e.Conv != (store.ConvKey{}) { // events were lost, or a conversation has a new entry
			for _, l := range b.links {
				waiting.Wake(l.shareWake)
			}
		}
	})
}

// followItem tells a participant about the new state of its message.
func (b *Bridge) followItem(ctx context.Context, item bridge.ItemState) {
	l, _, err := b.findLink(item.Address)
	if err != nil {
		return
	}
	if item.Intent == IntentProposal && item.State != "running" { // running comes after the decision
		l.space.withBoard(func(board *view.Board) { board.SetWaiting(item.Conversation, item.State == "held") })
	}
	switch {
	case item.State == "expired" && item.Intent != wire.Deliver:
		l.records.apply(ctx, l.records.remember("expired", string(item.Conversation), item.Conversation, keepSent))
		waiting.Wake(l.shareWake)
	case item.Intent == wire.Deliver:
		if key, ok := load[string](ctx, l.records, "msg", string(item.MessageID)); ok {
			switch item.State {
			case "new", "running", "waiting", "failed", "interrupted":
				l.acknowledge(ctx, key, "received")
			case "read", "answered":
				l.acknowledge(ctx, key, statusRead)
			}
		}
	}
}
