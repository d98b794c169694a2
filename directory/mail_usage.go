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
	maxMailBytes = 50 << 20 // bytes of the messages in a mailbox
	mailShare    = 10       // one sender may use a tenth of a mailbox; all unknown senders together use another tenth

	// maxAllMail and maxAllMailBytes bound all mailboxes together. Once half of either is used, only mailboxes below a
	// tenth of their own limit take more mail, so that a few large mailboxes cannot use up everything.
	maxAllMail      = 100_000
	maxAllMailBytes = 4 << 30

	mailSweepEvery = time.Minute // between two removals of expired mail from the counts
)

// mailUsage counts in memory the mail that waits in mailboxes. A message is counted before it is stored and under a
// lock, so the limits hold even if several senders write at once. A flood beyond a limit causes no store access.
// mailUsage is safe for concurrent use.
type mailUsage struct {
	mu     sync.Mutex
	loaded bool            // the counts include the stored mail
	swept  time.Time       // when sweep last ran
	mails  map[string]mail // by the key of the message in the store
	all    usage           // of all mailboxes together
	boxes  map[wire.AgentID]usage
	shares map[senderInBox]usage
}

// usage is a number of messages and their size in bytes.
type usage struct{ n, size int }

func (u usage) with(m mail) usage      { return usage{u.n + 1, u.size + m.Size} }
func (u usage) without(m mail) usage   { return usage{u.n - 1, u.size - m.Size} }
func (u usage) exceeds(max usage) bool { return u.n > max.n || u.size > max.size }

// senderInBox is one sender's part of a mailbox. from is "" for all unknown senders.
type senderInBox struct{ box, from wire.AgentID }

// mailboxLimit returns how much one mailbox may hold; all is what all mailboxes together hold now. The zero usage means
// that the relay is full.
func mailboxLimit(all usage) usage {
	switch {
	case all.exceeds(usage{maxAllMail - 1, maxAllMailBytes - wire.MaxMessage}):
		return usage{}
	case all.exceeds(usage{maxAllMail / 2, maxAllMailBytes / 2}):
		return usage{maxMail / 10, maxMailBytes / 10}
	}
	return usage{maxMail, maxMailBytes}
}

// admit counts a message that is about to be stored, or returns an error that names the limit that the message would
// exceed.
func (u *mailUsage) admit(key string, m mail, now time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep(now)
	limit, part := mailboxLimit(u.all), senderInBox{m.Box, m.From}
	switch {
	case limit == usage{}:
		return wire.ErrUnavailable.At("the relay is full").After(time.Hour)
	case u.shares[part].with(m).exceeds(usage{limit.n / mailShare, limit.size / mailShare}):
		return wire.ErrRateLimited.At("too much mail of one sender waits").After(time.Hour)
	case u.boxes[m.Box].with(m).exceeds(limit):
		return wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	}
	u.add(key, m)
	return nil
}

// add counts a message. The caller holds mu.
func (u *mailUsage) add(key string, m mail) {
	part := senderInBox{m.Box, m.From}
	u.mails[key] = m
	u.all, u.boxes[m.Box], u.shares[part] = u.all.with(m), u.boxes[m.Box].with(m), u.shares[part].with(m)
}

// remove removes from the counts a message that was deleted or could not be stored. An unknown key is ignored.
func (u *mailUsage) remove(key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(key)
}

// drop does the work of remove. The caller holds mu.
func (u *mailUsage) drop(key string) {
	m, ok := u.mails[key]
	if !ok {
		return
	}
	delete(u.mails, key)
	u.all = u.all.without(m)
	part := senderInBox{m.Box, m.From}
	if u.boxes[m.Box] = u.boxes[m.Box].without(m); u.boxes[m.Box].n == 0 {
		delete(u.boxes, m.Box)
	}
	if u.shares[part] = u.shares[part].without(m); u.shares[part].n == 0 {
		delete(u.shares, part)
	}
}

// sweep removes expired mail from the counts, at most once per mailSweepEvery. The caller holds mu.
func (u *mailUsage) sweep(now time.Time) {
	if now.Sub(u.swept).Abs() < mailSweepEvery {
		return
	}
	u.swept = now
	for key, m := range u.mails {
		if !now.Before(m.Created.Add(mailLife)) {
			u.drop(key)
		}
	}
}

// total returns the usage of all mailboxes together, and whether the relay is so full that not even an empty mailbox
// takes a message.
func (u *mailUsage) total(now time.Time) (all usage, full bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep(now)
	return u.all, mailboxLimit(u.all) == usage{}
}

// loadMailUsage returns the counts of waiting mail. The first call builds them from the mail in the store; after an
// error the next call tries again.
func (r *Registry) loadMailUsage(ctx context.Context, now time.Time) (*mailUsage, error) {
	counts := &r.mailUsage
	counts.mu.Lock()
	defer counts.mu.Unlock()
	if counts.loaded {
		return counts, nil
	}
	counts.mails, counts.boxes, counts.shares = make(map[string]mail), make(map[wire.AgentID]usage), make(map[senderInBox]usage)
	counts.all, counts.swept = usage{}, now
	for after, more := "", true; more; {
		list, err := r.listMail(ctx, "", after, maxMail, now)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			counts.add(m.key, m.mail)
			after = m.key
		}
		more = len(list) == maxMail
	}
	counts.loaded = true
	return counts, nil
}
