package acl

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsAudit     = "audit"      // the entries in the chain; the key is the number
	nsAuditNew  = "audit-new"  // committed entries that are not in the chain yet
	nsAuditHead = "audit-head" // one record: where the chain begins and ends
	keyHead     = "head"

	sealBatch = 200         // entries that are sealed in one commit
	sealAfter = time.Second // time between the first waiting entry and its sealing, so that many entries share a commit
	sealEvery = time.Minute // longest time between two sealings; picks up the entries of other processes
)

// AuditKind is the kind of an entry of the audit log. Services add kinds of their own.
type AuditKind string

// The kinds of entries that this package, the node and the directory write.
const (
	AuditAdmitted     AuditKind = "admitted"     // a rule let a message in; only counted, see [Audit.Count]
	AuditRefused      AuditKind = "refused"      // a rule refused a message; only counted
	AuditHeld         AuditKind = "held"         // a message, or another question, waits for the owner
	AuditDecided      AuditKind = "decided"      // the owner decided; Choice is the decision
	AuditWithdrawn    AuditKind = "withdrawn"    // the sender took the message back, or the conversation ended
	AuditExpired      AuditKind = "expired"      // a question expired without a decision
	AuditSent         AuditKind = "sent"         // the owner's rules permitted a message of ours; only counted
	AuditRule         AuditKind = "rule"         // the owner changed a rule about a peer
	AuditKey          AuditKind = "key"          // our key was rotated, or a peer's key was pinned again
	AuditRegistration AuditKind = "registration" // the owner registered or withdrew the node
	AuditToken        AuditKind = "token"        // an invite code was issued or revoked
	AuditOperator     AuditKind = "operator"     // the operator of the directory changed bans, or removed, handed over or imported cards
	AuditPause        AuditKind = "pause"        // the owner paused the node
	AuditResume       AuditKind = "resume"       // the owner ended the pause
	AuditPolicy       AuditKind = "policy"       // the process started with another policy than the last time
)

// ByRule is the value of [AuditEntry.By] if a rule decided. Otherwise By is usually the interface that the person
// used: "cli", "page", "api".
const ByRule = "rule"

// AuditEntry is an entry of the audit log. It never contains text of a message.
type AuditEntry struct {
	N            uint64    `json:"n"` // 1 for the first entry
	At           time.Time `json:"at"`
	Kind         AuditKind `json:"kind"`
	Subject      string    `json:"subject,omitempty"` // the principal to which the entry refers
	Rule         string    `json:"rule,omitempty"`    // what decided: "access.mode=approval", an error code, a directory
	By           string    `json:"by"`
	Choice       Choice    `json:"choice,omitempty"`
	Ask          string    `json:"ask,omitempty"` // id of the question to the owner
	AskKind      string    `json:"ask_kind,omitempty"`
	Conversation string    `json:"conversation_id,omitempty"`
	Digest       string    `json:"digest,omitempty"` // hash of what the entry is about: what the owner saw, a key, the policy
	Note         string    `json:"note,omitempty"`   // written by us; never text of a peer
	Count        uint64    `json:"count,omitempty"`  // number of events that the entry sums up
	Until        time.Time `json:"until,omitzero"`   // time of the last of these events
	Prev         string    `json:"prev"`             // Hash of the previous entry; zeros for the first
	// Hash is the hex SHA-256 of the entry's RFC 8785 form without this member.
	Hash string `json:"hash"`
}

// AuditConfig bounds the log.
type AuditConfig struct {
	MaxEntries uint64        // the oldest entries are removed first; zero means 100,000
	Keep       time.Duration // lifetime of an entry; zero means 365 days
	Logger     *slog.Logger  // may be nil
}

// Audit is the append-only log of decisions. It is safe for concurrent use. An entry is stored in the same unit as its
// decision: the store commits both or neither, so that no decision is acknowledged without its entry. About a second
// later, [Audit.Run] seals the entry by giving it a number and a place in the hash chain. Decisions that rules make
// about every message are counted in memory and stored as sums, because a stranger must not be able to cause a write
// per message.
type Audit struct {
	cfg     AuditConfig
	records store.Records
	wake    chan struct{} // has room for one signal that an entry waits to be sealed
	seq     atomic.Uint32 // keeps entries of the same instant in order
	counts  counts
	onSeal  func() // may be nil
	sealing sync.Mutex
}

// NewAudit returns the log stored in recs.
func NewAudit(recs store.Records, cfg AuditConfig) *Audit {
	cfg.MaxEntries = cmp.Or(cfg.MaxEntries, 100_000)
	cfg.Keep = cmp.Or(cfg.Keep, 365*24*time.Hour)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Audit{
		cfg: cfg, records: recs, wake: make(chan struct{}, 1),
		counts: counts{sums: make(map[AuditEntry]AuditEntry), budget: countsPerHour, filled: time.Now()},
	}
}

// OnSeal sets a function that is called after entries are sealed. f must not block. Call OnSeal during set-up.
func (a *Audit) OnSeal(f func()) { a.onSeal = f }

// Change returns the change that stores an entry. The caller adds it to the unit of the decision. Sealing sets N, Prev
// and Hash.
func (a *Audit) Change(e AuditEntry) store.Change {
	e.By = cmp.Or(e.By, ByRule)
	e.At, e.Until = e.At.UTC(), e.Until.UTC()
	e.N, e.Prev, e.Hash = 0, "", ""
	e.Note = strings.ToValidUTF8(e.Note[:min(len(e.Note), 300)], "")
	key := fmt.Sprintf("%014x%08x%s", e.At.UnixMicro(), a.seq.Add(1), strings.ToLower(rand.Text()[:8]))
	waiting.Wake(a.wake)
	return store.Change{Record: store.Record{NS: nsAuditNew, Key: key, Body: wire.MustMarshal(e)}}
}

// Add stores entries durably in a unit of their own.
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

// Count adds an event to a sum, which is usually stored within minutes. A crash loses the sums that are not stored yet.
func (a *Audit) Count(e AuditEntry) { a.counts.add(e) }

// Run seals entries and stores sums until ctx ends, and then once more.
func (a *Audit) Run(ctx context.Context) {
	ticker := time.Tick(sealEvery)
	for {
		select {
		case <-ctx.Done():
			a.flushAndSeal(context.WithoutCancel(ctx), time.Now(), true)
			return
		case <-ticker:
			a.flushAndSeal(ctx, time.Now(), false)
		case <-a.wake:
			waiting.Pause(ctx, sealAfter)
			if err := a.Seal(ctx); err != nil && ctx.Err() == nil {
				a.cfg.Logger.Error("cannot seal the audit log", "err", err)
			}
		}
	}
}

// flushAndSeal stores sums and seals entries. last is set when the process ends.
func (a *Audit) flushAndSeal(ctx context.Context, now time.Time, last bool) {
	err := a.flush(ctx, now, last)
	if err := errors.Join(err, a.Seal(ctx)); err != nil && ctx.Err() == nil {
		a.cfg.Logger.Error("cannot store the audit log", "err", err)
	}
}

// auditHead is the stored position of the chain.
type auditHead struct {
	N     uint64 `json:"n"`
	Hash  string `json:"hash"`
	First uint64 `json:"first"` // number of the oldest entry that is kept
}

// Seal adds the waiting entries to the chain, in the order of their times.
func (a *Audit) Seal(ctx context.Context) error {
	a.sealing.Lock()
	defer a.sealing.Unlock()
	for {
		took, err := a.sealSome(ctx)
		switch {
		case errors.Is(err, store.ErrConflict): // another process sealed entries meanwhile
			continue
		case err != nil:
			return fmt.Errorf("seal audit log: %w", err)
		case took > 0 && a.onSeal != nil:
			a.onSeal()
		}
		if took < sealBatch {
			return nil
		}
	}
}

// sealSome seals at most sealBatch entries and returns how many it took.
func (a *Audit) sealSome(ctx context.Context) (took int, err error) {
	now := time.Now()
	page, err := a.records.List(ctx, nsAuditNew, "", "", sealBatch, now)
	if err != nil || len(page.Records) == 0 {
		return 0, err
	}
	head := auditHead{Hash: strings.Repeat("0", 64), First: 1}
	rev, _, err := store.ReadRecord(ctx, a.records, nsAuditHead, keyHead, &head, now)
	if err != nil {
		return 0, err
	}
	var changes []store.Change
	for _, rec := range page.Records {
		e, err := store.Decode[AuditEntry](rec)
		if err != nil {
			return 0, err
		}
		e.N, e.Prev = head.N+1, head.Hash
		if e.Hash, err = e.computeHash(); err != nil {
			return 0, err
		}
		head.N, head.Hash = e.N, e.Hash
		changes = append(changes, a.entryChange(e, now), store.Change{
			Record: store.Record{NS: nsAuditNew, Key: rec.Key}, IfRev: rec.Rev, Delete: true,
		})
	}
	const maxChanges = 4 * sealBatch // in one commit; the next sealing removes further old entries
	for ; head.N-head.First >= a.cfg.MaxEntries && len(changes) < maxChanges; head.First++ {
		changes = append(changes, store.Change{
			Record: store.Record{NS: nsAudit, Key: auditKey(head.First)}, IfRev: store.Any, Delete: true,
		})
	}
	changes = append(changes, store.Change{IfRev: rev, Record: store.Record{NS: nsAuditHead, Key: keyHead, Body: wire.MustMarshal(head)}})
	return len(page.Records), a.records.Apply(ctx, changes, now)
}

// entryChange returns the change that stores an entry in the chain.
func (a *Audit) entryChange(e AuditEntry, now time.Time) store.Change {
	terms := []string{"kind:" + string(e.Kind)}
	if e.Subject != "" {
		terms = append(terms, "subject:"+e.Subject)
	}
	return store.Change{Record: store.Record{
		NS: nsAudit, Key: auditKey(e.N), Body: wire.MustMarshal(e), Terms: terms, Expires: now.Add(a.cfg.Keep),
	}}
}

func auditKey(n uint64) string { return fmt.Sprintf("%016x", n) }

func (e AuditEntry) computeHash() (string, error) {
	tree, err := wire.ParseObject(wire.MustMarshal(e))
	if err != nil {
		return "", fmt.Errorf("hash audit entry: %w", err)
	}
	sum := signing.Digest(tree.Without("hash"))
	return hex.EncodeToString(sum[:]), nil
}
