package mailbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	MailNS     = "relay"      // sender, recipient, time and size of each message
	mailTextNS = "relay-text" // the message itself
	mailSeenNS = "relay-seen" // digests of recent messages, each with its relay id

	mailSeenLife = client.DefaultPast + client.DefaultFuture // as long as the same bytes are accepted (AM-20)

	relayPrefix  = "relay_"
	relayMACSize = 10 // bytes

	mailKeyLen = keyDigits + keyRandom
)

var relayBase32 = base32.StdEncoding.WithPadding(base32.NoPadding)

// relayID returns the id under which the owner of a mailbox knows a message. owner is the hash of the owner's
// credential. The id contains a MAC over owner and key. So the relay recognizes an id that it gave to this owner even
// when the message is gone, and a second acknowledgement succeeds.
func (r *Relay) relayID(ctx context.Context, owner [32]byte, key string) (string, error) {
	secret, err := r.cfg.Secret.Get(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, secret)
	cursor.HashFields(mac, "agentmesh-relay-v1", string(owner[:]), key)
	return relayPrefix + key + strings.ToLower(relayBase32.EncodeToString(mac.Sum(nil)[:relayMACSize])), nil
}

// openRelayID returns the key of the message with this relay id, or [wire.ErrRoute] if owner did not get the id here.
func (r *Relay) openRelayID(ctx context.Context, owner [32]byte, id string) (string, error) {
	key, ok := strings.CutPrefix(id, relayPrefix)
	if !ok || len(key) < mailKeyLen {
		return "", wire.ErrRoute
	}
	key = key[:mailKeyLen]
	want, err := r.relayID(ctx, owner, key)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(id)) != 1 {
		return "", wire.ErrRoute
	}
	return key, nil
}

func ownerTerm(owner [32]byte) string { return "owner:" + hex.EncodeToString(owner[:]) }
func boxTerm(id wire.AgentID) string  { return "box:" + string(id) }

// CardTerm returns the term (index key) of the cards that have this credential and whose endpoint is their mailbox
// here.
func CardTerm(owner [32]byte) string { return "mailbox:" + hex.EncodeToString(owner[:16]) }

// digest identifies what the sender wrote, so that a repeated message is stored once. One signature can be written in
// several ways (AM-17), so digest leaves out the signature of a verified message. It keeps an unverified signature:
// otherwise a copy with a broken signature would keep the real message out.
func (p posting) digest() string {
	tree := p.tree
	if p.isVerified() {
		tree = tree.Without("signature")
	}
	sum := signing.Digest(tree)
	return hex.EncodeToString(sum[:])
}

// storeMail stores a message in its mailbox, within the bounds of AM-68, and returns its relay id. A repeated message
// gets the id that it got before. The message is durable when storeMail returns. It is stored even if the sender
// disconnects meanwhile. Copies that arrive at the same moment share one outcome.
func (r *Relay) storeMail(ctx context.Context, p posting, now time.Time) (relayID string, err error) {
	ctx, digest := context.WithoutCancel(ctx), p.digest()
	id, err, _ := r.storing.Do(digest, func() (any, error) {
		id, err := r.findDuplicate(ctx, digest, now)
		if id != "" || err != nil {
			return id, err
		}
		m := Mail{Box: p.msg.To, From: p.sender, Conv: p.msg.Conversation, Size: len(p.raw), Created: now}
		id, err = r.queue(ctx, m, p.recipient.Owner, p.raw, func(id string) []store.Change {
			return []store.Change{{Record: store.Record{NS: mailSeenNS, Key: digest, Body: []byte(id), Expires: now.Add(mailSeenLife)}}}
		})
		if errors.Is(err, store.ErrConflict) { // another instance was faster
			return r.findDuplicate(ctx, digest, now)
		}
		return id, err
	})
	r.countOutcome(err)
	if err != nil {
		return "", err
	}
	return id.(string), nil
}

// Queue stores mail in the mailbox of m.Box, in one transaction with changes, within the bounds of AM-68, and returns
// its relay id. It ignores m.Created and uses the current time. The mail is durable when Queue returns, and is stored
// even if ctx ends.
func (r *Relay) Queue(ctx context.Context, m Mail, raw []byte, changes []store.Change) (relayID string, err error) {
	_, held, err := r.Agent(ctx, m.Box)
	if err != nil {
		return "", err
	}
	m.Created = wire.Now()
	relayID, err = r.queue(context.WithoutCancel(ctx), m, held.Owner, raw, func(string) []store.Change { return changes })
	r.countOutcome(err)
	return relayID, err
}

func (r *Relay) countOutcome(err error) {
	if err != nil {
		r.turnedAway.Inc()
	} else {
		r.stored.Inc()
	}
}

// queue stores mail in one transaction with changes that depend on the mail's relay id, and wakes the agent. If one
// of the changes has a conflict, it fails with store.ErrConflict.
func (r *Relay) queue(ctx context.Context, m Mail, owner [32]byte, raw []byte, changes func(relayID string) []store.Change) (relayID string, err error) {
	now := m.Created
	counts, err := r.Counts(ctx)
	if err != nil {
		return "", err
	}
	key, expires := counts.NewKey(now), now.Add(Life)
	id, err := r.relayID(ctx, owner, key)
	if err != nil {
		return "", err
	}
	if err := counts.Admit(key, m, now); err != nil {
		return "", err
	}
	err = r.records.Apply(ctx, append(changes(id),
		// Max bounds the messages in the box.
		store.Change{Record: store.Record{NS: MailNS, Key: key, Body: wire.MustMarshal(m), Terms: []string{boxTerm(m.Box), ownerTerm(owner)}, Expires: expires}, Max: MaxMail},
		store.Change{Record: store.Record{NS: mailTextNS, Key: key, Body: raw, Expires: expires}},
	), now)
	if err != nil {
		counts.Remove(key)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		return "", wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	case err != nil:
		return "", fmt.Errorf("store mail: %w", err)
	}
	r.connections.Notify(owner)
	if r.onMail != nil {
		r.onMail(m.Box)
	}
	return id, nil
}

// findDuplicate returns the relay id of the stored message with this digest, or "".
func (r *Relay) findDuplicate(ctx context.Context, digest string, now time.Time) (relayID string, err error) {
	rec, err := r.records.Get(ctx, mailSeenNS, digest, now)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for an earlier copy of the mail: %w", err)
	}
	return string(rec.Body), nil
}

// ApplyChange updates this process after another one has changed a record in the namespace [MailNS] or [OffersNS].
func (r *Relay) ApplyChange(ctx context.Context, ns, key string) error {
	if ns == OffersNS {
		r.offers.Wake(key)
		return nil
	}
	now := wire.Now()
	counts, err := r.Counts(ctx)
	if err != nil {
		return err
	}
	rec, err := r.records.Get(ctx, MailNS, key, now)
	if errors.Is(err, store.ErrNotFound) {
		counts.Remove(key)
		return nil
	}
	if err != nil {
		return err
	}
	m, err := store.Decode[Mail](rec)
	if err != nil {
		return err
	}
	counts.Learn(key, m)
	for _, term := range rec.Terms {
		if owner, ok := strings.CutPrefix(term, "owner:"); ok {
			if hash, err := hex.DecodeString(owner); err == nil && len(hash) == 32 {
				r.connections.Notify([32]byte(hash))
			}
		}
	}
	if r.onMail != nil {
		r.onMail(m.Box)
	}
	return nil
}

// Invalidate makes the relay read again what other processes stored. Call it when the store may not have reported
// some of their changes.
func (r *Relay) Invalidate() {
	r.counts.Invalidate()
	r.connections.NotifyAll()
	r.offers.WakeAll()
}

// EmptyMailbox deletes all mail of an agent.
func (r *Relay) EmptyMailbox(ctx context.Context, id wire.AgentID) error {
	now := wire.Now()
	for {
		var keys []string
		for rec, err := range store.AllRecords(ctx, r.records, MailNS, boxTerm(id), now) {
			if err != nil {
				return fmt.Errorf("list mail: %w", err)
			}
			if keys = append(keys, rec.Key); len(keys) == MaxPage {
				break
			}
		}
		if len(keys) == 0 {
			return nil
		}
		if err := r.deleteMail(ctx, now, keys...); err != nil {
			return fmt.Errorf("empty the mailbox of %s: %w", id, err)
		}
	}
}

// deleteMail deletes messages. It is not an error if a message is gone already.
func (r *Relay) deleteMail(ctx context.Context, now time.Time, keys ...string) error {
	counts, err := r.Counts(ctx)
	if err != nil {
		return err
	}
	var changes []store.Change
	for _, key := range keys {
		for _, ns := range []string{MailNS, mailTextNS} {
			changes = append(changes, store.Change{Record: store.Record{NS: ns, Key: key}, IfRev: store.Any, Delete: true})
		}
	}
	if err := r.records.Apply(ctx, changes, now); err != nil {
		return err
	}
	for _, key := range keys {
		counts.Remove(key)
	}
	return nil
}

// Counts returns the counts of waiting mail. The first call builds them from the mail in the store.
func (r *Relay) Counts(ctx context.Context) (*Counts, error) {
	now := wire.Now()
	return &r.counts, r.counts.Load(now, func(add func(string, Mail)) error {
		for rec, err := range store.AllRecords(ctx, r.records, MailNS, "", now) {
			var m Mail
			if err == nil {
				m, err = store.Decode[Mail](rec)
			}
			if err != nil {
				return fmt.Errorf("count mail: %w", err)
			}
			add(rec.Key, m)
		}
		return nil
	})
}
