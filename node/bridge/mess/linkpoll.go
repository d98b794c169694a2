package mess

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// knownThread is what we remember of a foreign thread.
type knownThread struct {
	Conv    string `json:"conv"`
	Seen    int    `json:"seen"` // messages that were taken in
	Updated string `json:"updated"`
	Mine    bool   `json:"mine"`            // we opened it
	State   Code   `json:"state,omitempty"` // that the messages told, or we ourselves
	Peer    string `json:"peer,omitempty"`  // who opened it, where we did not
	Held    bool   `json:"held,omitempty"`  // it was seen there as held by us
	Next    string `json:"next,omitempty"`  // the thread that took its place there, in the same conversation

	Intent wire.Intent `json:"intent,omitempty"` // of what was said in plain words, and is no thread here
}

func (l *link) threadKey(ref string) string {
	return "link/" + l.cfg.Name + "/thread/" + idKey(l.cfg.Name, ref)
}
func (l *link) convRecord(conv string) string { return "link/" + l.cfg.Name + "/conv/" + conv }

func (l *link) load(ctx context.Context, ref string) (k knownThread, found bool, err error) {
	rec, err := l.b.x.records.Get(ctx, nsMeta, l.threadKey(ref), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return k, false, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, &k)
	}
	return k, true, err
}

// maxKnown bounds the foreign threads that are remembered: what the other side lists is the other side's choice. The bound
// is held for each of sixteen parts of a link's.
const maxKnown = 10_000

func (l *link) change(ref string, k knownThread) []store.Change {
	key := l.threadKey(ref)
	part := key[:len(key)-31] // with the first digit of what is behind the name
	changes := []store.Change{{Record: store.Record{NS: nsMeta, Key: key, Body: encode(k), Terms: []string{part}}, IfRev: store.Any, Max: maxKnown}}
	if k.Next != "" { // what is said in the conversation is said there
		return changes
	}
	return append(changes, store.Change{Record: store.Record{NS: nsMeta, Key: l.convRecord(k.Conv), Body: []byte(ref)}, IfRev: store.Any})
}

// postponed is a thread that is looked at again: after a while, which grows.
type postponed struct {
	thread remoteThread
	at     time.Time
	pause  time.Duration
}

const (
	firstPause = pollEvery
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
	self, err := l.selfIn(ctx, list)
	if err != nil {
		return err
	}
	if err := l.takeList(ctx, list, self); err != nil {
		return err
	}
	return l.missing(ctx, list, self)
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
		err := l.look(ctx, r, self)
		_, there := errors.AsType[*client.SendError](err)
		switch e, refused := errors.AsType[*wire.Error](err); {
		case err == nil:
			l.known[r.ref] = r.updated
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
		l.b.log.Info("a thread of a link waits", "link", l.cfg.Name, "thread", r.ref, "error", err)
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
	if len(l.later) == 0 {
		return list
	}
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

// look takes in what is new in a thread.
func (l *link) look(ctx context.Context, r remoteThread, self string) error {
	l.making.Lock()
	defer l.making.Unlock()
	k, found, err := l.load(ctx, r.ref)
	if err != nil {
		return err
	}
	if found && k.Updated == r.updated {
		return nil
	}
	if !found && self != "" && r.requester == self {
		return errOwn
	}
	if !found {
		k = knownThread{Conv: l.convOf(r.ref)}
	}
	return l.follow(ctx, r, k, self)
}

// convOf is the conversation about a thread that somebody else opened there.
func (l *link) convOf(ref string) string { return "conv_" + idKey(l.cfg.Name, ref) }

// follow hands in the new messages of a thread, one by one, each with the count that remembers it. What will never be
// readable is left alone until the thread changes. Of a thread that somebody else opened there only what its opener says
// is for us, or who answers in its place; what the others do to it is seen by where it stands.
func (l *link) follow(ctx context.Context, r remoteThread, k knownThread, self string) error {
	v, err := l.remote.view(ctx, r.ref)
	if e, ok := errors.AsType[*client.SendError](err); ok {
		switch {
		case e.Status == 0:
			return errors.Join(errAway, err)
		case hides(e):
			v, err = remoteView{gone: true}, nil
		case !e.Retry:
			l.b.log.Warn("a thread of a link cannot be read", "link", l.cfg.Name, "thread", r.ref, "error", err)
			return nil
		}
	}
	if err != nil {
		return err
	}
	requester := cmp.Or(r.requester, v.requester)
	if !k.Mine && k.Seen == 0 {
		k.Peer = v.opener(requester)
	}
	switch {
	case v.gone && (k.Mine || k.Seen == 0), !k.Mine && k.Seen == 0 && self != "" && requester == self:
		return nil
	case !k.Mine && k.Seen == 0 && v.over(self, k, nil) != "", k.Next != "": // it does not come in
		k.Updated = r.updated
		return l.b.x.records.Apply(ctx, l.change(r.ref, k), time.Now())
	}
	for i := k.Seen; i < len(v.messages); i++ {
		m := v.messages[i]
		k.Seen = i + 1
		b, err := FromTree(m.Mess)
		if err != nil || isAck(b) {
			continue
		}
		b = b.placed(r.ref)
		if k.Mine {
			b = v.meant(b)
		} else {
			b = b.unnamed(r.ref)
		}
		k.State = k.State.after(b)
		ours := m.From == self || k.Mine && m.From == requester // an exchange says who we are there only by our threads
		if ours || m.From == "" || len(b) == 0 || !k.Mine && m.From != k.Peer && !b.answers() {
			continue
		}
		if k.Mine {
			if b, k.Next, err = l.handedOn(ctx, r.ref, b); err != nil {
				return err
			}
		}
		if k.Next == "" && i == len(v.messages)-1 && slices.ContainsFunc(b, func(e Entry) bool { return e.Type == "response" }) {
			first, err := l.unsaid(ctx, v, k) // in one message: the close goes with the result
			if err != nil {
				return err
			}
			if first != nil {
				b, k.State = append(first, b...), v.status
			}
		}
		if err := l.takeOnce(ctx, m.From, r.ref, fmt.Sprint(i), b, k); err != nil {
			return err
		}
		if k.Next != "" {
			delete(l.known, k.Next)
			l.poke()
			break
		}
	}
	if !k.Mine {
		k.Held = k.Held || self != "" && v.holder == self
		k.State, k.Updated = cmp.Or(v.status, k.State), r.updated
		return l.standing(ctx, r.ref, v, k, self)
	}
	b, err := l.unsaid(ctx, v, k)
	if err != nil {
		return err
	}
	if k.State = cmp.Or(v.status, k.State); b != nil {
		if err := l.takeOnce(ctx, exchangeID, r.ref, "state/"+string(v.status)+"/"+r.updated, b, k); err != nil {
			return err
		}
	}
	k.Updated = r.updated
	if err := l.closePlain(ctx, r.ref, v, k); err != nil {
		return err
	}
	return l.b.x.records.Apply(ctx, l.change(r.ref, k), time.Now())
}

// takeOnce is take, but for what is refused for good: it is left out.
func (l *link) takeOnce(ctx context.Context, from, ref, number string, b Block, k knownThread) error {
	if k.Mine {
		if err := l.fetchAhead(ctx, ref, b); err != nil {
			return err
		}
		defer l.forgetAhead()
	}
	err := l.take(ctx, from, ref, number, b, k)
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		l.b.log.Info("a message of a link was refused", "link", l.cfg.Name, "thread", ref, "error", e.Message)
		return nil
	}
	return err
}
