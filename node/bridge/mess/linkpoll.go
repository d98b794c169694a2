package mess

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// knownThread is what we remember of a foreign thread.
type knownThread struct {
	Conv      string      `json:"conv"`
	Seen      int         `json:"seen"`             // number of messages that were received or skipped
	Updated   string      `json:"updated"`          // its update time in the list when we had received all of its messages
	Mine      bool        `json:"mine"`             // we opened it
	State     thread.Code `json:"state,omitempty"`  // the last state from the exchange
	Peer      string      `json:"peer,omitempty"`   // its requester, if we did not open it
	ClaimSent bool        `json:"held,omitempty"`   // our claim was sent
	Holder    string      `json:"holder,omitempty"` // the holder that the exchange showed after our claim, which is our name there
	Next      string      `json:"next,omitempty"`   // the thread with which the exchange replaced it, in the same conversation

	Intent wire.Intent `json:"intent,omitempty"` // the intent of a conversation in plain text, which has no thread in our exchange
}

func (l *link) threadKey(ref string) string {
	return "link/" + l.cfg.Name + "/thread/" + exchange.IDKey(l.cfg.Name, ref)
}
func (l *link) convKey(conv string) string { return "link/" + l.cfg.Name + "/conv/" + conv }

func (l *link) load(ctx context.Context, ref string) (k knownThread, found bool, err error) {
	_, found, err = store.ReadRecord(ctx, l.records, exchange.NSMeta, l.threadKey(ref), &k, time.Now())
	return k, found, err
}

// isRecorded reports whether a foreign thread belongs to a conversation.
func (l *link) isRecorded(ctx context.Context, ref string) (bool, error) {
	_, found, err := l.load(ctx, ref)
	return found, err
}

func (l *link) save(ctx context.Context, ref string, k knownThread) error {
	return l.records.Apply(ctx, l.change(ref, k), time.Now())
}

// update changes the record of a thread. It waits while the thread is checked.
func (l *link) update(ctx context.Context, ref string, change func(*knownThread)) error {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	return l.updateUnderLock(ctx, ref, change)
}

// updateUnderLock is update for a caller that holds l.createMu.
func (l *link) updateUnderLock(ctx context.Context, ref string, change func(*knownThread)) error {
	k, found, err := l.load(ctx, ref)
	if err != nil || !found {
		return err
	}
	change(&k)
	return l.save(ctx, ref, k)
}

// maxKnown bounds the foreign threads that are remembered, because the exchange decides how many threads it lists. The
// threads of a link are in sixteen parts, by the first hexadecimal digit of their hash, and the bound applies to each.
const maxKnown = 10_000

// change returns the changes that store what we remember of a thread.
func (l *link) change(ref string, k knownThread) []store.Change {
	key := l.threadKey(ref)
	part := key[:len(key)-31] // the key without the other 31 digits of the hash
	changes := []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: key, Body: thread.Encode(k), Terms: []string{part}}, IfRev: store.Any, Max: maxKnown}}
	if k.Next != "" { // the conversation now belongs to the thread k.Next
		return changes
	}
	return append(changes, store.Change{Record: store.Record{NS: exchange.NSMeta, Key: l.convKey(k.Conv), Body: []byte(ref)}, IfRev: store.Any})
}

// delayedCheck is a thread that is checked again later.
type delayedCheck struct {
	thread remoteThread
	at     time.Time
	pause  time.Duration
}

const (
	firstPause    = folder.PollEvery
	lastPause     = 10 * time.Minute
	maxFailed     = 20      // after so many failing threads in a poll, the rest waits for the next poll
	maxRemembered = 100_000 // threads that are remembered in memory
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
		if r.requester == "" || l.known[r.ref] == r.updated {
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

// followList checks the threads in a list that may have changed, and the postponed threads that are due.
func (l *link) followList(ctx context.Context, list []remoteThread, self string) error {
	if len(l.known) > maxRemembered {
		clear(l.known)
	}
	failed := 0
	overLimit := map[string]bool{} // peers that have reached a limit of ours
	for _, r := range l.addRetries(list) {
		if l.known[r.ref] == r.updated || r.requester != "" && overLimit[r.requester] {
			continue
		}
		p, isPostponed := l.postponed[r.ref]
		if isPostponed && p.thread == r && time.Now().Before(p.at) {
			continue
		}
		began := time.Now()
		looked, err := l.check(ctx, r, self)
		_, remoteFailed := errors.AsType[*client.SendError](err)
		switch e, refused := errors.AsType[*wire.Error](err); {
		case err == nil:
			// the update time of a server, unlike the stamp of a directory, may hide a change for a second
			if !looked || !dateForm.MatchString(r.updated) || l.isSettled(r, began) {
				l.known[r.ref] = r.updated
				delete(l.unsettled, r.ref)
			}
			delete(l.postponed, r.ref)
			continue
		case errors.Is(err, errOwnRequest):
			continue
		case ctx.Err() != nil, errors.Is(err, errUnreachable), errors.Is(err, store.ErrUnavailable):
			return err
		case !remoteFailed && refused && e.Retry:
			overLimit[r.requester] = true
		default:
			failed++
		}
		l.log.Info("a thread of a link could not be checked and is tried again later", "link", l.cfg.Name, "thread", r.ref, "error", err)
		if len(l.postponed) < maxRemembered {
			pause := min(max(2*p.pause, firstPause), lastPause)
			l.postponed[r.ref] = delayedCheck{thread: r, at: time.Now().Add(pause), pause: pause}
		}
		if failed == maxFailed {
			return nil
		}
	}
	return nil
}

// addRetries appends to a list the postponed threads that it lacks.
func (l *link) addRetries(list []remoteThread) []remoteThread {
	listed := make(map[string]bool, len(list))
	for _, r := range list {
		listed[r.ref] = true
	}
	for ref, p := range l.postponed {
		if !listed[ref] {
			list = append(list, p.thread)
		}
	}
	return list
}

// dateForm matches the beginning of an update time that is a date and time.
var dateForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT`)

// isSettled reports whether a check began more than a second after the first check with the same update time. Until
// then the thread is checked again: a server with times in whole seconds may add a message without a new update time.
func (l *link) isSettled(r remoteThread, began time.Time) bool {
	first, ok := l.unsettled[r.ref]
	if !ok || first.thread != r {
		if len(l.unsettled) > maxRemembered {
			clear(l.unsettled)
		}
		first = delayedCheck{thread: r, at: began}
		l.unsettled[r.ref] = first
	}
	return began.Sub(first.at) > 1100*time.Millisecond
}

// check receives what is new in a thread. looked is false if the update time in the list shows no change, so that the
// thread was not read.
func (l *link) check(ctx context.Context, r remoteThread, self string) (looked bool, err error) {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	k, found, err := l.load(ctx, r.ref)
	if err != nil {
		return false, err
	}
	if _, isUnsettled := l.unsettled[r.ref]; found && k.Updated == r.updated && !isUnsettled {
		return false, nil
	}
	if !found && self != "" && r.requester == self {
		return false, errOwnRequest
	}
	if !found && self == "" && time.Since(l.lostCreate) < lostCreateLife {
		return false, errOwnRequest // perhaps; the next attempt shows it
	}
	if !found {
		k = knownThread{Conv: l.convOf(r.ref)}
	}
	return true, l.follow(ctx, r, k, self)
}

// lostCreateLife is how long the link skips unknown threads after a creation of ours failed, while our name at the
// exchange is unknown: one of them may be ours. The outbox tries the creation again within that time.
const lostCreateLife = 5 * time.Minute

// convOf returns the conversation of a thread that somebody else opened at the exchange.
func (l *link) convOf(ref string) string { return "conv_" + exchange.IDKey(l.cfg.Name, ref) }
