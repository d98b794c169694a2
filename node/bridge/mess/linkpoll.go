package mess

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// shared is what we remember of a foreign thread, in one record for each conversation.
type shared = exchange.Shared

// threadTerm is the index term of the record that has the foreign thread ref.
func (l *link) threadTerm(ref string) string {
	return "there/" + wire.HashOf(l.cfg.Name, ref)
}

// load returns the record that has a foreign thread, or one that the exchange replaced.
func (l *link) load(ctx context.Context, ref string) (k shared, found bool, err error) {
	page, err := l.records.List(ctx, exchange.NSShared, l.threadTerm(ref), "", 1, time.Now())
	if err != nil || len(page.Records) == 0 {
		return k, false, err
	}
	k, err = store.Decode[shared](page.Records[0])
	k.Key = page.Records[0].Key
	return k, err == nil, err
}

func (l *link) save(ctx context.Context, k shared) error {
	return l.records.Apply(ctx, []store.Change{l.change(k)}, time.Now())
}

// update changes the record of a thread. It waits while the thread is checked.
func (l *link) update(ctx context.Context, ref string, change func(*shared)) error {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	return l.updateUnderLock(ctx, ref, change)
}

// updateUnderLock is update for a caller that holds l.createMu.
func (l *link) updateUnderLock(ctx context.Context, ref string, change func(*shared)) error {
	k, found, err := l.load(ctx, ref)
	if err != nil || !found {
		return err
	}
	change(&k)
	return l.save(ctx, k)
}

// maxKnown bounds the threads of others that are remembered, because the exchange decides how many threads it lists. The
// threads of a link are in sixteen parts, by the first hexadecimal digit of their hash, and the bound applies to each.
const maxKnown = 10_000

// maxBefore is the number of replaced threads by which a record is found: a record may have four terms.
const maxBefore = 3

// change returns the change that stores what we remember of a thread.
func (l *link) change(k shared) store.Change {
	c := store.Change{Record: store.Record{NS: exchange.NSShared, Key: k.Key, Body: wire.MustMarshal(k), Terms: []string{l.threadTerm(k.There)}}, IfRev: store.Any}
	if !k.Mine {
		part := "link/" + l.cfg.Name + "/" + wire.HashOf(l.cfg.Name, k.There)[:1]
		c.Record.Terms, c.Max = []string{part, c.Record.Terms[0]}, maxKnown
	}
	for _, ref := range k.Before {
		c.Record.Terms = append(c.Record.Terms, l.threadTerm(ref))
	}
	return c
}

// look is what a link remembers, in memory, of its last look at a thread.
type look struct {
	thread remoteThread  // as it was listed
	since  time.Time     // of the first look at the thread as it was listed
	done   bool          // nothing is left to do until the update time changes
	at     time.Time     // of the next look, after a look failed
	pause  time.Duration // before that look; 0 if the last look did not fail
}

const (
	firstPause    = folder.PollEvery
	lastPause     = 10 * time.Minute
	maxFailed     = 20      // after so many failing threads in a poll, the rest waits for the next poll
	maxRemembered = 100_000 // looks that are remembered
)

// errUnreachable ends a poll, because the exchange failed and not only one thread.
var errUnreachable = errors.New("the exchange does not answer")

// errOwnRequest is the error for a request at the exchange that we made ourselves, but not through this link. Our
// exchange does not offer it. If a late answer or a delegation shows that the request belongs to a thread of ours, the
// link follows it.
var errOwnRequest = errors.New("the request is our own")

// poll receives everything new at the exchange. If a thread cannot be read or received now, poll tries it again later
// and continues with the other threads, so that the author of one thread cannot hold up the link.
func (l *link) poll(ctx context.Context) error {
	l.mu.Lock()
	for _, ref := range l.opened {
		delete(l.looks, ref)
	}
	l.opened = nil
	l.mu.Unlock()
	list, err := l.remote.list(ctx)
	if err != nil {
		return err
	}
	self, err := l.findSelf(ctx, list)
	if err != nil {
		return err
	}
	return l.followList(ctx, list, self)
}

// findSelf returns our name at the exchange. If it is not known yet, findSelf reads it from a listed thread that we
// opened, and stores it; without such a thread it returns "". It waits until a thread that we are opening is recorded,
// because the list may contain that thread and a successor of the thread. Only our name shows that the successor is
// ours.
func (l *link) findSelf(ctx context.Context, list []remoteThread) (string, error) {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	if self := l.remote.self(ctx); self != "" {
		return self, nil
	}
	for _, r := range list {
		if p := l.looks[r.ref]; r.requester == "" || p.done && p.thread.updated == r.updated {
			continue
		}
		k, _, err := l.load(ctx, r.ref)
		if err != nil {
			return "", err
		}
		if k.Mine {
			return r.requester, l.remote.setSelf(ctx, r.requester)
		}
	}
	return "", nil
}

// followList looks at the threads in a list that may have changed, and at those whose last look failed.
func (l *link) followList(ctx context.Context, list []remoteThread, self string) error {
	if len(l.looks) > maxRemembered {
		clear(l.looks)
	}
	failed := 0
	overLimit := map[string]bool{} // peers that have reached a limit of ours
	for _, r := range l.addRetries(list) {
		p := l.looks[r.ref]
		if p.done && p.thread.updated == r.updated || p.thread == r && time.Now().Before(p.at) || r.requester != "" && overLimit[r.requester] {
			continue
		}
		if p.thread != r || p.since.IsZero() {
			p.since = time.Now()
		}
		// A server with times in whole seconds may add a message without a new update time, unlike a directory, whose stamp
		// is no time: look again until a look begins more than a second after the first.
		isSettled := !dateForm.MatchString(r.updated) || time.Since(p.since) > 1100*time.Millisecond
		looked, err := l.check(ctx, r, self, isSettled)
		_, remoteFailed := errors.AsType[*client.SendError](err)
		switch e, refused := errors.AsType[*wire.Error](err); {
		case err == nil:
			l.looks[r.ref] = look{thread: r, since: p.since, done: !looked || isSettled}
			continue
		case errors.Is(err, errOwnRequest):
			if r.requester == "" { // do not read it again before it changes, or is recorded
				l.looks[r.ref] = look{thread: r, done: true}
			}
			continue
		case ctx.Err() != nil, errors.Is(err, errUnreachable), errors.Is(err, store.ErrUnavailable):
			return err
		case !remoteFailed && refused && e.Retry:
			overLimit[r.requester] = true
		default:
			failed++
		}
		l.log.Info("a thread of a link could not be checked and is tried again later", "link", l.cfg.Name, "thread", r.ref, "error", err)
		pause := min(max(2*p.pause, firstPause), lastPause)
		l.looks[r.ref] = look{thread: r, at: time.Now().Add(pause), pause: pause}
		if failed == maxFailed {
			return nil
		}
	}
	return nil
}

// addRetries appends to a list the threads that it lacks and whose last look failed.
func (l *link) addRetries(list []remoteThread) []remoteThread {
	listed := make(map[string]bool, len(list))
	for _, r := range list {
		listed[r.ref] = true
	}
	for ref, p := range l.looks {
		if p.pause > 0 && !listed[ref] {
			list = append(list, p.thread)
		}
	}
	return list
}

// dateForm matches the beginning of an update time that is a date and time.
var dateForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT`)

// check receives what is new in a thread. looked is false if the update time in the list shows no change, so that the
// thread was not read. Unless isSettled is set, the next check reads the thread again, also after a restart.
func (l *link) check(ctx context.Context, r remoteThread, self string, isSettled bool) (looked bool, err error) {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	k, found, err := l.load(ctx, r.ref)
	if err != nil {
		return false, err
	}
	if found && (k.There != r.ref || k.Updated == r.updated) {
		return false, nil
	}
	if !found && self != "" && r.requester == self {
		return false, errOwnRequest
	}
	if !found && self == "" && time.Since(l.lostCreate) < lostCreateLife {
		return false, errOwnRequest // perhaps; the next attempt shows it
	}
	if !found {
		k = shared{Conv: l.convOf(r.ref), There: r.ref}
	}
	received := "" // the update time when all messages were received
	if isSettled {
		received = r.updated
	}
	return true, l.follow(ctx, r, k, self, received)
}

// lostCreateLife is how long the link skips unknown threads after a creation of ours failed, while our name at the
// exchange is unknown: one of them may be ours. The outbox tries the creation again within that time.
const lostCreateLife = 5 * time.Minute

// convOf returns the conversation of a thread that somebody else opened at the exchange.
func (l *link) convOf(ref string) string { return "conv_" + wire.HashOf(l.cfg.Name, ref) }
