package directory

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// CardExport is a card that moves from one directory to another of the same operator. It is one line of an export.
type CardExport struct {
	Card       wire.Value      `json:"card"`
	Owner      string          `json:"owner"` // hex SHA-256 of the credential
	Registered time.Time       `json:"registered_at"`
	Updated    time.Time       `json:"updated_at"`
	Expires    time.Time       `json:"expires_at"`
	Meta       json.RawMessage `json:"meta"` // proofs and retired keys
}

// ExportPage is a page of an export. After is the parameter "after" of the next request, or 0 on the last page.
type ExportPage struct {
	Cards []CardExport `json:"cards"`
	After uint64       `json:"after,omitempty"`
}

const exportPageSize = 100

// Export returns a page of live cards in the order of registration. after is the After of the previous page, or 0.
func (r *Registry) Export(ctx context.Context, after uint64) (ExportPage, error) {
	found, err := r.cards.List(ctx, store.CardQuery{Limit: exportPageSize, After: store.Position{Seq: after}, Now: wire.Now()})
	if err != nil {
		return ExportPage{}, fmt.Errorf("export cards: %w", err)
	}
	page := ExportPage{Cards: make([]CardExport, 0, len(found.Cards))}
	for _, c := range found.Cards {
		tree, err := wire.ParseObject(c.Body)
		if err != nil {
			return ExportPage{}, fmt.Errorf("read card %s: %w", c.ID, err)
		}
		m, err := listing.ParseMeta(c)
		var meta []byte
		if err == nil {
			meta, err = wire.Encode(m)
		}
		if err != nil {
			return ExportPage{}, err
		}
		page.Cards = append(page.Cards, CardExport{tree, hex.EncodeToString(c.Owner[:]), c.Registered, c.Updated, c.Expires, meta})
	}
	if found.Next != nil {
		page.After = found.Next.Seq
	}
	return page, nil
}

// ImportResult counts the cards of an import by outcome.
type ImportResult struct {
	Added   int `json:"added"`
	Skipped int `json:"skipped"` // the id is already registered or reserved here, or the card has expired
	Refused int `json:"refused"` // the card breaks a rule of this directory, or is banned

	Reasons map[string]int `json:"reasons,omitempty"` // why cards were skipped or refused, each with their number
}

// Add adds the counts of more.
func (r *ImportResult) Add(more ImportResult) {
	r.Added, r.Skipped, r.Refused = r.Added+more.Added, r.Skipped+more.Skipped, r.Refused+more.Refused
	for why, n := range more.Reasons {
		r.count(why, n)
	}
}

func (r *ImportResult) count(why string, n int) {
	if r.Reasons == nil {
		r.Reasons = make(map[string]int)
	}
	r.Reasons[why] += n
}

// Import adds cards from [Registry.Export] of another directory, with their owners and key proofs. It skips cards whose
// id is registered here. It does not copy endpoint proofs: this directory probes endpoints itself.
func (r *Registry) Import(ctx context.Context, cards []CardExport, reason, by string) (ImportResult, error) {
	if err := moderation.CheckReason(reason); err != nil {
		return ImportResult{}, err
	}
	now := wire.Now()
	result, err := r.importCards(ctx, cards, now)
	// The imported cards stay even after an error, or if the caller has left. So always write the audit line.
	if lines := r.cfg.Audit.Changes(now, "", "imported", fmt.Sprintf("%d cards: %s", result.Added, reason), by); len(lines) > 0 {
		if auditErr := r.recs.Apply(context.WithoutCancel(ctx), lines, now); auditErr != nil {
			err = errors.Join(err, fmt.Errorf("store audit line: %w", auditErr))
		}
	}
	return result, err
}

func (r *Registry) importCards(ctx context.Context, cards []CardExport, now time.Time) (result ImportResult, err error) {
	for _, e := range cards {
		put, err := r.importCard(ctx, e, now)
		if err != nil {
			refusal, ok := errors.AsType[*wire.Error](err)
			if !ok { // the store failed; the card may be valid
				return result, fmt.Errorf("check %s: %w", e.Card.GetStr("agent_id"), err)
			}
			result.Refused++
			result.count(refusal.Message, 1)
			continue
		}
		if !put.Card.Live(now) {
			result.Skipped++
			result.count("the card has expired", 1)
			continue
		}
		_, err = r.cards.Put(ctx, put)
		r.afterWrite(put.Card.ID)
		switch {
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrReserved):
			result.Skipped++
			result.count("the id is registered or reserved here", 1)
		case err != nil:
			return result, fmt.Errorf("import %s: %w", put.Card.ID, err)
		default:
			result.Added++
		}
	}
	return result, nil
}

// importCard checks a card of an export, and returns the write that adds it. The card may have expired.
func (r *Registry) importCard(ctx context.Context, e CardExport, now time.Time) (store.PutCard, error) {
	c, err := r.rules.CheckCard(e.Card.JSON(), submission.AnyID, false, now) // false: this is not a request with a key proof
	if err != nil {
		return store.PutCard{}, err
	}
	if err := r.bans.Check(ctx, c.Card.ID, c.Key, c.Host, noClient, now); err != nil {
		return store.PutCard{}, err
	}
	owner, err := hex.DecodeString(e.Owner)
	if err != nil || len(owner) != 32 {
		return store.PutCard{}, wire.ErrCard.At("owner must be 64 hex digits")
	}
	var m listing.Meta
	if err := json.Unmarshal(e.Meta, &m); err != nil {
		return store.PutCard{}, wire.ErrCard.Because(err)
	}
	m.ForgetEndpoint()
	m.Derived = c.HasDerivedID(now)
	stored := newRow(c, [32]byte(owner), m, r.cfg.Lifetime, now)
	stored.Registered, stored.Updated = e.Registered, e.Updated
	if e.Expires.Before(stored.Expires) && !e.Expires.IsZero() {
		stored.Expires, stored.ReservedUntil = e.Expires, e.Expires.Add(reservation)
	}
	return store.PutCard{Card: stored, IfRev: store.Absent, Now: now}, nil
}
