package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Window is how far the timestamp of a message may lie in the past and in the future, ends included (AM-20).
type Window struct{ Past, Future time.Duration }

// The default window, and its maximum for every configuration (AM-20).
const (
	DefaultPast   = 15 * time.Minute
	DefaultFuture = 5 * time.Minute
	MaxWindow     = 24 * time.Hour
)

func (w Window) orDefault() Window {
	if w.Past <= 0 {
		w.Past = DefaultPast
	}
	if w.Future <= 0 {
		w.Future = DefaultFuture
	}
	return Window{min(w.Past, MaxWindow), min(w.Future, MaxWindow)}
}

// around returns the times between which an OpenPGP signature of a message with the timestamp t must have been made.
func (w Window) around(t time.Time) signing.Window {
	return signing.Window{From: t.Add(-w.Past), To: t.Add(w.Future)}
}

// Verifier makes the checks of a received message that need no state of the receiver except its known cards. Call its
// methods in the order of the table "Receiving" in docs/protocol.md: Read (lines 3 and 4), Authenticate (7 and 8),
// [Window.Check] (9).
type Verifier struct {
	Cards  *Cards
	Window Window // zero fields mean the defaults
}

// Checked is the sender of a message, and the contents that its signature covers.
type Checked struct {
	Peer
	signing.Verified
}

// Read parses a message from a body. The caller has checked the size and media type (line 1). The error is a
// *[wire.Error].
func (v *Verifier) Read(body []byte) (wire.Message, error) {
	tree, err := wire.ParseObject(body)
	if err != nil {
		return wire.Message{}, wire.ErrSyntax.Because(err)
	}
	m, err := wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return wire.Message{}, wire.ErrSchema.WithField(field)
	}
	return m, err
}

// Authenticate looks up the sender of a message from origin, and verifies the signature with the key on its card. After
// a bad signature, it fetches the card again, at most once a minute per sender, because the sender may have a new key
// (AM-11). The first message that verifies pins the key, except a doubtful key; see [Peer.IsDoubtful]. A message from a
// mailbox may have the signature of the key that the sender had when the mailbox received it, if the card's key chain
// leads from that key to the current one. The error is a *[wire.Error].
func (v *Verifier) Authenticate(ctx context.Context, m wire.Message, origin Origin, now time.Time) (Checked, error) {
	peer, err := v.Cards.Lookup(ctx, m.From, origin, now)
	if err != nil {
		return Checked{}, err
	}
	return v.check(ctx, m, peer, &origin, now)
}

// check is Authenticate for a sender with a known card. origin is nil for an answer to our message.
func (v *Verifier) check(ctx context.Context, m wire.Message, peer Peer, origin *Origin, now time.Time) (Checked, error) {
	bare, window := m.Tree.Without("signature"), v.Window.orDefault().around(m.Time)
	verify := func(key *signing.PublicKey) (signing.Verified, error) {
		release, err := v.Cards.pool.acquire(ctx, key)
		if err != nil {
			return signing.Verified{}, err
		}
		defer release()
		return key.VerifyValue(bare, m.Signature, window, now)
	}
	verified, err := verify(peer.Key)
	if err != nil && origin != nil && !origin.Mailed.IsZero() {
		for _, key := range signing.RetiredKeys(peer.Card, peer.Key, origin.Mailed, now) {
			if earlier, err := verify(key); err == nil {
				return Checked{peer, earlier}, nil // without a pin: the message proves nothing about the current key
			}
		}
	}
	if errors.Is(err, wire.ErrUnavailable) {
		return Checked{}, err // the signature was not checked
	} else if err != nil {
		fresh, changed, refreshErr := v.Cards.suspect(ctx, peer, origin, now)
		if errors.Is(refreshErr, wire.ErrUnavailable) {
			return Checked{}, refreshErr // our store or the caller failed, not the sender
		} else if refreshErr != nil {
			return Checked{}, wire.ErrSignature.Because(errors.Join(err, refreshErr))
		}
		if !changed {
			return Checked{}, v.explain(ctx, m, peer, origin, now).Because(err)
		}
		if verified, err = verify(fresh.Key); errors.Is(err, wire.ErrUnavailable) {
			return Checked{}, err
		} else if err != nil {
			return Checked{}, v.explain(ctx, m, fresh, origin, now).Because(err)
		}
		peer = fresh
	}
	if peer.Pinned.IsZero() && !peer.IsDoubtful() {
		if peer, err = v.Cards.pin(ctx, peer, byStranger, now); err != nil {
			return Checked{}, err
		}
	}
	return Checked{peer, verified}, nil
}

// The bounds of an explanation.
const (
	maxExplained       = 8 << 10 // bytes of the message
	explainTries       = 24      // byte strings
	explainOtherKeys   = 2       // keys on the card besides the signing key
	explanationsPerMin = 60
)

// explain returns the refusal of a bad signature. If the message is small and not an answer to ours, the refusal
// names the signer's mistake (AM-27). The number of explanations is limited per process, so that a flood of bad
// signatures costs little more than their verification.
func (v *Verifier) explain(ctx context.Context, m wire.Message, peer Peer, origin *Origin, now time.Time) *wire.Error {
	if origin == nil || len(m.Tree.JSON()) > maxExplained {
		return wire.ErrSignature
	}
	if _, ok := v.Cards.explanations.Take("", now); !ok {
		return wire.ErrSignature
	}
	release, err := v.Cards.pool.acquire(ctx, peer.Key)
	if err != nil {
		return wire.ErrSignature
	}
	defer release()
	keys := append([]*signing.PublicKey{peer.Key}, signing.OtherKeys(peer.Card, explainOtherKeys)...)
	window := v.Window.orDefault().around(m.Time)
	return wire.ErrSignature.At(signing.Explain(m.Tree, m.Signature, keys, window, now, explainTries).String())
}

// Check checks the timestamp t of a message that arrived at now (AM-20). The error is wire.ErrTimeWindow.
func (w Window) Check(t, now time.Time) error { return checkWindow(t, w.orDefault(), now) }

func checkWindow(t time.Time, w Window, now time.Time) error {
	if t.Before(now.Add(-w.Past)) || t.After(now.Add(w.Future)) {
		return wire.ErrTimeWindow.Because(fmt.Errorf("the timestamp is %s from now", t.Sub(now).Round(time.Second)))
	}
	return nil
}

// ErrReplyUnverified means that the answer is not a verified reply of the peer to our message (AM-18). Do not pass it
// on.
var ErrReplyUnverified = errors.New("the reply is not verified")

// VerifyReply verifies the answer to a message of ours: that it comes from the peer, is addressed to us, belongs to
// the same conversation, is not our own message sent back, is signed, and is timely (AM-18). Otherwise the error
// matches [ErrReplyUnverified]. If we could not check the reply, which may be good, the error is a *[SendError].
//
// The answer to a resend may be the stored answer to the first attempt (AM-48). So if the message has resend_of, the
// window reaches back to its maximum of 24 h.
func (v *Verifier) VerifyReply(ctx context.Context, sent, reply wire.Message, peer Peer, now time.Time) (signing.Verified, error) {
	unverified := func(err error) (signing.Verified, error) {
		return signing.Verified{}, fmt.Errorf("%w: %w", ErrReplyUnverified, err)
	}
	switch {
	case reply.From != sent.To || peer.Card.ID != sent.To:
		return unverified(errors.New("the reply is from another agent"))
	case reply.To != sent.From:
		return unverified(errors.New("the reply is addressed to another agent"))
	case reply.Conversation != sent.Conversation:
		return unverified(errors.New("the reply belongs to another conversation"))
	case reply.ID == sent.ID:
		return unverified(errors.New("the reply has the id of the message that was sent"))
	}
	window := v.Window.orDefault()
	if sent.Meta("resend_of") != "" {
		window.Past = MaxWindow
	}
	if err := checkWindow(reply.Time, window, now); err != nil {
		return unverified(err)
	}
	checked, err := v.check(ctx, reply, peer, nil, now)
	if errors.Is(err, wire.ErrUnavailable) {
		return signing.Verified{}, &SendError{Retry: true, Processed: true, Cause: err}
	} else if err != nil {
		return unverified(err)
	}
	return checked.Verified, nil
}
