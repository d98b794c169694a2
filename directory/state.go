package directory

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/wire"
)

// State is what the operator sees of a directory: its settings and its counts.
type State struct {
	Site                     site.Operator
	Mode                     Mode
	Mirror                   bool
	Cards, Connected, Probes int // Connected are owners whose agents poll their mailboxes; Probes are endpoints to probe
	MailMessages, MailBytes  int64
	MailFull                 bool
}

// ReadState returns the state of a directory.
func ReadState(ctx context.Context, r *Registry) (State, error) {
	now := wire.Now()
	s := State{
		Site: r.cfg.Site, Mode: r.cfg.Mode, Mirror: r.cfg.ReadOnly, Connected: r.relay.Connections().Count(), Probes: r.prober.Queue().Len(),
	}
	var err error
	if s.Cards, err = r.countAgents(ctx, now); err != nil {
		return State{}, err
	}
	counts, err := r.relay.Counts(ctx)
	mail, full := counts.Total(now)
	s.MailMessages, s.MailBytes, s.MailFull = int64(mail.N), int64(mail.Size), full
	return s, err
}

// LatestChanges returns the newest changes of cards, at most limit, newest first. Of their records, it sets only the times.
func LatestChanges(ctx context.Context, r *Registry, limit int) ([]site.Change, error) {
	lines, err := r.cards.LatestChanges(ctx, limit)
	if err != nil {
		return nil, err
	}
	list := make([]site.Change, 0, len(lines))
	for c, err := range describeChanges(ctx, r, lines, wire.Now()) {
		if err != nil {
			return nil, err
		}
		if c.view != nil {
			c.Record = &wire.CardRecord{RegisteredAt: c.view.registered, ExpiresAt: c.view.expires}
		}
		list = append(list, site.Change{Change: c.Change, Name: r.NameOf(ctx, c.AgentID)})
	}
	return list, nil
}

// NameOf returns the name on a card that is listed or whose id is still reserved, and otherwise "".
func (r *Registry) NameOf(ctx context.Context, id wire.AgentID) string {
	card, err := r.cards.Held(ctx, string(id), wire.Now())
	if err != nil {
		return "" // a page shows the id
	}
	name, _ := listing.Text(card, "name") // a card that cannot be read has no name
	return name
}

// OperatorCard is a card as the operator sees it.
type OperatorCard struct {
	AgentID      wire.AgentID      `json:"agent_id"`
	Name         string            `json:"name"`
	Host         string            `json:"host"`
	Key          string            `json:"key"`   // fingerprint
	Owner        string            `json:"owner"` // start of the credential's hash, the same for all cards of an owner
	Registered   time.Time         `json:"registered_at"`
	Expires      time.Time         `json:"expires_at"`
	Verification wire.Verification `json:"verification"`
}

// OperatorCardPage is a page of cards. Cursor is the parameter "cursor" of the request for the next page.
type OperatorCardPage struct {
	Cards  []OperatorCard `json:"items"`
	Cursor string         `json:"cursor,omitempty"`
}

// ListCards returns one page of cards for the operator.
func ListCards(ctx context.Context, r *Registry, q Query) (OperatorCardPage, error) {
	now := wire.Now()
	found, err := r.search(ctx, q, now)
	if err != nil {
		return OperatorCardPage{}, err
	}
	page := OperatorCardPage{Cards: make([]OperatorCard, 0, len(found.Cards)), Cursor: found.cursor}
	for _, c := range found.Cards {
		card, m, err := listing.Parse(c)
		if err != nil {
			return OperatorCardPage{}, err
		}
		item := OperatorCard{
			AgentID: card.ID, Name: card.Name, Host: listing.Host(card), Owner: hex.EncodeToString(c.Owner[:6]), Registered: c.Registered,
			Expires: c.Expires, Verification: m.Verification(now),
		}
		if key, err := r.keys.Parse(card.PublicKey); err == nil {
			item.Key = listing.Fingerprint(key)
		}
		page.Cards = append(page.Cards, item)
	}
	return page, nil
}
