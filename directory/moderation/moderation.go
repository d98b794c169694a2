// Package moderation has the rows that the operator of a directory stores about cards: bans, and the reasons of
// removals. It removes no cards itself.
package moderation

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	removedNS   = "removed"
	maxReason   = 300                  // bytes of the operator's reason
	removalLife = 400 * 24 * time.Hour // longer than the change feed keeps a tombstone
)

// Removal records why the operator removed a card. GET /changes shows the reason to anyone.
type Removal struct {
	AgentID wire.AgentID `json:"agent_id"`
	Reason  string       `json:"reason"`
	At      time.Time    `json:"at"`
}

// CheckReason validates the operator's reason.
func CheckReason(reason string) error {
	if reason == "" || len(reason) > maxReason || !utf8.ValidString(reason) {
		return wire.ErrQuery.At("reason must be 1 to 300 bytes of UTF-8")
	}
	return nil
}

// Change returns the change that stores the removal.
func (r Removal) Change() store.Change {
	rec := store.Record{NS: removedNS, Key: string(r.AgentID), Body: wire.MustMarshal(r), Expires: r.At.Add(removalLife)}
	return store.Change{Record: rec, IfRev: store.Any}
}

// Audit returns the change that writes a decision into the audit log. The caller commits it together with the decision.
// A nil Audit means that the directory has no audit log.
type Audit func(Decision) store.Change

// Changes returns the audit entry of a decision as a list of changes, which is empty without an audit log.
func (a Audit) Changes(at time.Time, subject, choice, note, by string) []store.Change {
	if a == nil {
		return nil
	}
	return []store.Change{a(Decision{At: at, Subject: subject, Choice: choice, Note: note, By: by})}
}

// Decision is a decision of the operator.
type Decision struct {
	At                        time.Time
	Subject, Choice, Note, By string // Subject is a card, ban or invite code; By is the page or client, such as "cli"
}

// LastRemoval returns the last removal of the card with this id, or the zero value if the operator never removed it.
func LastRemoval(ctx context.Context, records store.Records, id wire.AgentID, now time.Time) (Removal, error) {
	var last Removal
	if _, _, err := store.ReadRecord(ctx, records, removedNS, string(id), &last, now); err != nil {
		return Removal{}, fmt.Errorf("read removal of %s: %w", id, err)
	}
	return last, nil
}

// Decode decodes the bodies of records.
func Decode[T any](recs []store.Record) (list []T, err error) {
	list = make([]T, len(recs))
	for i, rec := range recs {
		if list[i], err = store.Decode[T](rec); err != nil {
			return nil, err
		}
	}
	return list, nil
}
