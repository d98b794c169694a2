package acl

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsAudit     = "audit"      // the sealed log; key: number
	nsAuditNew  = "audit-new"  // committed with what they are about, and not yet in the chain
	nsAuditHead = "audit-head" // one record: where the chain ends and begins
	keyHead     = "head"

	sealAtOnce = 200
	sealAfter  = time.Second // after the first entry that waits, so that many are one commit
	sealEvery  = time.Minute // and in any case, for what other processes left
)

// AuditKind is what an entry of the audit log is about. Services add kinds of their own.
type AuditKind string

// The kinds of the core.
const (
	AuditAdmitted     AuditKind = "admitted"     // let in by a rule; counted, see [Audit.Count]
	AuditRefused      AuditKind = "refused"      // refused by a rule; counted
	AuditHeld         AuditKind = "held"         // waits for the owner
	AuditDecided      AuditKind = "decided"      // by the owner: Choice says how
	AuditWithdrawn    AuditKind = "withdrawn"    // by its sender, or with its conversation
	AuditExpired      AuditKind = "expired"      // nobody decided
	AuditSent         AuditKind = "sent"         // a message of ours that the owner's rules let out; counted
	AuditRule         AuditKind = "rule"         // the owner changed what is remembered of a peer
	AuditKey          AuditKind = "key"          // keys: ours rotated, a peer's pinned anew
	AuditRegistration AuditKind = "registration" // the owner registered or withdrew the node
	AuditToken        AuditKind = "token"        // an invite code was issued
	AuditOperator     AuditKind = "operator"     // the operator of the directory banned, removed or brought in
	AuditPause        AuditKind = "pause"
	AuditResume       AuditKind = "resume"
	AuditPolicy       AuditKind = "policy" // the process started with other rules than before
)

// ByRule is the decider where a rule decided; else it is the door that the owner used: "cli", "page", "api".
const ByRule = "rule"

// AuditEntry is one line of the audit log. No text of a message stands in it.
type AuditEntry struct {
	N            uint64    `json:"n"` // 1 for the first
	At           time.Time `json:"at"`
	Kind         AuditKind `json:"kind"`
	Subject      string    `json:"subject,omitempty"` // principal it is about
	Rule         string    `json:"rule,omitempty"`    // by which it was decided: "access.mode=approval"
	By           string    `json:"by"`
	Choice       Choice    `json:"choice,omitempty"`
	Ask          string    `json:"ask,omitempty"`
	AskKind      string    `json:"ask_kind,omitempty"`
	Conversation string    `json:"conversation_id,omitempty"`
	Digest       string    `json:"digest,omitempty"` // hash of what the owner was shown
	Note         string    `json:"note,omitempty"`   // ours, never a peer's words
	Count        uint64    `json:"count,omitempty"`  // of how many this is the sum
	Until        time.Time `json:"until,omitzero"`   // when the last of them was
	Prev         string    `json:"prev"`             // Hash of the entry before, zeros for the first
	// Hash is the hex SHA-256 of the entry's RFC 8785 form without this member.
	Hash string `json:"hash"`
}

// AuditConfig bounds the log.
type AuditConfig struct {
	MaxEntries uint64        // the oldest go first; zero: 100,000
	Keep       time.Duration // entries go after it; zero: 365 days
	Logger     *slog.Logger  // nil discards
}

// Audit is the append-only log of decisions. It is safe for concurrent use.
//
// An entry is stored in the same unit as the decision that it is about, so that none is acknowledged without its
// line; within a second [Audit.Run] gives it its number and its place in the hash chain. What rules decide about
// every message is counted in memory and stored as sums, because a stranger must not cost a write each time.
type Audit struct {
	cfg     AuditConfig
	records store.Records
	dirty   chan struct{} // holds one token while something waits to be sealed
	made    atomic.Uint32 // entries, so that those of one instant keep their order
	counts  counts
	told    func() // see OnSealed
	sealing sync.Mutex
}

// NewAudit returns the log that recs keep.
func NewAudit(recs store.Records, cfg AuditConfig) *Audit {
	if cfg.MaxEntries == 0 {
		cfg.MaxEntries = 100_000
	}
	if cfg.Keep == 0 {
		cfg.Keep = 365 * 24 * time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Audit{cfg: cfg, records: recs, dirty: make(chan struct{}, 1), counts: newCounts()}
}

// OnSealed has f called after entries became part of the chain. It is for set-up; f must not block.
func (a *Audit) OnSealed(f func()) { a.told = f }

// Change returns the change that stores an entry, for the unit of what it is about. N, Prev and Hash are given later.
func (a *Audit) Change(e AuditEntry) store.Change {
	if e.By == "" {
		e.By = ByRule
	}
	e.At, e.Until = e.At.UTC(), e.Until.UTC()
	e.N, e.Prev, e.Hash = 0, "", ""
	e.Note = strings.ToValidUTF8(e.Note[:min(len(e.Note), 300)], "")
	key := fmt.Sprintf("%014x%08x%s", e.At.UnixMicro(), a.made.Add(1), strings.ToLower(rand.Text()[:8]))
	select {
	case a.dirty <- struct{}{}:
	default:
	}
	return store.Change{Record: store.Record{NS: nsAuditNew, Key: key, Body: encode(e)}}
}

// Add stores entries by themselves, durably when it returns.
func (a *Audit) Add(ctx context.Context, entries ...AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	changes := make([]store.Change, len(entries))
	for i, e := range entries {
		changes[i] = a.Change(e)
	}
	if err := a.records.Apply(ctx, changes, entries[0].At); err != nil {
		return fmt.Errorf("store audit entries: %w", err)
	}
	return nil
}

// Count adds one to a sum that is stored within minutes: what happens with every message costs no write of its own. A
// crash loses what was not stored yet; what was let in stands in the transcripts all the same.
func (a *Audit) Count(e AuditEntry) { a.counts.add(e) }

// Run seals entries and stores sums until ctx ends; then it does so a last time.
func (a *Audit) Run(ctx context.Context) {
	ticker := time.NewTicker(sealEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			a.tidy(context.WithoutCancel(ctx), time.Now(), true)
			return
		case <-ticker.C:
			a.tidy(ctx, time.Now(), false)
		case <-a.dirty:
			timer := time.NewTimer(sealAfter)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			if err := a.Seal(ctx); err != nil && ctx.Err() == nil {
				a.cfg.Logger.Error("seal audit log", "err", err)
			}
		}
	}
}

func (a *Audit) tidy(ctx context.Context, now time.Time, last bool) {
	err := a.flush(ctx, now, last)
	if err := errors.Join(err, a.Seal(ctx)); err != nil && ctx.Err() == nil {
		a.cfg.Logger.Error("store audit log", "err", err)
	}
}

// auditHead is where the chain ends, and where it begins after rotation.
type auditHead struct {
	N     uint64 `json:"n"`
	Hash  string `json:"hash"`
	First uint64 `json:"first"` // oldest entry that rotation by number left
}

// Seal gives the entries that wait their places in the chain, in the order in which they were made.
func (a *Audit) Seal(ctx context.Context) error {
	a.sealing.Lock()
	defer a.sealing.Unlock()
	for {
		took, err := a.sealSome(ctx)
		switch {
		case errors.Is(err, store.ErrConflict): // another process sealed meanwhile
			continue
		case err != nil:
			return fmt.Errorf("seal audit log: %w", err)
		case took > 0 && a.told != nil:
			a.told()
		}
		if took < sealAtOnce {
			return nil
		}
	}
}

func (a *Audit) sealSome(ctx context.Context) (took int, err error) {
	now := time.Now()
	page, err := a.records.List(ctx, nsAuditNew, "", "", sealAtOnce, now)
	if err != nil || len(page.Records) == 0 {
		return 0, err
	}
	head, rev, err := a.head(ctx, now)
	if err != nil {
		return 0, err
	}
	var changes []store.Change
	for _, rec := range page.Records {
		var e AuditEntry
		if err := json.Unmarshal(rec.Body, &e); err != nil {
			return 0, fmt.Errorf("decode entry: %w", err)
		}
		e.N, e.Prev = head.N+1, head.Hash
		if e.Hash, err = e.sum(); err != nil {
			return 0, err
		}
		head.N, head.Hash = e.N, e.Hash
		changes = append(changes, a.sealed(e, now), store.Change{
			Record: store.Record{NS: nsAuditNew, Key: rec.Key}, IfRev: rec.Rev, Delete: true,
		})
	}
	for ; head.N-head.First >= a.cfg.MaxEntries && len(changes) < 4*sealAtOnce; head.First++ {
		changes = append(changes, store.Change{
			Record: store.Record{NS: nsAudit, Key: auditKey(head.First)}, IfRev: store.Any, Delete: true,
		})
	}
	changes = append(changes, store.Change{IfRev: rev, Record: store.Record{NS: nsAuditHead, Key: keyHead, Body: encode(head)}})
	return len(page.Records), a.records.Apply(ctx, changes, now)
}

func (a *Audit) head(ctx context.Context, now time.Time) (auditHead, store.Rev, error) {
	rec, err := a.records.Get(ctx, nsAuditHead, keyHead, now)
	if errors.Is(err, store.ErrNotFound) {
		return auditHead{Hash: strings.Repeat("0", 64), First: 1}, store.Absent, nil
	}
	if err != nil {
		return auditHead{}, 0, err
	}
	var head auditHead
	if err := json.Unmarshal(rec.Body, &head); err != nil {
		return auditHead{}, 0, fmt.Errorf("decode head: %w", err)
	}
	return head, rec.Rev, nil
}

func (a *Audit) sealed(e AuditEntry, now time.Time) store.Change {
	terms := []string{"kind:" + string(e.Kind)}
	if e.Subject != "" {
		terms = append(terms, "subject:"+e.Subject)
	}
	return store.Change{Record: store.Record{
		NS: nsAudit, Key: auditKey(e.N), Body: encode(e), Terms: terms, Expires: now.Add(a.cfg.Keep),
	}}
}

func auditKey(n uint64) string { return fmt.Sprintf("%016x", n) }

// sum is the hash of the entry, which covers the hash of the one before.
func (e AuditEntry) sum() (string, error) {
	tree, err := wire.ParseObject(encode(e))
	if err != nil {
		return "", fmt.Errorf("hash audit entry: %w", err)
	}
	sum := signing.Digest(tree.Without("hash"))
	return hex.EncodeToString(sum[:]), nil
}
