package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	removedNS   = "removed"
	maxReason   = 300                  // bytes of the operator's reason
	removalLife = 400 * 24 * time.Hour // longer than a tombstone stays in the change feed
)

// Removal records that the operator removed a card, and why. GET /changes shows the reason to anyone.
type Removal struct {
	AgentID wire.AgentID `json:"agent_id"`
	Reason  string       `json:"reason"`
	At      time.Time    `json:"at"`
}

// checkReason validates the operator's reason.
func checkReason(reason string) error {
	if reason == "" || len(reason) > maxReason || !utf8.ValidString(reason) {
		return wire.ErrQuery.At("reason must be 1 to 300 bytes")
	}
	return nil
}

// Remove removes the card of id for the operator. The id stays reserved for its owner, who may register again unless a
// ban applies. by is the interface that the order came from, for the audit log. For an unknown id Remove returns
// [wire.ErrNoAgent].
func (r *Registry) Remove(ctx context.Context, id wire.AgentID, reason, by string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	now := wire.Now()
	change, err := removalChange(Removal{id, reason, now})
	if err != nil {
		return err
	}
	changes := append(r.audit(now, string(id), "removed", reason, by), change)
	err = r.cards.Withdraw(ctx, string(id), store.Any, now.Add(reservation), changes, now)
	r.afterWrite(string(id))
	if errors.Is(err, store.ErrNotFound) {
		return wire.ErrNoAgent
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	r.log.InfoContext(ctx, "card removed by the operator", "agent_id", id, "reason", reason)
	return nil
}

// removalChange returns the change that stores removal.
func removalChange(removal Removal) (store.Change, error) {
	body, err := json.Marshal(removal)
	if err != nil {
		return store.Change{}, fmt.Errorf("write removal: %w", err)
	}
	rec := store.Record{NS: removedNS, Key: string(removal.AgentID), Body: body, Expires: removal.At.Add(removalLife)}
	return store.Change{Record: rec, IfRev: store.Any}, nil
}

// afterWrite drops the cached view of a card and wakes readers of the change feed. It must be called after each attempt
// that may have written the card, even if it is unknown whether the write succeeded.
func (r *Registry) afterWrite(id string) {
	r.views.drop(id)
	r.changes.Notify()
}

// audit returns the changes that write a decision of the operator into the audit log, or nil without an audit log.
func (r *Registry) audit(at time.Time, subject, choice, note, by string) []store.Change {
	if r.cfg.Audit == nil {
		return nil
	}
	return []store.Change{r.cfg.Audit(Decision{At: at, Subject: subject, Choice: choice, Note: note, By: by})}
}

// Decision is a decision of the operator, for the audit log.
type Decision struct {
	At                        time.Time
	Subject, Choice, Note, By string // By is the interface that the decision came from
}
