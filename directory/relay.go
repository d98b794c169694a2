package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// RelayItem is a message on its way through the relay. ReplyBy is set if its sender is waiting for the reply.
type RelayItem struct {
	RelayID string          `json:"relay_id"`
	Message json.RawMessage `json:"message"`
	Created string          `json:"created_at"`
	ReplyBy string          `json:"reply_by,omitempty"`
	Call    bool            `json:"-"` // Message is an A2A call
}

// posting is a message that a sender posted to the relay.
type posting struct {
	raw    []byte
	tree   wire.Value
	msg    wire.Message
	box    store.Card
	sender wire.AgentID // "" if it has no card here; otherwise its key made the signature
}

// isVerified reports whether the signature of the message was verified.
func (p posting) isVerified() bool { return p.sender != "" }

// checkPosting parses a message for the relay. Of the table "Receiving" in docs/protocol.md, it runs the checks of
// lines 3 to 5 and, if the sender's card is here, of lines 7 to 9 (AM-66). box is the mailbox that the request names,
// or "" if only the message names its recipient.
func (r *Registry) checkPosting(ctx context.Context, raw []byte, box wire.AgentID, from netip.Addr, now time.Time) (posting, error) {
	p := posting{raw: raw}
	var err error
	if p.tree, err = wire.ParseObject(raw); err != nil {
		return p, wire.ErrSyntax.Because(err)
	}
	p.msg, err = wire.ParseMessage(p.tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return p, wire.ErrSchema.WithField(field)
	}
	if err != nil {
		return p, err
	}
	if box != "" && p.msg.To != box {
		return p, wire.ErrRecipient
	}
	if err := r.bans.Check(ctx, p.msg.From, nil, "", from, now); err != nil {
		return p, err
	}
	if p.box, err = listing.Get(ctx, r.cards, p.msg.To, now); err != nil {
		return p, err
	}
	sender, err := listing.Get(ctx, r.cards, p.msg.From, now)
	if errors.Is(err, wire.ErrNoAgent) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	card, err := listing.ParseCard(sender)
	if err != nil {
		return p, err
	}
	key, err := r.usableKey(card.PublicKey, now)
	if err != nil {
		return p, wire.ErrUnknownSender.Because(err)
	}
	window := signing.Window{From: p.msg.Time.Add(-client.DefaultPast), To: p.msg.Time.Add(client.DefaultFuture)}
	if _, err := key.VerifyValue(p.tree.Without("signature"), p.msg.Signature, window, now); err != nil {
		r.cfg.Addresses.Fault(ctx, from)
		return p, wire.ErrSignature.Because(err)
	}
	if p.msg.Time.Before(now.Add(-client.DefaultPast)) || p.msg.Time.After(now.Add(client.DefaultFuture)) {
		return p, wire.ErrTimeWindow
	}
	p.sender = p.msg.From
	return p, nil
}

// errUnknownBearer refuses a credential that no card has.
var errUnknownBearer = wire.ErrNoBearer.At("no card in this directory has this token")

// poll is one request for the mail of all agents of a credential. Its page begins with the messages whose sender waits
// for a reply, whatever their size; the rest follow, oldest first. The rest ends with the message that takes the page
// over 1 MiB. Mail stays in its mailbox until it is acknowledged.
//
// During a poll with Wait the agents of the credential are connected: messages for their mailboxes pass through (AM-67).
type poll struct {
	mailbox.Query
	*mailbox.Waiter
	r     *Registry
	owner [32]byte
	after string // key of the last message that the agent has
}

var _ httpapi.Waiter = &poll{}

// startPoll prepares a poll. The caller must call its Leave. For a credential without a card, it returns errUnknownBearer.
func startPoll(ctx context.Context, r *Registry, bearer string, q mailbox.Query, now time.Time) (*poll, error) {
	p := &poll{Query: q.Bounded(), r: r, owner: credential.HashOf(bearer)}
	if known, err := r.gate.IsKnown(ctx, p.owner, now); err != nil {
		return nil, fmt.Errorf("look for the agents of a credential: %w", err)
	} else if !known {
		return nil, errUnknownBearer
	}
	boxes, err := r.mailboxes(ctx, p.owner, q.Box, now)
	if err != nil {
		return nil, err
	}
	if q.After != "" {
		if p.after, err = r.openRelayID(ctx, p.owner, q.After, now); errors.Is(err, wire.ErrRoute) {
			return nil, wire.ErrQuery.At("after must be a relay_id")
		} else if err != nil {
			return nil, err
		}
	}
	r.recordConnection(ctx, boxes, now)
	if p.Wait > 0 && len(boxes) > 0 {
		if err := r.offers.NotePoll(ctx, p.owner, now); err != nil {
			return nil, fmt.Errorf("note a poll: %w", err)
		}
	}
	p.Waiter = r.connections.Join(p.owner, p.Wait > 0, len(boxes) > 0)
	return p, nil
}

// Answer returns the mail that is there now as JSON, or nil without any.
func (p *poll) Answer(ctx context.Context) ([]byte, error) {
	items, err := p.collect(ctx, wire.Now())
	if len(items) == 0 {
		return nil, err
	}
	return mailPageJSON(items), nil
}

// collect returns the mail that is there now.
func (p *poll) collect(ctx context.Context, now time.Time) ([]RelayItem, error) {
	r := p.r
	items, size, after := make([]RelayItem, 0, 4), 0, p.after
	offered, err := r.offers.Take(ctx, p.owner, p.Box, p.Conversation, p.Limit, now)
	if err != nil && len(offered) == 0 { // otherwise return the taken messages, because their senders wait
		return nil, err
	}
	for _, o := range append(r.connections.Take(p.owner, p.Box, p.Conversation, p.Limit-len(offered)), offered...) {
		items = append(items, RelayItem{o.ID, o.Raw, wire.FormatTime(o.Created), wire.FormatTime(o.ReplyBy), false})
		size += len(o.Raw)
	}
	term := ownerTerm(p.owner)
	if p.Box != "" {
		term = boxTerm(p.Box) // includes mail from before a change of the credential
	}
	for more := true; more; {
		list, err := r.listMail(ctx, term, after, mailbox.MaxPage, now)
		if err != nil {
			return partOf(items, err)
		}
		for _, m := range list {
			after = m.key
			if p.Conversation != "" && m.Conv != p.Conversation || m.Call && !p.Calls {
				continue
			}
			if len(items) >= p.Limit || size >= maxPageBytes {
				return items, nil
			}
			text, err := r.recs.Get(ctx, mailTextNS, m.key, now)
			if errors.Is(err, store.ErrNotFound) {
				continue // acknowledged in the meantime
			}
			if err != nil {
				return partOf(items, fmt.Errorf("read mail: %w", err))
			}
			id, err := r.relayID(ctx, p.owner, m.key, now)
			if err != nil {
				return partOf(items, err)
			}
			items = append(items, RelayItem{RelayID: id, Message: text.Body, Created: wire.FormatTime(m.Created), Call: m.Call})
			size += len(text.Body)
		}
		more = len(list) == mailbox.MaxPage
	}
	return items, nil
}

// partOf returns the items that were found before an error, because the senders of some of them may be waiting. Without
// items, it returns the error.
func partOf(items []RelayItem, err error) ([]RelayItem, error) {
	if len(items) > 0 {
		return items, nil
	}
	return nil, err
}

// mailboxes returns those live cards of a credential whose endpoint is their mailbox here. If box is not "", it returns
// only that card, whatever its endpoint.
func (r *Registry) mailboxes(ctx context.Context, owner [32]byte, box wire.AgentID, now time.Time) ([]store.Card, error) {
	if box != "" {
		c, err := listing.Get(ctx, r.cards, box, now)
		switch {
		case err != nil:
			return nil, err
		case !credential.Hash(c.Owner).Equal(owner):
			return nil, wire.ErrWrongBearer
		}
		return []store.Card{c}, nil
	}
	page, err := r.cards.List(ctx, store.CardQuery{All: []string{mailboxTerm(owner)}, Limit: mailbox.MaxPage, Now: now})
	if err != nil {
		return nil, fmt.Errorf("look for mailboxes: %w", err)
	}
	return slices.DeleteFunc(page.Cards, func(c store.Card) bool { return !credential.Hash(c.Owner).Equal(owner) }), nil
}

// connectionNoted is the least time between two records of a connection of the same agent, because each is a write.
const connectionNoted = 6 * time.Hour

// recordConnection stores that the agents of the mailboxes are connected. This connection is their endpoint proof
// (AM-66).
func (r *Registry) recordConnection(ctx context.Context, boxes []store.Card, now time.Time) {
	for _, c := range boxes {
		m, err := listing.ParseMeta(c)
		if err != nil || now.Sub(m.Alive) < connectionNoted {
			continue
		}
		card, err := listing.ParseCard(c)
		if err == nil && r.ownsMailbox(card) {
			err = r.saveProbe(ctx, card, true)
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "note a relay connection", "agent_id", c.ID, "err", err)
		}
	}
}
