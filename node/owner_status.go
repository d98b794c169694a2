package node

import (
	"cmp"
	"context"
	"encoding/hex"
	"iter"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// statusCap bounds what Status counts in the store.
const statusCap = 1000

// maxLooked bounds the outbox entries among which Status looks for a failed one; each may be as large as a message.
const maxLooked = 20

// Status implements [owner.Control].
func (o OwnerAPI) Status(ctx context.Context) (owner.Status, error) {
	return o.Overview(ctx, statusCap)
}

// Overview is [OwnerAPI.Status] with maxCount instead of statusCap.
func (o OwnerAPI) Overview(ctx context.Context, maxCount int) (owner.Status, error) {
	n, now := o.n, time.Now()
	items, err := o.CountItems(ctx, string(ItemNew), maxCount)
	if err != nil {
		return owner.Status{}, err
	}
	needing, err := o.CountItems(ctx, owner.NeedsOwner, maxCount)
	if err != nil {
		return owner.Status{}, err
	}
	asks, err := o.CountApprovals(ctx, maxCount)
	if err != nil {
		return owner.Status{}, err
	}
	outbox := n.outbox.Counts()
	if outbox["queued"] == 0 { // another process may deliver: count the stored entries
		outbox["queued"], err = count(maxCount, n.allEntries(ctx, "state:"+string(SendQueued)))
		if err != nil {
			return owner.Status{}, err
		}
	}
	var delayed *owner.OutboxEntry
	if outbox["queued"] > 0 {
		waiting, _, err := n.Outbox(ctx, SendQueued, "", maxLooked)
		if err != nil {
			return owner.Status{}, err
		}
		if i := slices.IndexFunc(waiting, func(e OutboxEntry) bool { return e.Err != nil }); i >= 0 {
			delayed = &waiting[i].OutboxEntry
		}
	}
	notifyStatus, err := n.notices.Status(ctx, now)
	if err != nil {
		return owner.Status{}, err
	}
	storeState := "ok"
	if err := n.store.Ping(ctx); err != nil {
		storeState = err.Error()
	}
	id := n.registrar.Identity()
	var process httpapi.ProcessStatus
	if n.cfg.Process != nil {
		process = n.cfg.Process(ctx)
	}
	waiting, err := o.CountItems(ctx, string(ItemWaiting), maxCount)
	if err != nil {
		return owner.Status{}, err
	}
	var hooks []owner.HookStatus
	for _, r := range n.runs.Stats.List() {
		hooks = append(hooks, owner.HookStatus{Route: r.Route, Runs: r.Runs, Failures: r.Failures, LastFailure: r.LastAt, Fault: string(r.Last)})
	}
	return owner.Status{
		ProcessStatus: process, AgentID: id.Card.ID, Name: id.Card.Name, Endpoint: id.Card.Endpoint, Fingerprint: id.Key.Public().Fingerprint(),
		Paused: n.IsPaused(), Started: n.started, Mode: n.mode(), Outgoing: n.cfg.Outbound.mode(), Directories: n.Listings(),
		Inbox: items, NeedsOwner: needing, Approvals: asks, Outbox: outbox, Delayed: delayed, Hooks: hooks, Waiting: waiting, Store: storeState, Notify: notifyStatus,
	}, nil
}

// CountItems counts the items of the inbox in a state, or with [owner.NeedsOwner], up to maxCount.
func (o OwnerAPI) CountItems(ctx context.Context, state string, maxCount int) (int, error) {
	return count(maxCount, o.n.allItems(ctx, stateTerm(ItemState(state))))
}

// CountApprovals counts the pending questions, up to maxCount.
func (o OwnerAPI) CountApprovals(ctx context.Context, maxCount int) (int, error) {
	return count(maxCount, o.n.asks.All(ctx, acl.AskFilter{State: acl.AskPending}, time.Now()))
}

// Modes returns the access modes.
func (o OwnerAPI) Modes() owner.Modes {
	return owner.Modes{Incoming: o.n.mode(), Outgoing: o.n.cfg.Outbound.mode()}
}

// Refusals returns the newest refused messages since the process started, newest first. next closes at the next
// refusal.
func (o OwnerAPI) Refusals() (list []owner.Refusal, next <-chan struct{}) {
	next = o.n.refusals.news.Wait() // first, so that no refusal is missed
	return o.n.refusals.newest(), next
}

// Watch is [Node.Watch].
func (o OwnerAPI) Watch() (<-chan Event, func()) { return o.n.Watch() }

// Paused reports whether the node refuses all messages.
func (o OwnerAPI) Paused() bool { return o.n.IsPaused() }

// Audit returns the audit log.
func (o OwnerAPI) Audit() *acl.Audit { return o.n.audit }

// NamesOf implements [owner.Names].
func (o OwnerAPI) NamesOf(ctx context.Context, id string) (names owner.PeerNames, err error) {
	page, err := o.n.store.Records().List(ctx, nsAliases, aliasTerm(id), "", 1, time.Now())
	for _, r := range page.Records {
		names.PeerAlias = r.Key
	}
	if err == nil {
		names.PeerName, err = o.n.cards.NameOf(ctx, wire.AgentID(id), time.Now())
	}
	return names, err
}

// CheckTranscript verifies the hash chain of a transcript.
func (o OwnerAPI) CheckTranscript(ctx context.Context, peer, id string) error {
	return o.n.book.Check(ctx, store.ConvKey{Peer: peer, ID: id}, time.Now())
}

// count returns the length of a list, up to maxCount.
func count[T any](maxCount int, list iter.Seq2[T, error]) (total int, err error) {
	for _, err := range list {
		if err != nil {
			return 0, err
		}
		if total++; total >= maxCount {
			break
		}
	}
	return total, nil
}

func (n *Node) mode() acl.Mode { return cmp.Or(n.cfg.Policy.Mode, acl.Approval) }

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }
