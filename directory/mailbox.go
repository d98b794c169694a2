package directory

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	mailNS     = "relay"      // what is known of a message: who, when, how large
	mailTextNS = "relay-text" // the message itself
	mailSeenNS = "relay-seen" // digests of what came lately, with the id that it got

	mailLife     = 7 * 24 * time.Hour                        // AM-68
	mailSeenLife = client.DefaultPast + client.DefaultFuture // as long as the same bytes may come again (AM-20)
	maxMailPage  = 100

	relayPrefix = "relay_"
	relayMAC    = 10 // bytes

	mailKeyLen = 16 + 10
)

// mail is what is kept beside a stored message.
type mail struct {
	Box     wire.AgentID        `json:"box"`
	From    wire.AgentID        `json:"from,omitempty"` // "" where the sender could not be looked up
	Conv    wire.ConversationID `json:"conversation"`
	Size    int                 `json:"size"`
	Created time.Time           `json:"created_at"`
}

// storedMail is a mail with its key.
type storedMail struct {
	mail
	key string
}

// mailKey orders mail by its receipt: what comes later sorts behind, within the same millisecond too, for one message of
// a conversation must not overtake another.
func (r *Registry) mailKey(now time.Time) string {
	for {
		last := r.lastMail.Load()
		next := max(last+1, now.UnixMicro())
		if r.lastMail.CompareAndSwap(last, next) {
			return fmt.Sprintf("%016x%s", next, strings.ToLower(rand.Text()[:10]))
		}
	}
}

var relayText = base32.StdEncoding.WithPadding(base32.NoPadding)

// relayID names a message to the owner of its mailbox. It says by itself whose it is, so that to acknowledge twice is no
// error although nothing of the message is kept.
func (r *Registry) relayID(ctx context.Context, owner [32]byte, key string, now time.Time) (string, error) {
	secret, err := r.cursors.get(ctx, r.recs, now)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, secret)
	field(mac, "agentmesh-relay-v1", string(owner[:]), key)
	return relayPrefix + key + strings.ToLower(relayText.EncodeToString(mac.Sum(nil)[:relayMAC])), nil
}

// openRelayID returns the key of a message that was given to owner under id, else [wire.ErrRoute].
func (r *Registry) openRelayID(ctx context.Context, owner [32]byte, id string, now time.Time) (string, error) {
	key, ok := strings.CutPrefix(id, relayPrefix)
	if !ok || len(key) < mailKeyLen {
		return "", wire.ErrRoute
	}
	key = key[:mailKeyLen]
	want, err := r.relayID(ctx, owner, key, now)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(id)) != 1 {
		return "", wire.ErrRoute
	}
	return key, nil
}

func ownerTerm(owner [32]byte) string   { return "owner:" + hex.EncodeToString(owner[:]) }
func boxTerm(id wire.AgentID) string    { return "box:" + string(id) }
func mailboxTerm(owner [32]byte) string { return mailboxFamily + hex.EncodeToString(owner[:16]) }

// digest names what a sender said. A signature can be written in many ways (AM-17), so it counts only where nobody
// has verified it: else a copy with a broken one would keep the message out.
func (p posted) digest() string {
	said := p.tree
	if p.known() {
		said = said.Without("signature")
	}
	sum := signing.Digest(said)
	return hex.EncodeToString(sum[:])
}

// keep stores a message in its mailbox, within the bounds of AM-68, and returns its relay id: the same one where it came
// before. It is durable when keep returns. A sender that hangs up is no reason not to: the agent may have the message
// already, and copies that come at the same moment share one outcome.
func (r *Registry) keep(ctx context.Context, p posted, now time.Time) (relayID string, err error) {
	ctx, seen := context.WithoutCancel(ctx), p.digest()
	id, err, _ := r.keeping.Do(seen, func() (any, error) {
		id, err := r.seenBefore(ctx, seen, now)
		if id != "" || err != nil {
			return id, err
		}
		return r.keepNew(ctx, p, seen, now)
	})
	if err != nil {
		return "", err
	}
	return id.(string), nil
}

func (r *Registry) keepNew(ctx context.Context, p posted, seen string, now time.Time) (relayID string, err error) {
	room, err := r.room(ctx, now)
	if err != nil {
		return "", err
	}
	m := mail{Box: p.msg.To, From: p.sender, Conv: p.msg.Conversation, Size: len(p.raw), Created: now}
	body, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write mail: %w", err)
	}
	key, expires := r.mailKey(now), now.Add(mailLife)
	id, err := r.relayID(ctx, p.box.Owner, key, now)
	if err != nil {
		return "", err
	}
	if err := room.admit(key, m, now); err != nil {
		return "", err
	}
	err = r.recs.Apply(ctx, []store.Change{
		{Record: store.Record{NS: mailSeenNS, Key: seen, Body: []byte(id), Expires: now.Add(mailSeenLife)}},
		{Record: store.Record{NS: mailNS, Key: key, Body: body, Terms: []string{boxTerm(m.Box), ownerTerm(p.box.Owner)}, Expires: expires}, Max: maxMail},
		{Record: store.Record{NS: mailTextNS, Key: key, Body: p.raw, Expires: expires}},
	}, now)
	if err != nil {
		room.remove(key)
	}
	switch {
	case errors.Is(err, store.ErrConflict): // another instance was faster
		return r.seenBefore(ctx, seen, now)
	case errors.Is(err, store.ErrQuota):
		return "", wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	case err != nil:
		return "", fmt.Errorf("keep mail: %w", err)
	}
	r.desks.ring(p.box.Owner)
	if r.onMail != nil {
		r.onMail(m.Box)
	}
	return id, nil
}

// seenBefore returns the relay id of a message that came before; "" where it did not.
func (r *Registry) seenBefore(ctx context.Context, digest string, now time.Time) (relayID string, err error) {
	rec, err := r.recs.Get(ctx, mailSeenNS, digest, now)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the same mail: %w", err)
	}
	return string(rec.Body), nil
}

// mailOf lists mail that carries term and waits, oldest first, after a key.
func (r *Registry) mailOf(ctx context.Context, term, after string, limit int, now time.Time) ([]storedMail, error) {
	var list []storedMail
	for len(list) < limit {
		page, err := r.recs.List(ctx, mailNS, term, after, limit-len(list), now)
		if err != nil {
			return nil, fmt.Errorf("list mail: %w", err)
		}
		for _, rec := range page.Records {
			m := storedMail{key: rec.Key}
			if err := json.Unmarshal(rec.Body, &m.mail); err != nil {
				return nil, fmt.Errorf("read mail %s: %w", rec.Key, err)
			}
			list = append(list, m)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	return list, nil
}

// emptyMailbox drops what waits in a mailbox.
func (r *Registry) emptyMailbox(ctx context.Context, id wire.AgentID) error {
	now := clock()
	for {
		list, err := r.mailOf(ctx, boxTerm(id), "", maxMailPage, now)
		if err != nil || len(list) == 0 {
			return err
		}
		keys := make([]string, len(list))
		for i, m := range list {
			keys[i] = m.key
		}
		if err := r.dropMail(ctx, now, keys...); err != nil {
			return fmt.Errorf("empty the mailbox of %s: %w", id, err)
		}
	}
}

// dropMail deletes messages; that one is gone already is no error.
func (r *Registry) dropMail(ctx context.Context, now time.Time, keys ...string) error {
	room, err := r.room(ctx, now)
	if err != nil {
		return err
	}
	var changes []store.Change
	for _, key := range keys {
		for _, ns := range []string{mailNS, mailTextNS} {
			changes = append(changes, store.Change{Record: store.Record{NS: ns, Key: key}, IfRev: store.Any, Delete: true})
		}
	}
	if err := r.recs.Apply(ctx, changes, now); err != nil {
		return err
	}
	for _, key := range keys {
		room.remove(key)
	}
	return nil
}

// Acknowledge takes a message out of its mailbox. To do so again is no error.
func (r *Registry) Acknowledge(ctx context.Context, bearer, relayID string) error {
	now := clock()
	key, err := r.openRelayID(ctx, credential.HashOf(bearer), relayID, now)
	if err != nil {
		return err // to others it is not there
	}
	if err := r.dropMail(ctx, now, key); err != nil {
		return fmt.Errorf("acknowledge mail: %w", err)
	}
	return nil
}
