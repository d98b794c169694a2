package link

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Conversation is a conversation of the mesh that a participant opened with the tool send. No other participant can read
// or write in it (MEW-L6).
type Conversation struct {
	Conv wire.ConversationID `json:"conversation_id"`
	Peer wire.AgentID        `json:"peer"`
	To   string              `json:"to"` // the participant who opened it
}

// kindOpened is the kind of the record of a [Conversation].
const kindOpened = "opened"

const (
	// maxOpened bounds the conversations that all participants together opened. A bound for each participant is not
	// enough, because a participant may have a new id at each join.
	maxOpened      = 500
	maxOpenedByOne = 50 // conversations that one participant opened
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

// openedBy returns the search term of the conversations that a participant opened.
func (r *records) openedBy(participant string) string {
	return r.key(kindOpened, wire.HashOf(participant))
}

// open stores a conversation that a participant opens. If the participant, or all participants together, have opened
// too many, it replaces the oldest one.
func (r *records) open(ctx context.Context, c Conversation) error {
	now := time.Now()
	var changes []store.Change
	for _, bound := range []struct {
		term string
		most int
	}{{r.openedBy(c.To), maxOpenedByOne}, {r.link + "/" + kindOpened, maxOpened}} {
		n, err := r.store.Count(ctx, nsLinks, bound.term, bound.most, now)
		if err != nil {
			return err
		}
		if n < bound.most {
			continue
		}
		full, err := r.store.List(ctx, nsLinks, bound.term, "", bound.most, now)
		if err != nil {
			return err
		}
		oldest := slices.MinFunc(full.Records, func(x, y store.Record) int { return x.Expires.Compare(y.Expires) })
		changes = []store.Change{{Record: store.Record{NS: nsLinks, Key: oldest.Key}, IfRev: oldest.Rev, Delete: true}}
		break
	}
	put := r.remember(kindOpened, openKey(c.Peer, c.Conv), c, keepConversation)
	put.Record.Terms = append(put.Record.Terms, r.openedBy(c.To))
	return r.store.Apply(ctx, append(changes, put), now)
}

// runExpiry tells the space about expired proposals and requests, until ctx ends.
func (l *Link) runExpiry(ctx context.Context) {
	again := time.Tick(expireEvery)
	for {
		select {
		case <-l.expiryWake:
		case <-again:
		case <-ctx.Done():
			return
		}
		l.answerExpired(ctx)
	}
}

// followEvents reacts to events in the node, until ctx ends.
func (b *Bridge) followEvents(ctx context.Context) {
	b.cfg.Mesh.Follow(ctx, func(e bridge.Event) {
		if e.Item != nil {
			b.followItem(ctx, *e.Item)
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
		waiting.Wake(l.expiryWake)
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
