package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// attemptTime bounds one attempt, whatever a transport does. A peer may take up to 30 s to answer (AM-45).
const attemptTime = 45 * time.Second

// attempt makes one attempt to deliver an outbox entry, the first of its conversation, and stores the outcome. If fresh
// is set, no attempt has begun yet, although the entry may be stored as in flight. If the attempt lacked something, it is
// the gate of the result (see [OutboxEntry.Awaits]). If ctx or the process ends during the attempt, the entry stays in
// flight, and the process that delivers the outbox next tries it again.
func (n *Node) attempt(ctx context.Context, rec store.Record, fresh bool) (work.Later, error) {
	e, err := decodeEntry(rec)
	if err != nil {
		return work.Later{}, err
	}
	if e.Awaits != "" && !n.outbox.linked.Load() {
		return work.Later{Gate: e.Awaits}, nil
	}
	first := fresh && e.InFlight
	if !first || time.Since(e.Signed) >= signAgainAfter {
		e.Processed = e.Processed || e.InFlight && !first // the outcome of the interrupted attempt is unknown
		if e, err = n.prepare(ctx, e); err != nil {
			return n.retryOrEnd(ctx, e, err)
		}
	}
	m, err := n.currentMessage(&e)
	if err != nil {
		return n.retryOrEnd(ctx, e, err)
	}
	transport, err := n.transport(e)
	if err != nil {
		return n.retryOrEnd(ctx, e, err)
	}
	if !n.session.IsCurrent(ctx) { // this process stood still: another one may deliver the outbox now
		return work.Later{Pause: sendPauses[0]}, nil
	}
	limited, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	delivered, err := transport.Deliver(limited, bridge.Delivery{
		ID: e.ID, To: e.To, Address: e.Address, Message: m, Raw: e.Raw, Attempt: e.Attempts + 1,
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return work.Later{}, ctx.Err() // the process that delivers the outbox next tries it again
	case errors.Is(err, client.ErrReplyUnverified):
		return work.Later{}, n.endWithBadReply(ctx, e, err)
	case err != nil && e.Action == wire.ActionClose && isConversationClosed(err):
		return work.Later{}, n.endWithSuccess(ctx, e, bridge.Delivered{}) // AM-38: the conversation was closed already
	case err != nil:
		return n.retryOrEnd(ctx, e, err)
	}
	return work.Later{}, n.endWithSuccess(ctx, e, delivered)
}

func isConversationClosed(err error) bool {
	e, ok := errors.AsType[*client.SendError](err)
	return ok && e.Refusal != nil && e.Refusal.Code == wire.ConversationClosed
}

// retryableError is the failure of an attempt that sent nothing, and that a later attempt may repeat.
type retryableError struct{ error }

func (e retryableError) Unwrap() error { return e.error }

// errUnknownDelivery ends an outbox entry that the peer might process twice if it were sent again (AM-48).
var errUnknownDelivery = errors.New("the message may have been delivered, and its signature is too old to send it again")

// prepare stores that an outbox entry is in flight. If the entry is for a native agent and its signature is too old or
// misdated, prepare first signs it again. That is safe only if the peer cannot have processed an earlier attempt, or if the peer
// recognizes resends (AM-48). Otherwise prepare returns errUnknownDelivery, as a retryableError while the clock is not
// reliable.
func (n *Node) prepare(ctx context.Context, e OutboxEntry) (OutboxEntry, error) {
	now := time.Now()
	standing, err := n.rules.Standing(ctx, cmp.Or(e.Address, string(e.To)), now)
	switch {
	case err != nil:
		return e, retryableError{fmt.Errorf("read the standing of the recipient: %w", err)}
	case standing == acl.Blocked && e.Action != wire.ActionClose: // the close of a block itself leaves (AM-35)
		return e, rules.ErrBlocked
	}
	if e.Address == "" && (e.Misdated || now.Sub(e.Signed) >= signAgainAfter) {
		if e.Processed {
			recognizes := false
			if !e.Doubtful { // if it is, the peer may have processed a resend, whose repeat it does not recognize
				recognizes, err = n.knowsResends(ctx, e.To)
			}
			switch {
			case err != nil:
				return e, retryableError{err}
			case !recognizes && !n.clock.Reliable(): // with the right time, the signature may be young enough
				return e, retryableError{errUnknownDelivery}
			case !recognizes:
				return e, errUnknownDelivery
			}
		}
		if err := n.signAgain(&e, now); err != nil {
			return e, err
		}
	}
	e.InFlight = true
	if err := n.store.Records().Apply(ctx, []store.Change{e.change()}, now); err != nil {
		return e, retryableError{fmt.Errorf("store outbox entry: %w", err)}
	}
	stored, err := n.loadEntry(ctx, e.ID)
	if err != nil {
		return e, retryableError{fmt.Errorf("read outbox entry: %w", err)}
	}
	return stored, nil
}

// signAgain gives the entry a new id, time and signature; its metadata member resend_of names the first id.
func (n *Node) signAgain(e *OutboxEntry, now time.Time) error {
	m, err := parseStored(e.Raw)
	if err != nil {
		return err
	}
	s, err := n.sign(wire.Draft{
		Conversation: e.Conversation, To: e.To, Time: now, Intent: e.Intent,
		Payload: withMeta(m.Payload, "resend_of", string(e.First)),
	})
	if err != nil {
		return err
	}
	e.MessageID, e.Signed, e.Raw, e.Signer, e.Misdated = s.Message.ID, now, s.Raw, n.fingerprint(), false
	return nil
}

// currentMessage returns the message to send. After a key rotation it signs the message again and updates e, because
// the peer may know only the new key. The peer still recognizes a repeat, because the digest that identifies the
// message does not cover the signature (AM-17).
func (n *Node) currentMessage(e *OutboxEntry) (wire.Message, error) {
	m, err := parseStored(e.Raw)
	if err != nil || e.Signer == n.fingerprint() {
		return m, err
	}
	tree, err := n.registrar.Identity().Key.SignValue(m.Tree.Without("signature"))
	if err != nil {
		return m, fmt.Errorf("sign message: %w", err)
	}
	e.Raw, e.Signer = tree.JSON(), n.fingerprint()
	return wire.ParseMessage(tree)
}

func (n *Node) fingerprint() string { return n.registrar.Identity().Key.Public().Fingerprint() }

// knowsResends reports whether the peer recognizes resends. It does if the host of its endpoint serves a well-known
// document that names the peer (AM-81).
func (n *Node) knowsResends(ctx context.Context, id wire.AgentID) (bool, error) {
	peer, err := n.cards.Find(ctx, id, time.Now())
	if err != nil {
		return false, err
	}
	u, err := url.Parse(peer.Card.Endpoint)
	if err != nil {
		return false, err
	}
	u = &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/.well-known/agentmesh.json"}
	const maxDocument = 64 << 10
	resp, body, err := n.cfg.HTTP.Get(ctx, peer.Reach, u.String(), nil, maxDocument)
	switch {
	case errors.Is(err, client.ErrAnswerTooLarge):
		return false, nil
	case err != nil:
		return false, err
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return false, fmt.Errorf("the peer answered HTTP %d", resp.StatusCode)
	}
	doc, err := wire.ParseObject(body)
	return err == nil && resp.StatusCode == http.StatusOK && doc.GetStr("agent_id") == string(id), nil
}

// transport returns the way to deliver the entry: HTTP to a native agent, or the bridge of the foreign address.
func (n *Node) transport(e OutboxEntry) (bridge.Transport, error) {
	if e.Address == "" {
		return endpoint{n}, nil
	}
	to, err := bridge.ParseAddress(e.Address)
	if err != nil {
		return nil, err
	}
	if a, ok := n.bridges.find(to.Kind); ok {
		if a.Screens || n.cfg.PersonalData == nil { // the bridge looks for personal data itself, or nobody does
			return a.service, nil
		}
		return screened{a.service, n}, nil
	}
	return nil, retryableError{fmt.Errorf("no bridge delivers to %s addresses", to.Kind)}
}

// endpoint is the transport to native agents: HTTP to the endpoint on the card (AM-45).
type endpoint struct{ n *Node }

var _ bridge.Transport = endpoint{}

// Deliver sends the message through a [bridge.Carrier] that reaches the peer, or else to the peer's endpoint, and
// verifies the answer. The error wraps client.ErrReplyUnverified if the answer is not a valid reply of the peer.
func (e endpoint) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	peer, err := e.n.cards.Find(ctx, d.To, time.Now())
	switch {
	case errors.Is(err, client.ErrUnknownAgent), errors.Is(err, client.ErrUnusableCard):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, retryableError{err} // also for a changed key, which the owner may accept
	}
	if out, handled, err := e.tryCarriers(ctx, d, peer); handled {
		return out, err
	}
	answer, err := e.n.cfg.HTTP.Send(ctx, peer, d.Raw)
	if err != nil && e.fetchMovedCard(ctx, &peer, err) {
		answer, err = e.n.cfg.HTTP.Send(ctx, peer, d.Raw)
	}
	if err != nil {
		return bridge.Delivered{}, err
	}
	if answer.Empty() {
		return bridge.Delivered{}, nil // AM-49
	}
	if _, ok := answer.Receipt(); ok {
		return bridge.Delivered{Queued: true}, nil
	}
	return e.readReply(ctx, d, peer, answer)
}

// readReply verifies that answer is the reply of peer to the delivered message.
func (e endpoint) readReply(ctx context.Context, d bridge.Delivery, peer client.Peer, answer client.Answer) (bridge.Delivered, error) {
	reply, err := answer.Message()
	if err != nil {
		return bridge.Delivered{}, err
	}
	checked, err := e.n.verifier.VerifyReply(ctx, d.Message, reply, peer, time.Now())
	if err != nil {
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Reply: &reply, Raw: answer.Body, Digest: checked.Digest}, nil
}

// movedGap is the minimum time between two fetches of an unreachable peer's card. It is shorter than the pause before
// the second attempt, so that a burst of messages fetches once and the second attempt fetches again.
const movedGap = 3 * time.Second

// fetchMovedCard fetches a peer's card again after a delivery that the peer cannot have processed. If the card names
// another endpoint, it replaces *peer and returns true (AM-86). A final refusal always causes a fetch, a failed
// connection at most one within movedGap. fetchMovedCard accepts a new key only if the pinned key vouches for it.
func (e endpoint) fetchMovedCard(ctx context.Context, peer *client.Peer, cause error) bool {
	failure, ok := errors.AsType[*client.SendError](cause)
	if !ok || failure.Processed || failure.Retry && failure.Status != 0 {
		return false // the peer may have processed the message, or its endpoint asked for a later attempt
	}
	gap := time.Duration(0)
	if failure.Retry {
		gap = movedGap
	}
	listed, err := e.n.cards.FindAgain(ctx, peer.Card.ID, gap, time.Now())
	if err != nil || listed.Card.Endpoint == peer.Card.Endpoint {
		return false
	}
	e.n.log.Info("the peer has moved", "peer", listed.Card.ID, "from", peer.Card.Endpoint, "to", listed.Card.Endpoint)
	*peer = listed
	return true
}

// replyDigest returns the digest that distinguishes the reply from another message with the same id.
func replyDigest(d bridge.Delivered) [32]byte {
	if d.Digest != ([32]byte{}) {
		return d.Digest
	}
	return signing.Digest(d.Reply.Tree.Without("signature"))
}

// deliveries numbers the outbox entries and passes the outcome of an attempt to the caller that waits for it.
type deliveries struct {
	log      *slog.Logger
	waiters  waiting.Results[owner.Sent]    // by entry id: the outcome of the next attempt
	released waiting.Results[queuedMessage] // by question: approved messages, for the callers that wait for them
	linked   atomic.Bool                    // the links to foreign networks run in this process
	skipped  atomic.Bool                    // another process delivers, see [Node.Deliver]
	last     atomic.Int64                   // the number in the last id of newID
}

// newID returns an id that sorts after all ids that it returned before, and after the id with the number last. last is
// the newest number in the conversation, which may come from another process. number is the number in the returned id.
func (d *deliveries) newID(now time.Time, last int64) (id string, number int64) {
	for {
		before := d.last.Load()
		number = max(before+1, last+1, now.UnixMicro())
		if d.last.CompareAndSwap(before, number) {
			return fmt.Sprintf("out_%014x", number), number
		}
	}
}

// onCommit wakes the callers that wait for the attempt of another process, whose changes have IfRev Any.
func (d *deliveries) onCommit(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != nsOutbox || c.Delete || c.IfRev != store.Any {
			continue
		}
		e, err := decodeEntry(c.Record)
		if err != nil {
			d.log.Error("outbox entry cannot be read; its message will not be delivered", entryLogKey, c.Record.Key, "err", err) // a bug: this node wrote the record
			continue
		}
		if e.State != owner.SendQueued || e.Err != nil && !e.InFlight {
			d.waiters.Give(e.ID, e.sent())
		}
	}
}

// Deliver delivers the outbox until ctx ends. It is for a command that opens the node for a moment and must not do the
// rest of [Node.Run]: answer messages, register cards or run hooks. Deliver takes no lease. If a process holds
// [Lease], or the leases cannot be read, Deliver returns without a delivery.
func (n *Node) Deliver(ctx context.Context) {
	held, err := n.store.Leases().List(ctx)
	if err != nil || slices.ContainsFunc(held, func(s store.LeaseState) bool { return s.Name == Lease }) {
		n.outbox.skipped.Store(true)
		return
	}
	n.work.Run(ctx, nsOutbox)
}

// AwaitAttempts waits until no entry is due or in flight, or until ctx ends. Call it while Deliver runs.
func (n *Node) AwaitAttempts(ctx context.Context) {
	const pollEvery = 20 * time.Millisecond
	for !n.outbox.skipped.Load() && n.work.IsBusy(nsOutbox, time.Now()) && waiting.Pause(ctx, pollEvery) {
	}
}
