package directory

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Bounds of the mailbox relay (AM-68).
const (
	mailNS     = "relay"      // what is known of a message: who, when, how large
	mailTextNS = "relay-text" // the message itself
	mailLife   = 7 * 24 * time.Hour

	maxMail      = 500      // messages in a mailbox
	maxMailBytes = 50 << 20 // and bytes
	mailShare    = 10       // one sender has a tenth; those that nobody knows share one
	maxMailPage  = 100
	mailPage     = 50

	relayPrefix = "relay_"
)

// mail is what is kept beside a stored message.
type mail struct {
	Box     wire.AgentID        `json:"box"`
	Owner   string              `json:"owner"`          // hex hash of the box's credential
	From    wire.AgentID        `json:"from,omitempty"` // "" where the sender could not be looked up
	Conv    wire.ConversationID `json:"conversation"`
	Size    int                 `json:"size"`
	Created time.Time           `json:"created_at"`
	Acked   bool                `json:"acked,omitempty"`
}

// RelayItem is a message on its way through the relay. ReplyBy is there while its sender waits for the reply.
type RelayItem struct {
	RelayID string          `json:"relay_id"`
	Message json.RawMessage `json:"message"`
	Created string          `json:"created_at"`
	ReplyBy string          `json:"reply_by,omitempty"`
}

// mailKey orders mail by its receipt.
func mailKey(now time.Time) string {
	return fmt.Sprintf("%016x%s", now.UnixMicro(), strings.ToLower(rand.Text()[:10]))
}

func ownerTerm(owner [32]byte) string           { return "owner:" + hex.EncodeToString(owner[:]) }
func boxTerm(id wire.AgentID) string            { return "box:" + string(id) }
func mailboxTerm(owner [32]byte) string         { return mailboxFamily + hex.EncodeToString(owner[:16]) }
func (r *Registry) mailboxURL(id string) string { return r.cfg.BaseURL + "/mailbox/" + id }

// posted is a message that somebody hands to the relay.
type posted struct {
	raw   []byte
	msg   wire.Message
	box   store.Card
	known bool // the sender has a card here, and the signature is by its key
}

// post reads a message for the relay and makes the checks of a receiver's lines 3 to 5 and, where the sender can be
// looked up here, 7 to 9 (AM-66). box is "" where the message itself says whose it is.
func (r *Registry) post(ctx context.Context, raw []byte, box wire.AgentID, now time.Time) (posted, error) {
	p := posted{raw: raw}
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return p, wire.ErrSyntax.Because(err)
	}
	p.msg, err = wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return p, wire.ErrSchema.Refused(field)
	}
	if err != nil {
		return p, err
	}
	if box != "" && p.msg.To != box {
		return p, wire.ErrRecipient
	}
	if p.box, err = r.get(ctx, p.msg.To, now); err != nil {
		return p, err
	}
	sender, err := r.get(ctx, p.msg.From, now)
	if errors.Is(err, wire.ErrNoAgent) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	card, err := r.stored(sender)
	if err != nil {
		return p, err
	}
	key, err := r.usableKey(card.PublicKey, now)
	if err != nil {
		return p, wire.ErrUnknownSender.Because(err)
	}
	window := signing.Window{From: p.msg.Time.Add(-client.DefaultPast), To: p.msg.Time.Add(client.DefaultFuture)}
	if _, err := key.VerifyValue(tree.Without("signature"), p.msg.Signature, window, now); err != nil {
		return p, wire.ErrSignature.Because(err)
	}
	if p.msg.Time.Before(now.Add(-client.DefaultPast)) || p.msg.Time.After(now.Add(client.DefaultFuture)) {
		return p, wire.ErrTimeWindow
	}
	p.known = true
	return p, nil
}

// keep stores a message in its mailbox, within the bounds of AM-68. It is durable when it returns.
func (r *Registry) keep(ctx context.Context, p posted, now time.Time) (relayID string, err error) {
	m := mail{Box: p.msg.To, Owner: hex.EncodeToString(p.box.Owner[:]), Conv: p.msg.Conversation, Size: len(p.raw), Created: now}
	if p.known {
		m.From = p.msg.From
	}
	if err := r.refusals.get(m.Box, m.From, now); err != nil {
		return "", err
	}
	held, err := r.mailOf(ctx, boxTerm(m.Box), "", maxMail, now)
	if err != nil {
		return "", err
	}
	n, size, bySender, sizeBySender := len(held), m.Size, 1, m.Size
	for _, h := range held {
		size += h.Size
		if h.From == m.From {
			bySender++
			sizeBySender += h.Size
		}
	}
	switch {
	case bySender > maxMail/mailShare || sizeBySender > maxMailBytes/mailShare:
		return "", r.refusals.note(m.Box, m.From, wire.ErrRateLimited.At("too much mail of one sender waits").After(time.Hour), now)
	case n >= maxMail || size > maxMailBytes:
		return "", r.refusals.note(m.Box, m.From, wire.ErrUnavailable.At("the mailbox is full").After(time.Hour), now)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write mail: %w", err)
	}
	key, expires := mailKey(now), now.Add(mailLife)
	err = r.recs.Apply(ctx, []store.Change{
		{Record: store.Record{NS: mailNS, Key: key, Body: body, Terms: []string{boxTerm(m.Box), ownerTerm(p.box.Owner)}, Expires: expires}, Max: maxMail},
		{Record: store.Record{NS: mailTextNS, Key: key, Body: p.raw, Expires: expires}},
	}, now)
	if errors.Is(err, store.ErrQuota) {
		return "", wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	}
	if err != nil {
		return "", fmt.Errorf("keep mail: %w", err)
	}
	r.desks.ring(p.box.Owner)
	return relayPrefix + key, nil
}

// storedMail is a mail with its key.
type storedMail struct {
	mail
	key string
}

// mailOf lists mail that carries term and waits, oldest first, after a key.
func (r *Registry) mailOf(ctx context.Context, term, after string, limit int, now time.Time) ([]storedMail, error) {
	var list []storedMail
	for len(list) < limit {
		page, err := r.recs.List(ctx, mailNS, term, after, min(limit-len(list), maxMail), now)
		if err != nil {
			return nil, fmt.Errorf("list mail: %w", err)
		}
		for _, rec := range page.Records {
			m := storedMail{key: rec.Key}
			if err := json.Unmarshal(rec.Body, &m.mail); err != nil {
				return nil, fmt.Errorf("read mail %s: %w", rec.Key, err)
			}
			list = append(list, m)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	return list, nil
}

// MailQuery asks for the mail of a credential.
type MailQuery struct {
	Box          wire.AgentID        // "" for all of its agents
	Conversation wire.ConversationID // "" for all
	Limit        int                 // 0 is 50; above 100 is 100
	Wait         time.Duration       // for what comes, where nothing is there
}

// Mail returns the mail of all agents of a credential, oldest first, what waits for a reply first of all. It stays
// until it is acknowledged. Whoever waits is connected: messages for its agents pass through (AM-67).
func (r *Registry) Mail(ctx context.Context, bearer string, q MailQuery) ([]RelayItem, error) {
	now := clock()
	owner := Hash(bearer)
	limit := min(cmp.Or(q.Limit, mailPage), maxMailPage)
	boxes, err := r.mailboxes(ctx, owner, q.Box, now)
	if err != nil {
		return nil, err
	}
	if len(boxes) == 0 {
		q.Wait = 0 // nothing passes through to who has no mailbox, and who shows any token must not hold us up
	}
	r.connected(ctx, boxes, now)
	seat := r.desks.sit(owner, q.Wait > 0)
	defer seat.leave()
	end := time.NewTimer(min(q.Wait, maxWait))
	defer end.Stop()
	for {
		rung := seat.rung()
		items, err := r.mailNow(ctx, owner, q, limit, clock())
		if err != nil || len(items) > 0 || q.Wait <= 0 {
			return items, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-end.C:
			return nil, nil
		case <-rung:
		}
	}
}

func (r *Registry) mailNow(ctx context.Context, owner [32]byte, q MailQuery, limit int, now time.Time) ([]RelayItem, error) {
	items := make([]RelayItem, 0, 4)
	for _, o := range r.desks.take(owner, q.Box, q.Conversation, limit) {
		items = append(items, RelayItem{o.id, o.raw, wire.FormatTime(o.created), wire.FormatTime(o.replyBy)})
	}
	term := ownerTerm(owner)
	for after := ""; len(items) < limit; {
		list, err := r.mailOf(ctx, term, after, maxMailPage, now)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			after = m.key
			if q.Box != "" && m.Box != q.Box || q.Conversation != "" && m.Conv != q.Conversation || len(items) == limit {
				continue
			}
			text, err := r.recs.Get(ctx, mailTextNS, m.key, now)
			if errors.Is(err, store.ErrNotFound) {
				continue // acknowledged meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("read mail: %w", err)
			}
			items = append(items, RelayItem{RelayID: relayPrefix + m.key, Message: text.Body, Created: wire.FormatTime(m.Created)})
		}
		if len(list) < maxMailPage {
			break
		}
	}
	return items, nil
}

// mailboxes are the live cards of a credential whose endpoint is their mailbox here.
func (r *Registry) mailboxes(ctx context.Context, owner [32]byte, box wire.AgentID, now time.Time) ([]store.Card, error) {
	if box != "" {
		c, err := r.get(ctx, box, now)
		switch {
		case err != nil:
			return nil, err
		case !sameOwner(c.Owner, owner):
			return nil, wire.ErrWrongBearer
		}
		return []store.Card{c}, nil
	}
	page, err := r.cards.List(ctx, store.CardQuery{All: []string{mailboxTerm(owner)}, Limit: maxMailPage, Now: now})
	if err != nil {
		return nil, fmt.Errorf("look for mailboxes: %w", err)
	}
	return slices.DeleteFunc(page.Cards, func(c store.Card) bool { return !sameOwner(c.Owner, owner) }), nil
}

// connectedAgain is how often a connection is noted beside a card: each time is a write.
const connectedAgain = 6 * time.Hour

// connected notes that the agents of mailboxes are there: their endpoint proof is this connection (AM-66).
func (r *Registry) connected(ctx context.Context, boxes []store.Card, now time.Time) {
	for _, c := range boxes {
		m, err := parseMeta(c)
		if err != nil || now.Sub(m.Alive) < connectedAgain {
			continue
		}
		card, err := r.stored(c)
		if err == nil && r.ownMailbox(card.Endpoint) {
			err = r.keepAnswer(ctx, card, true)
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "note a relay connection", "agent_id", c.ID, "err", err)
		}
	}
}

// Acknowledge takes a message out of its mailbox. To do so again is no error.
func (r *Registry) Acknowledge(ctx context.Context, bearer, relayID string) error {
	now := clock()
	key, ok := strings.CutPrefix(relayID, relayPrefix)
	if !ok || len(key) != len(mailKey(now)) {
		return wire.ErrRoute
	}
	if r.desks.acknowledge(Hash(bearer), relayID) {
		return nil
	}
	rec, err := r.recs.Get(ctx, mailNS, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return wire.ErrRoute
	}
	if err != nil {
		return fmt.Errorf("read mail: %w", err)
	}
	var m mail
	if err := json.Unmarshal(rec.Body, &m); err != nil {
		return fmt.Errorf("read mail %s: %w", key, err)
	}
	owner, err := hex.DecodeString(m.Owner)
	if err != nil || len(owner) != 32 || !sameOwner([32]byte(owner), Hash(bearer)) {
		return wire.ErrRoute // to others it is not there
	}
	if m.Acked {
		return nil
	}
	m.Acked = true
	if rec.Body, err = json.Marshal(m); err != nil {
		return fmt.Errorf("write mail: %w", err)
	}
	rec.Terms = nil // it is in no list any more
	err = r.recs.Apply(ctx, []store.Change{
		{Record: rec, IfRev: store.Any},
		{Record: store.Record{NS: mailTextNS, Key: key}, IfRev: store.Any, Delete: true},
	}, now)
	if err != nil {
		return fmt.Errorf("acknowledge mail: %w", err)
	}
	return nil
}

// replied judges what an agent answers to a message that passed through, and with which status the sender gets it.
func replied(o *offer, raw []byte) (status int, err error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return 0, wire.ErrSyntax.Because(err)
	}
	if told, isError := tree.Get("error"); isError {
		return statusOf(wire.Code(told.GetStr("code"))), nil
	}
	m, err := wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return 0, wire.ErrSchema.Refused(field)
	}
	if m.From != o.msg.To || m.To != o.msg.From || m.Conversation != o.msg.Conversation {
		return 0, wire.ErrRecipient.At("the reply must be by the agent, to the sender, in the same conversation")
	}
	if m.Action() == "pending_approval" {
		return http.StatusAccepted, nil
	}
	return http.StatusOK, nil
}

// statusOf is the status of an error body that does not say it: that of the first row of its code.
func statusOf(code wire.Code) int {
	switch code {
	case wire.AgentUnavailable:
		return http.StatusServiceUnavailable
	case wire.Unauthorized, wire.OwnerRejected:
		return http.StatusForbidden
	case wire.InvalidMessage:
		return http.StatusBadRequest
	}
	for _, row := range wire.Table() {
		if row.Code == code {
			return row.Status
		}
	}
	return http.StatusBadGateway
}
