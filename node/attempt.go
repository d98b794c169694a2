package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// attemptTime bounds one attempt, whatever a transport does. A peer's answer takes at most 30 s (AM-45).
const attemptTime = 45 * time.Second

// attempt makes one attempt to deliver the letter with this id; first reports that none has begun. It returns when the next one is due, zero where the letter is done.
// Where the process ends meanwhile, the letter stays in flight and is taken up at the next start.
func (n *Node) attempt(ctx context.Context, id string, first bool) (due time.Time) {
	l, err := n.letter(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return time.Time{}
	case err == nil && l.State != SendQueued: // it ended with one before it
		n.outbox.tell(l.ID, l.sent())
		return time.Time{}
	case err != nil:
		n.log.Warn("read letter", "letter", id, "err", err)
		return time.Now().Add(sendPauses[0])
	}
	if !first || time.Since(l.Signed) >= sameBytes {
		l.Processed = l.Processed || l.InFlight && !first // nobody saw how that attempt ended
		if l, err = n.prepare(ctx, l); err != nil {
			return n.undelivered(ctx, l, err)
		}
	}
	m, err := n.current(&l)
	if err != nil {
		return n.undelivered(ctx, l, err)
	}
	transport, err := n.transport(l)
	if err != nil {
		return n.undelivered(ctx, l, err)
	}
	deliver, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	got, err := transport.Deliver(deliver, bridge.Delivery{
		ID: l.ID, To: l.To, Address: l.Address, Message: m, Raw: l.Raw, Attempt: l.Attempts + 1,
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return time.Now() // stopping: the outcome is for the next start
	case errors.Is(err, client.ErrReplyUnverified):
		return n.unverified(ctx, l, err)
	case err != nil && l.Action == wire.ActionClose && isClosed(err):
		return n.delivered(ctx, l, bridge.Delivered{}) // AM-38: it was closed already
	case err != nil:
		return n.undelivered(ctx, l, err)
	}
	return n.delivered(ctx, l, got)
}

func isClosed(err error) bool {
	e, ok := errors.AsType[*client.SendError](err)
	return ok && e.Refusal != nil && e.Refusal.Code == wire.ConversationClosed
}

// laterError is a failure from before anything was sent, which may be over the next time.
type laterError struct{ error }

func (e laterError) Unwrap() error { return e.error }

// errUnknownDelivery ends a letter that cannot be sent again without the risk of doing it twice (AM-48).
var errUnknownDelivery = errors.New("it may have been delivered, and its signature is too old to send it again")

// prepare makes a letter ready for another attempt, durably: it is in flight, and signed anew where its signature is
// too old. That is allowed where no attempt can have been processed, or where the peer knows resends (AM-48).
func (n *Node) prepare(ctx context.Context, l Letter) (Letter, error) {
	now := time.Now()
	if l.Address == "" && now.Sub(l.Signed) >= sameBytes {
		if l.Processed {
			knows, err := false, error(nil)
			if !l.Doubtful {
				knows, err = n.knowsResends(ctx, l.To)
			}
			switch {
			case err != nil:
				return l, laterError{err}
			case !knows && !n.clock.Reliable(): // the signature may be young enough when the clock is right again
				return l, laterError{errUnknownDelivery}
			case !knows:
				return l, errUnknownDelivery
			}
		}
		if err := n.signAnew(&l, now); err != nil {
			return l, err
		}
	}
	l.InFlight = true
	if err := n.store.Records().Apply(ctx, []store.Change{l.change()}, now); err != nil {
		return l, laterError{fmt.Errorf("store letter: %w", err)}
	}
	stored, err := n.letter(ctx, l.ID)
	if err != nil {
		return l, laterError{fmt.Errorf("read letter: %w", err)}
	}
	return stored, nil
}

// signAnew gives the letter a new id, time and signature; resend_of names the first id.
func (n *Node) signAnew(l *Letter, now time.Time) error {
	m, err := l.message()
	if err != nil {
		return err
	}
	s, err := n.sign(wire.Draft{
		Conversation: l.Conversation, To: l.To, Time: now, Intent: l.Intent,
		Payload: withMeta(m.Payload, "resend_of", string(l.First)),
	})
	if err != nil {
		return err
	}
	l.MessageID, l.Signed, l.Raw, l.Signer = s.Message.ID, now, s.Raw, n.fingerprint()
	return nil
}

// current returns what goes out now. After a rotation the same message gets a signature of the new key, because the
// peer may know only that one; what tells a repetition covers no signature (AM-17).
func (n *Node) current(l *Letter) (wire.Message, error) {
	m, err := l.message()
	if err != nil || l.Signer == n.fingerprint() {
		return m, err
	}
	tree, err := n.registrar.Identity().Key.SignValue(m.Tree.Without("signature"))
	if err != nil {
		return m, fmt.Errorf("sign message: %w", err)
	}
	l.Raw, l.Signer = tree.JSON(), n.fingerprint()
	return wire.ParseMessage(tree)
}

func (n *Node) fingerprint() string { return n.registrar.Identity().Key.Public().Fingerprint() }

// knowsResends asks whether the peer's endpoint is one of ours, by the document that says so (AM-81).
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, err
	}
	resp, err := n.cfg.HTTP.Do(ctx, peer.Reach, req)
	if err != nil {
		return false, err
	}
	const maxDocument = 64 << 10
	body, err := client.ReadAll(resp, maxDocument)
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

// transport returns what delivers to the letter's address.
func (n *Node) transport(l Letter) (bridge.Transport, error) {
	if l.Address == "" {
		return endpoint{n}, nil
	}
	to, err := bridge.ParseAddress(l.Address)
	if err != nil {
		return nil, err
	}
	if a, ok := n.bridges.of(to.Kind); ok {
		if a.Screens || n.cfg.PersonalData == nil {
			return a.service, nil
		}
		return screened{a.service, n}, nil
	}
	return nil, laterError{fmt.Errorf("no bridge delivers to %s addresses", to.Kind)}
}

// endpoint is the transport to agents of this protocol: HTTP to what their card names (AM-45).
type endpoint struct{ n *Node }

var _ bridge.Transport = endpoint{}

// Deliver posts the message and verifies the answer. An answer that is no reply of the peer's is
// client.ErrReplyUnverified.
func (e endpoint) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	peer, err := e.n.cards.Find(ctx, d.To, time.Now())
	switch {
	case errors.Is(err, client.ErrUnknownAgent), errors.Is(err, client.ErrUnusableCard):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, laterError{err} // also a changed key: the owner may accept it
	}
	if out, carried, err := e.n.carry(ctx, d, peer); carried {
		return out, err
	}
	answer, err := e.n.cfg.HTTP.Send(ctx, peer, d.Raw)
	if err != nil && e.n.moved(ctx, &peer, err) {
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
	reply, err := answer.Message()
	if err != nil {
		return bridge.Delivered{}, err
	}
	checked, err := e.n.verifier.Reply(ctx, d.Message, reply, peer, time.Now())
	if err != nil {
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Reply: &reply, Raw: answer.Body, Digest: checked.Digest}, nil
}

// movedGap is how often the card of a peer that cannot be reached is fetched past the cache at most: less than the pause
// before the second attempt, so that a burst of messages asks once and the second attempt asks again.
const movedGap = 3 * time.Second

// moved fetches the card of a peer again after a delivery that cannot have reached it, and reports whether the card now
// names another endpoint (AM-86). Then it replaces peer. A final failure asks the directory in any case, an endpoint that
// does not answer at most once within movedGap. A key that the pinned one does not vouch for is not followed.
func (n *Node) moved(ctx context.Context, peer *client.Peer, cause error) bool {
	failed, ok := errors.AsType[*client.SendError](cause)
	if !ok || failed.Processed || failed.Retry && failed.Status != 0 {
		return false
	}
	gap := time.Duration(0)
	if failed.Retry {
		gap = movedGap
	}
	listed, err := n.cards.Again(ctx, peer.Card.ID, gap, time.Now())
	if err != nil || listed.Card.Endpoint == peer.Card.Endpoint {
		return false
	}
	n.log.Info("the peer has moved", "peer", listed.Card.ID, "from", peer.Card.Endpoint, "to", listed.Card.Endpoint)
	*peer = listed
	return true
}

// replyDigest is what tells the reply from another message under its id.
func replyDigest(d bridge.Delivered) [32]byte {
	if d.Digest != ([32]byte{}) {
		return d.Digest
	}
	return signing.Digest(d.Reply.Tree.Without("signature"))
}
