package mess

import (
	"context"
	"encoding/json"
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
	Conv    string      `json:"conv"`
	Seen    int         `json:"seen"`             // messages that were taken in
	Updated string      `json:"updated"`          // how the list showed it when all of it was taken in
	Mine    bool        `json:"mine"`             // we opened it
	State   thread.Code `json:"state,omitempty"`  // that the exchange told last
	Peer    string      `json:"peer,omitempty"`   // who opened it, if we did not
	Held    bool        `json:"held,omitempty"`   // our claim was sent
	Holder  string      `json:"holder,omitempty"` // who held it after our claim: us
	Next    string      `json:"next,omitempty"`   // the thread that took its place there, in the same conversation

	Intent wire.Intent `json:"intent,omitempty"` // of what was said in plain words, and is no thread here
}

func (l *link) threadKey(ref string) string {
	return "link/" + l.cfg.Name + "/thread/" + exchange.IDKey(l.cfg.Name, ref)
}
func (l *link) convRecord(conv string) string { return "link/" + l.cfg.Name + "/conv/" + conv }

func (l *link) load(ctx context.Context, ref string) (k knownThread, found bool, err error) {
	rec, err := l.records.Get(ctx, exchange.NSMeta, l.threadKey(ref), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return k, false, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, &k)
	}
	return k, true, err
}

// save remembers a thread.
func (l *link) save(ctx context.Context, ref string, k knownThread) error {
	return l.records.Apply(ctx, l.change(ref, k), time.Now())
}

// update changes what is remembered of a thread, between two looks at it.
func (l *link) update(ctx context.Context, ref string, change func(*knownThread)) error {
	l.making.Lock()
	defer l.making.Unlock()
	return l.updateLocked(ctx, ref, change)
}

// updateLocked is update for a caller that holds l.making.
func (l *link) updateLocked(ctx context.Context, ref string, change func(*knownThread)) error {
	k, found, err := l.load(ctx, ref)
	if err != nil || !found {
		return err
	}
	change(&k)
	return l.save(ctx, ref, k)
}

// maxKnown bounds the foreign threads that are remembered: what the other side lists is the other side's choice. The bound
// is held for each of sixteen parts of a link's.
const maxKnown = 10_000

func (l *link) change(ref string, k knownThread) []store.Change {
	key := l.threadKey(ref)
	part := key[:len(key)-31] // with the first digit of what is behind the name
	changes := []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: key, Body: thread.Encode(k), Terms: []string{part}}, IfRev: store.Any, Max: maxKnown}}
	if k.Next != "" { // what is said in the conversation is said there
		return changes
	}
	return append(changes, store.Change{Record: store.Record{NS: exchange.NSMeta, Key: l.convRecord(k.Conv), Body: []byte(ref)}, IfRev: store.Any})
}

// postponed is a thread that is looked at again: after a while, which grows.
type postponed struct {
	thread remoteThread
	at     time.Time
	pause  time.Duration
}

const (
	firstPause = folder.PollEvery
	lastPause  = 10 * time.Minute
	maxFailed  = 20      // threads that fail in one poll, before the rest waits for the next
	maxNoted   = 100_000 // threads that are remembered in memory
)

// errAway ends a poll: not a thread failed, the other side did.
var errAway = errors.New("the exchange does not answer")

// errOwn is what we asked for there ourselves, and not through this link: nobody here is to hear of it. It may become
// known as ours, by an answer that comes late or as the successor of a thread, and is looked at then.
var errOwn = errors.New("the request is our own")

// poll takes in what was said since the last time. A thread that cannot be read, or of which something cannot be taken in
// now, waits by itself: whoever wrote it holds up nobody else behind the link.
func (l *link) poll(ctx context.Context) error {
	list, err := l.remote.changed(ctx)
	if err != nil {
		return err
	}
	self := l.remote.self(ctx)
	if self == "" {
		if self, err = l.learnSelf(ctx, list); err != nil {
			return err
		}
	}
	if err := l.takeList(ctx, list, self); err != nil {
		return err
	}
	return l.missing(ctx, list, self)
}

// learnSelf finds out who we are there by a thread that we opened, in a data directory in which that was not kept.
func (l *link) learnSelf(ctx context.Context, list []remoteThread) (string, error) {
	for _, r := range list {
		if r.requester == "" || l.known[r.ref] == r.updated {
			continue
		}
		k, _, err := l.load(ctx, r.ref)
		if err != nil {
			return "", err
		}
		if k.Mine {
			return r.requester, l.remote.learn(ctx, r.requester)
		}
	}
	return "", nil
}

// takeList takes in what is new in the threads of a list.
func (l *link) takeList(ctx context.Context, list []remoteThread, self string) error {
	if len(l.known) > maxNoted {
		clear(l.known)
	}
	failed := 0
	tired := map[string]bool{} // peers that are over a limit of ours
	for _, r := range l.waiting(list) {
		if l.known[r.ref] == r.updated || r.requester != "" && tired[r.requester] {
			continue
		}
		p, waits := l.later[r.ref]
		if waits && p.thread == r && time.Now().Before(p.at) {
			continue
		}
		began := time.Now()
		looked, err := l.look(ctx, r, self)
		_, there := errors.AsType[*client.SendError](err)
		switch e, refused := errors.AsType[*wire.Error](err); {
		case err == nil:
			if !looked || !dated.MatchString(r.updated) || l.isSettled(r, began) {
				l.known[r.ref] = r.updated
				delete(l.young, r.ref)
			}
			delete(l.later, r.ref)
			continue
		case errors.Is(err, errOwn):
			continue
		case ctx.Err() != nil, errors.Is(err, errAway), errors.Is(err, store.ErrUnavailable):
			return err
		case !there && refused && e.Retry:
			tired[r.requester] = true
		default:
			failed++
		}
		l.log.Info("a thread of a link waits", "link", l.cfg.Name, "thread", r.ref, "error", err)
		if len(l.later) < maxNoted {
			pause := min(max(2*p.pause, firstPause), lastPause)
			l.later[r.ref] = postponed{thread: r, at: time.Now().Add(pause), pause: pause}
		}
		if failed == maxFailed {
			return nil
		}
	}
	return nil
}

// waiting is a list with what waits and is not in it.
func (l *link) waiting(list []remoteThread) []remoteThread {
	listed := make(map[string]bool, len(list))
	for _, r := range list {
		listed[r.ref] = true
	}
	for ref, p := range l.later {
		if !listed[ref] {
			list = append(list, p.thread)
		}
	}
	return list
}

// dated matches what a server says of a thread by a date.
var dated = regexp.MustCompile(`^\d{4}-\d\d-\d\dT`)

// isSettled reports whether a look at a thread began more than a second after the first that found it with the same date. Until
// then it is looked at again: a server may date in whole seconds, and add something under the same date.
func (l *link) isSettled(r remoteThread, began time.Time) bool {
	first, ok := l.young[r.ref]
	if !ok || first.thread != r {
		if len(l.young) > maxNoted {
			clear(l.young)
		}
		first = postponed{thread: r, at: began}
		l.young[r.ref] = first
	}
	return began.Sub(first.at) > 1100*time.Millisecond
}

// look takes in what is new in a thread. looked is false if nothing is, by the date in the list.
func (l *link) look(ctx context.Context, r remoteThread, self string) (looked bool, err error) {
	l.making.Lock()
	defer l.making.Unlock()
	k, found, err := l.load(ctx, r.ref)
	if err != nil {
		return false, err
	}
	if _, young := l.young[r.ref]; found && k.Updated == r.updated && !young {
		return false, nil
	}
	if !found && self != "" && r.requester == self {
		return false, errOwn
	}
	if !found {
		k = knownThread{Conv: l.convOf(r.ref)}
	}
	return true, l.follow(ctx, r, k, self)
}

// convOf is the conversation about a thread that somebody else opened there.
func (l *link) convOf(ref string) string { return "conv_" + exchange.IDKey(l.cfg.Name, ref) }

// maxMissing is how many threads that the list does not show are looked at in one poll.
const maxMissing = 20

// missing looks at threads that are open here, or that the owner is asked about, and that the list does not show. An
// exchange shows nobody what another has taken, so this is how that is learned. A list may also be too short for all
// threads: one that is still there is looked at ever more seldom.
func (l *link) missing(ctx context.Context, list []remoteThread, self string) error {
	if err := errors.Join(l.x.Load(), l.knowAsked(ctx)); err != nil {
		return err
	}
	listed := make(map[string]bool, len(list))
	for _, r := range list {
		listed[l.convOf(r.ref)] = true
		delete(l.hidden, l.convOf(r.ref))
	}
	if len(l.hidden) > maxNoted {
		clear(l.hidden)
	}
	due := func(conv string) bool { return !listed[conv] && !time.Now().Before(l.hidden[conv].at) }
	convs, open := l.x.OpenVia(l.cfg.Name, maxMissing, due)
	if open+len(l.asked) == 0 {
		clear(l.hidden)
	}
	for conv := range l.asked {
		if len(convs) < maxMissing && due(conv) {
			convs = append(convs, conv)
		}
	}
	for _, conv := range convs {
		pause := min(max(2*l.hidden[conv].pause, firstPause), lastPause)
		l.hidden[conv] = postponed{at: time.Now().Add(pause), pause: pause}
		err := l.lookFor(ctx, conv, self)
		if ctx.Err() != nil || errors.Is(err, errAway) || errors.Is(err, store.ErrUnavailable) {
			delete(l.hidden, conv)
			return err
		}
		if err != nil {
			l.log.Info("a thread that a link does not show waits", "link", l.cfg.Name, "conversation", conv, "error", err)
		}
	}
	return nil
}

// lookFor looks at the thread of a conversation.
func (l *link) lookFor(ctx context.Context, conv, self string) error {
	rec, err := l.records.Get(ctx, exchange.NSMeta, l.convRecord(conv), time.Now())
	if err != nil {
		return exchange.IgnoreMissing(err)
	}
	l.making.Lock()
	defer l.making.Unlock()
	ref := string(rec.Body)
	k, found, err := l.load(ctx, ref)
	if err != nil || !found {
		return err
	}
	return l.follow(ctx, remoteThread{ref: ref, updated: k.Updated}, k, self)
}
