package directory

import (
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// What mailboxes may hold (AM-68).
const (
	maxMail      = 500      // messages in a mailbox
	maxMailBytes = 50 << 20 // and bytes
	mailShare    = 10       // one sender has a tenth; those that nobody knows share one

	// All mailboxes together. The second half is for mailboxes that hold less than a tenth of what they may, so that few
	// large ones do not use up everything.
	maxAllMail      = 100_000
	maxAllMailBytes = 4 << 30

	roomSwept = time.Minute // between two looks for mail that expired
)

// mailroom counts what waits in mailboxes, so that bounds hold whoever writes at once, and so that a flood that meets one
// costs no look at the store. It is safe for concurrent use.
type mailroom struct {
	mu     sync.Mutex
	loaded bool
	swept  time.Time
	mails  map[string]mail
	all    load
	boxes  map[wire.AgentID]load
	shares map[share]load
}

type load struct{ n, size int }

func (l load) with(m mail) load    { return load{l.n + 1, l.size + m.Size} }
func (l load) without(m mail) load { return load{l.n - 1, l.size - m.Size} }
func (l load) over(max load) bool  { return l.n > max.n || l.size > max.size }

// share is what one sender has in a mailbox.
type share struct{ box, from wire.AgentID }

// roomFor is what one mailbox may hold where all of them hold that much.
func roomFor(all load) load {
	switch {
	case all.over(load{maxAllMail - 1, maxAllMailBytes - wire.MaxMessage}):
		return load{}
	case all.over(load{maxAllMail / 2, maxAllMailBytes / 2}):
		return load{maxMail / 10, maxMailBytes / 10}
	}
	return load{maxMail, maxMailBytes}
}

// admit counts a message that is about to be stored, or says which bound it meets.
func (r *mailroom) admit(key string, m mail, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	room, of := roomFor(r.all), share{m.Box, m.From}
	switch {
	case room == load{}:
		return wire.ErrUnavailable.At("the relay is full").After(time.Hour)
	case r.shares[of].with(m).over(load{room.n / mailShare, room.size / mailShare}):
		return wire.ErrRateLimited.At("too much mail of one sender waits").After(time.Hour)
	case r.boxes[m.Box].with(m).over(room):
		return wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	}
	r.add(key, m)
	return nil
}

// add needs mu.
func (r *mailroom) add(key string, m mail) {
	of := share{m.Box, m.From}
	r.mails[key] = m
	r.all, r.boxes[m.Box], r.shares[of] = r.all.with(m), r.boxes[m.Box].with(m), r.shares[of].with(m)
}

// remove forgets a message that went, or was not stored.
func (r *mailroom) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(key)
}

// drop needs mu.
func (r *mailroom) drop(key string) {
	m, ok := r.mails[key]
	if !ok {
		return
	}
	delete(r.mails, key)
	r.all = r.all.without(m)
	of := share{m.Box, m.From}
	if r.boxes[m.Box] = r.boxes[m.Box].without(m); r.boxes[m.Box].n == 0 {
		delete(r.boxes, m.Box)
	}
	if r.shares[of] = r.shares[of].without(m); r.shares[of].n == 0 {
		delete(r.shares, of)
	}
}

// sweep needs mu. It forgets mail that has expired.
func (r *mailroom) sweep(now time.Time) {
	if now.Sub(r.swept).Abs() < roomSwept {
		return
	}
	r.swept = now
	for key, m := range r.mails {
		if !now.Before(m.Created.Add(mailLife)) {
			r.drop(key)
		}
	}
}

// waiting is what waits in all mailboxes; full says that not even an empty one takes a message.
func (r *mailroom) waiting(now time.Time) (all load, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	return r.all, roomFor(r.all) == load{}
}

// room returns the mailroom, which counts what the store has when it is asked for the first time.
func (r *Registry) room(ctx context.Context, now time.Time) (*mailroom, error) {
	room := &r.mailroom
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.loaded {
		return room, nil
	}
	room.mails, room.boxes, room.shares = make(map[string]mail), make(map[wire.AgentID]load), make(map[share]load)
	room.all, room.swept = load{}, now
	for after, more := "", true; more; {
		list, err := r.mailOf(ctx, "", after, maxMail, now)
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
