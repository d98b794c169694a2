package directory

import (
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of mailboxes (AM-68).
const (
	maxMail      = 500      // messages in a mailbox
	maxMailBytes = 50 << 20 // and bytes
	mailShare    = 10       // one sender may use a tenth; all unknown senders share one tenth

	// maxAllMail and maxAllMailBytes bound all mailboxes together. Once half of either is used, only mailboxes below a
	// tenth of their own limit take more mail, so that a few large mailboxes cannot use up everything.
	maxAllMail      = 100_000
	maxAllMailBytes = 4 << 30

	mailSwept = time.Minute // between two removals of expired mail
)

// mailUsage counts the mail that waits in mailboxes. Its lock makes the limits hold when several senders write at once,
// and a flood that meets a limit causes no store access. It is safe for concurrent use.
type mailUsage struct {
	mu     sync.Mutex
	loaded bool
	swept  time.Time
	mails  map[string]mail
	all    usage
	boxes  map[wire.AgentID]usage
	shares map[senderInBox]usage
}

// usage is a number of messages and their bytes.
type usage struct{ n, size int }

func (u usage) with(m mail) usage      { return usage{u.n + 1, u.size + m.Size} }
func (u usage) without(m mail) usage   { return usage{u.n - 1, u.size - m.Size} }
func (u usage) exceeds(max usage) bool { return u.n > max.n || u.size > max.size }

// senderInBox identifies what one sender has in a mailbox.
type senderInBox struct{ box, from wire.AgentID }

// mailboxLimit returns what one mailbox may hold if all of them together hold all. The zero usage means that the relay
// is full.
func mailboxLimit(all usage) usage {
	switch {
	case all.exceeds(usage{maxAllMail - 1, maxAllMailBytes - wire.MaxMessage}):
		return usage{}
	case all.exceeds(usage{maxAllMail / 2, maxAllMailBytes / 2}):
		return usage{maxMail / 10, maxMailBytes / 10}
	}
	return usage{maxMail, maxMailBytes}
}

// admit counts a message that is about to be stored, or returns an error that names the limit it would exceed.
func (r *mailUsage) admit(key string, m mail, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	room, of := mailboxLimit(r.all), senderInBox{m.Box, m.From}
	switch {
	case room == usage{}:
		return wire.ErrUnavailable.At("the relay is full").After(time.Hour)
	case r.shares[of].with(m).exceeds(usage{room.n / mailShare, room.size / mailShare}):
		return wire.ErrRateLimited.At("too much mail of one sender waits").After(time.Hour)
	case r.boxes[m.Box].with(m).exceeds(room):
		return wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	}
	r.add(key, m)
	return nil
}

// add counts a message. The caller holds mu.
func (r *mailUsage) add(key string, m mail) {
	of := senderInBox{m.Box, m.From}
	r.mails[key] = m
	r.all, r.boxes[m.Box], r.shares[of] = r.all.with(m), r.boxes[m.Box].with(m), r.shares[of].with(m)
}

// remove stops counting a message that was deleted or could not be stored.
func (r *mailUsage) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(key)
}

// drop is remove for a caller that holds mu.
func (r *mailUsage) drop(key string) {
	m, ok := r.mails[key]
	if !ok {
		return
	}
	delete(r.mails, key)
	r.all = r.all.without(m)
	of := senderInBox{m.Box, m.From}
	if r.boxes[m.Box] = r.boxes[m.Box].without(m); r.boxes[m.Box].n == 0 {
		delete(r.boxes, m.Box)
	}
	if r.shares[of] = r.shares[of].without(m); r.shares[of].n == 0 {
		delete(r.shares, of)
	}
}

// sweep removes expired mail from the counts. The caller holds mu.
func (r *mailUsage) sweep(now time.Time) {
	if now.Sub(r.swept).Abs() < mailSwept {
		return
	}
	r.swept = now
	for key, m := range r.mails {
		if !now.Before(m.Created.Add(mailLife)) {
			r.drop(key)
		}
	}
}

// total returns the usage of all mailboxes. If full is true, not even an empty mailbox takes a message.
func (r *mailUsage) total(now time.Time) (all usage, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	return r.all, mailboxLimit(r.all) == usage{}
}

// loadMailUsage returns the counts of stored mail. The first call reads them from the store.
func (r *Registry) loadMailUsage(ctx context.Context, now time.Time) (*mailUsage, error) {
	room := &r.mailUsage
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.loaded {
		return room, nil
	}
	room.mails, room.boxes, room.shares = make(map[string]mail), make(map[wire.AgentID]usage), make(map[senderInBox]usage)
	room.all, room.swept = usage{}, now
	for after, more := "", true; more; {
		list, err := r.listMail(ctx, "", after, maxMail, now)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			room.add(m.key, m.mail)
			after = m.key
		}
		more = len(list) == maxMail
	}
	room.loaded = true
	return room, nil
}
