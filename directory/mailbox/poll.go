package mailbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Item is a message on its way through the relay. ReplyBy is set if its sender is waiting for the reply.
type Item struct {
	RelayID string          `json:"relay_id"`
	Message json.RawMessage `json:"message"`
	Created string          `json:"created_at"`
	ReplyBy string          `json:"reply_by,omitempty"`
	Call    bool            `json:"-"` // Message is an A2A call
}

// errUnknownBearer refuses a credential without a card here.
var errUnknownBearer = wire.ErrNoBearer.At("no card in this directory has this token")

// poll is one request for the mail of all agents of a credential. Its page begins with the messages whose sender waits
// for a reply, whatever their size. The rest follows, oldest first, and ends with the message that takes the page over
// 1 MiB. Mail stays in its mailbox until it is acknowledged.
//
// During a poll with Wait the agents of the credential are connected: messages for their mailboxes pass through
// (AM-67).
type poll struct {
	Query
	*Waiter
	r     *Relay
	owner [32]byte
	after string // key of the last message that the agent has
}

var _ httpapi.Waiter = &poll{} // with OnWake and Leave of our Waiter

// startPoll prepares a poll; the caller must call Leave. For a credential without a card, it returns errUnknownBearer.
func (r *Relay) startPoll(ctx context.Context, bearer string, q Query, now time.Time) (*poll, error) {
	p := &poll{Query: q.Bounded(), r: r, owner: credential.HashOf(bearer)}
	if known, err := r.cfg.Gate.IsKnown(ctx, p.owner, now); err != nil {
		return nil, fmt.Errorf("look for the agents of a credential: %w", err)
	} else if !known {
		return nil, errUnknownBearer
	}
	boxes, err := r.mailboxes(ctx, p.owner, q.Box, now)
	if err != nil {
		return nil, err
	}
	if q.After != "" {
		if p.after, err = r.openRelayID(ctx, p.owner, q.After); errors.Is(err, wire.ErrRoute) {
			return nil, wire.ErrQuery.At("after must be a relay_id")
		} else if err != nil {
			return nil, err
		}
	}
	r.recordConnection(ctx, boxes, now)
	if p.Wait > 0 && len(boxes) > 0 {
		if err := r.offers.NotePoll(ctx, p.owner, now); err != nil {
			return nil, fmt.Errorf("record a poll: %w", err)
		}
	}
	p.Waiter = r.connections.Join(p.owner, p.Wait > 0, len(boxes) > 0)
	return p, nil
}

// Answer returns the waiting mail as JSON, or nil if no mail waits.
func (p *poll) Answer(ctx context.Context) ([]byte, error) {
	items, err := p.collect(ctx)
	if len(items) == 0 {
		return nil, err
	}
	return mailPageJSON(items), nil
}

// collect returns the messages of a page.
func (p *poll) collect(ctx context.Context) ([]Item, error) {
	r, now := p.r, wire.Now()
	items, size := make([]Item, 0, 4), 0
	offered, err := r.offers.Take(ctx, p.owner, p.Box, p.Conversation, p.Limit, now)
	if err != nil && len(offered) == 0 { // otherwise return the taken messages, because their senders wait
		return nil, err
	}
	for _, t := range append(r.connections.Take(p.owner, p.Box, p.Conversation, p.Limit-len(offered)), offered...) {
		items = append(items, Item{RelayID: t.ID, Message: t.Raw, Created: wire.FormatTime(t.Created), ReplyBy: wire.FormatTime(t.ReplyBy)})
		size += len(t.Raw)
	}
	term := ownerTerm(p.owner)
	if p.Box != "" {
		term = boxTerm(p.Box) // includes mail from before a change of the credential
	}
	listMail := func(after string) ([]store.Record, string, error) {
		page, err := r.records.List(ctx, MailNS, term, cmp.Or(after, p.after), MaxPage, now)
		return page.Records, page.Next, err
	}
	for rec, err := range store.All(listMail) {
		var m Mail
		if err == nil {
			err = json.Unmarshal(rec.Body, &m)
		}
		if err != nil {
			return itemsOrError(items, fmt.Errorf("list mail: %w", err))
		}
		if p.Conversation != "" && m.Conv != p.Conversation || m.Call && !p.Calls {
			continue
		}
		if len(items) >= p.Limit || size >= maxPageBytes {
			return items, nil
		}
		text, err := r.records.Get(ctx, mailTextNS, rec.Key, now)
		if errors.Is(err, store.ErrNotFound) {
			continue // acknowledged in the meantime
		}
		if err != nil {
			return itemsOrError(items, fmt.Errorf("read mail: %w", err))
		}
		id, err := r.relayID(ctx, p.owner, rec.Key)
		if err != nil {
			return itemsOrError(items, err)
		}
		items = append(items, Item{RelayID: id, Message: text.Body, Created: wire.FormatTime(m.Created), Call: m.Call})
		size += len(text.Body)
	}
	return items, nil
}

// itemsOrError returns the items that were collected before an error, because their senders may be waiting. Without
// items, it returns the error.
func itemsOrError(items []Item, err error) ([]Item, error) {
	if len(items) > 0 {
		return items, nil
	}
	return nil, err
}

// mailboxes returns the live cards of a credential whose endpoint is their mailbox here. If box is set, it returns
// that card only, whatever its endpoint.
func (r *Relay) mailboxes(ctx context.Context, owner [32]byte, box wire.AgentID, now time.Time) ([]store.Card, error) {
	if box != "" {
		c, err := listing.Get(ctx, r.cfg.Store.Cards(), box, now)
		switch {
		case err != nil:
			return nil, err
		case !credential.Hash(c.Owner).Equal(owner):
			return nil, wire.ErrWrongBearer
		}
		return []store.Card{c}, nil
	}
	page, err := r.cfg.Store.Cards().List(ctx, store.CardQuery{All: []string{CardTerm(owner)}, Limit: MaxPage, Now: now})
	if err != nil {
		return nil, fmt.Errorf("look for mailboxes: %w", err)
	}
	return slices.DeleteFunc(page.Cards, func(c store.Card) bool { return !credential.Hash(c.Owner).Equal(owner) }), nil
}

// connectionRecordEvery is the least time between two records of an agent's connection, because each is a write.
const connectionRecordEvery = 6 * time.Hour

// recordConnection records that the agents of the mailboxes are connected, which is their endpoint proof (AM-66).
func (r *Relay) recordConnection(ctx context.Context, boxes []store.Card, now time.Time) {
	for _, c := range boxes {
		h, err := listing.ParseHead(c)
		if err != nil || now.Sub(h.Alive) < connectionRecordEvery {
			continue
		}
		card, err := listing.ParseCard(c)
		if err == nil && r.HasMailboxOf(card) {
			err = r.cfg.RecordConnection(ctx, card)
		}
		if err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "cannot record a relay connection", "agent_id", c.ID, "err", err)
		}
	}
}

// mailPageJSON encodes mail with each message byte for byte as it arrived (AM-64). The standard library would change
// the bytes.
func mailPageJSON(items []Item) []byte {
	out := []byte(`{"messages":[`)
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = wire.AppendString(append(out, `{"relay_id":`...), item.RelayID)
		name := `,"message":`
		if item.Call {
			name = `,"a2a":`
		}
		out = append(append(out, name...), item.Message...)
		out = wire.AppendString(append(out, `,"created_at":`...), item.Created)
		if item.ReplyBy != "" {
			out = wire.AppendString(append(out, `,"reply_by":`...), item.ReplyBy)
		}
		out = append(out, '}')
	}
	return append(out, "]}"...)
}
