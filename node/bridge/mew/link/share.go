package link

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Conversation is a conversation of the mesh that a participant opened with the tool send. No other participant can read
// or write in it (MEW-L6).
type Conversation struct {
	Conv    wire.ConversationID `json:"conversation_id"`
	Peer    wire.AgentID        `json:"peer"`
	Address string              `json:"address,omitempty"` // of a foreign peer
	To      string              `json:"to"`                // the participant who opened it
	After   uint64              `json:"after,omitempty"`   // number of the last entry that the participant got
	Silent  bool                `json:"silent,omitempty"`  // the link sends no answers; the tool inbox shows them
}

// network returns the network of the conversation: AgentMesh, or the name of a link.
func (c Conversation) network() string {
	if a, err := bridge.ParseAddress(c.Address); err == nil {
		return a.Link
	}
	return networkMesh
}

// transitMember is a member in the payload of an answer that the link passes on. No node takes such a chat as a message
// to itself (MEW-L6).
const transitMember = "agentmesh"

// kindOpened is the kind of the record of a [Conversation].
const kindOpened = "opened"

const (
	// maxOpened bounds the conversations that all participants together opened. A bound for each participant is not
	// enough, because a participant may have a new id at each join.
	maxOpened      = 500
	maxOpenedByOne = 50 // conversations that one participant opened
	maxShared      = 50 // entries of a conversation that a participant gets at once
)

// conversationsOpened returns the conversations that participants opened.
func (l *Link) conversationsOpened(ctx context.Context) ([]Conversation, error) {
	var out []Conversation
	for rec, err := range store.AllRecords(ctx, l.records.store, nsLinks, l.cfg.Name+"/"+kindOpened, time.Now()) {
		if err != nil {
			return nil, err
		}
		var c Conversation
		if json.Unmarshal(rec.Body, &c) == nil {
			out = append(out, c)
		}
	}
	return out, nil
}

// changeOf returns the change that stores a conversation.
func (r *records) changeOf(c Conversation) store.Change {
	change := r.remember(kindOpened, openKey(c.Peer, c.Conv), c, keepConversation)
	change.Record.Terms = append(change.Record.Terms, r.openedBy(c.To))
	return change
}

// openedBy returns the search term of the conversations that a participant opened.
func (r *records) openedBy(participant string) string {
	return r.key(kindOpened, envelope.Digest(participant))
}

// open stores a conversation that a participant opens. If the participant, or all participants together, have opened
// too many, it replaces the conversation whose answers the participant got least recently.
func (r *records) open(ctx context.Context, c Conversation) error {
	now := time.Now()
	own, err := r.store.List(ctx, nsLinks, r.openedBy(c.To), "", maxOpenedByOne, now)
	if err != nil {
		return err
	}
	all, err := r.store.List(ctx, nsLinks, r.link+"/"+kindOpened, "", maxOpened, now)
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
		oldest := slices.MinFunc(full, func(x, y store.Record) int { return x.Expires.Compare(y.Expires) }) // each answer extends Expires
		changes = append(changes, store.Change{Record: store.Record{NS: nsLinks, Key: oldest.Key}, IfRev: oldest.Rev, Delete: true})
	}
	return r.store.Apply(ctx, append(changes, r.changeOf(c)), now)
}

// runSharing tells the space about expired proposals and requests, and sends participants the answers of agents, until
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
		all, err := l.conversationsOpened(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("read the conversations that participants opened", "err", err)
		}
		for _, c := range all {
			if err := l.share(ctx, c); err != nil && ctx.Err() == nil {
				l.log.Info("send an answer to a participant", "conversation", c.Conv, "err", err)
			}
		}
	}
}

// share sends the participant the new entries of the agent in a conversation. It marks an entry as sent once the space
// has accepted it.
func (l *Link) share(ctx context.Context, c Conversation) error {
	if c.Silent || l.space.checkPeer(c.To) != nil {
		return nil
	}
	entries, err := l.b.cfg.Steps.Transcript(ctx, store.ConvKey{Peer: string(c.Peer), ID: string(c.Conv)}, c.After, maxShared)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rec, err := l.records.store.Get(ctx, nsLinks, l.records.key(kindOpened, openKey(c.Peer, c.Conv)), time.Now())
		if errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		if text := c.entryText(e); text != "" && !e.Out {
			if err := l.space.say(ctx, newExcerpt(c, e, text)); err != nil {
				return err
			}
		}
		c.After = e.N
		change := l.records.changeOf(c)
		change.IfRev = rec.Rev
		if err := l.records.store.Apply(ctx, []store.Change{change}, time.Now()); errors.Is(err, store.ErrConflict) {
			return nil // another conversation has replaced this one
		} else if err != nil {
			return err
		}
	}
	if len(entries) == maxShared {
		waiting.Wake(l.shareWake)
	}
	return nil
}

// newExcerpt returns the chat that shows the participant an entry of the agent.
func newExcerpt(c Conversation, e store.Entry, text string) envelope.Draft {
	return envelope.Draft{
		ID: "am-b-" + envelope.Digest(string(c.Peer), string(c.Conv), strconv.FormatUint(e.N, 10)), Kind: envelope.KindChat, To: []string{c.To}, Context: string(c.Conv),
		Payload: wire.Obj(wire.TextField("text", string(c.Peer)+": "+text), wire.TextField("format", "plain"),
			wire.Field(transitMember, wire.Obj(wire.TextField("conversation_id", string(c.Conv)), wire.TextField("agent_id", string(c.Peer))))),
	}
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
