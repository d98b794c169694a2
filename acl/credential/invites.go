package credential

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// ErrSpent refuses an invite code that has no uses left.
var ErrSpent = errors.New("credential: the invite has no uses left")

// Code describes an invite code to the operator. The secret itself is shown only once, when the code is issued.
type Code struct {
	ID      string    `json:"id"`
	Label   string    `json:"label,omitempty"`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`
	Uses    int       `json:"uses,omitempty"`    // how many registrations it allows in all; 0 means 1
	Count   int       `json:"used,omitempty"`    // how many registrations it has allowed
	Used    time.Time `json:"used_at,omitzero"`  // when it was last used
	UsedBy  string    `json:"used_by,omitempty"` // the last agent that registered with it
}

// Left returns how many registrations the code still allows.
func (c Code) Left() int { return max(1, c.Uses) - c.Count }

// Invites stores the invite codes of a service as records, keyed by the hash of the code. Issue, Redeem and Revoke
// store nothing themselves: they return changes, which the service commits together with its own.
type Invites struct {
	Records store.Records
	NS      string
	Name    func(Hash) string // makes the key of a record: Hash.Name or Hash.String
	Max     int               // largest number of codes, including used ones; 0 means no limit
	Forget  bool              // removes a code after its last use; otherwise it stays until it expires
}

// Issue returns c with its ID, and the change that stores the new code. The change fails with store.ErrQuota if Max
// codes exist.
func (v Invites) Issue(code string, c Code) (Code, store.Change) {
	c.ID = v.Name(HashOf(code))
	change := v.change(c, store.Absent)
	change.Max = v.Max
	return c, change
}

func (v Invites) change(c Code, rev store.Rev) store.Change {
	return store.Change{Record: store.Record{NS: v.NS, Key: c.ID, Body: wire.MustMarshal(c), Expires: c.Expires}, IfRev: rev}
}

// Redeem uses up one use of a code for agent. It returns the code's description after this use, and the change that
// stores the use. Commit the change together with the registration of the agent, so that two agents cannot share one
// use. The error is store.ErrNotFound for an unknown code, and [ErrSpent] if no uses are left.
func (v Invites) Redeem(ctx context.Context, code, agent string, now time.Time) (Code, store.Change, error) {
	rec, err := v.Records.Get(ctx, v.NS, v.Name(HashOf(code)), now)
	if err != nil {
		return Code{}, store.Change{}, fmt.Errorf("look up invite: %w", err)
	}
	c, err := decodeCode(rec)
	if err != nil {
		return c, store.Change{}, err
	}
	if c.Left() < 1 {
		return c, store.Change{}, ErrSpent
	}
	c.Used, c.UsedBy, c.Count = now, agent, c.Count+1
	change := v.change(c, rec.Rev)
	change.Delete = v.Forget && c.Left() < 1
	return c, change, nil
}

func decodeCode(rec store.Record) (Code, error) {
	c, err := store.Decode[Code](rec)
	c.ID = rec.Key
	return c, err
}

// List returns at most limit codes in the order of their ids, without expired codes. Unless Forget is set, it includes
// used-up codes. For the first page, after is "", and for every other page, it is the value next of the page before.
// On the last page, next is "".
func (v Invites) List(ctx context.Context, after string, limit int, now time.Time) (codes []Code, next string, err error) {
	page, err := v.Records.List(ctx, v.NS, "", after, limit, now)
	if err != nil {
		return nil, "", fmt.Errorf("list invites: %w", err)
	}
	codes = make([]Code, len(page.Records))
	for i, rec := range page.Records {
		if codes[i], err = decodeCode(rec); err != nil {
			return nil, "", err
		}
	}
	return codes, page.Next, nil
}

// Revoke returns the change that removes a code, or store.ErrNotFound.
func (v Invites) Revoke(ctx context.Context, id string, now time.Time) (store.Change, error) {
	rec, err := v.Records.Get(ctx, v.NS, id, now)
	if err != nil {
		return store.Change{}, err
	}
	return store.Change{Record: store.Record{NS: v.NS, Key: id}, IfRev: rec.Rev, Delete: true}, nil
}
