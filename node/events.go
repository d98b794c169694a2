package node

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

const (
	eventsKept   = 1024 // events that a stream which comes back can be given
	eventsQueued = 64   // events that wait for one watcher; more become one that says so
	maxStreams   = 64   // streams of events at once, of agents and of pages
)

// Topic is what an event is about: a list of the owner API.
type Topic = owner.Topic

const (
	TopicReset         = owner.TopicReset
	TopicInbox         = owner.TopicInbox
	TopicApprovals     = owner.TopicApprovals
	TopicConversations = owner.TopicConversations
	TopicOutbox        = owner.TopicOutbox
	TopicNotices       = owner.TopicNotices
	TopicPeers         = owner.TopicPeers
	TopicAudit         = owner.TopicAudit
	TopicStatus        = owner.TopicStatus
)

// Event says that something changed.
type Event = owner.Event

// Watch returns what happens from now on, until stop is called or the node ends; then the channel is closed. A watcher
// that is slow loses events and is told so by one of [TopicReset]; it holds up nobody. stop may be called twice.
func (n *Node) Watch() (events <-chan Event, stop func()) {
	w, _, _ := n.events.watch("")
	return w.ch, func() { n.events.leave(w) }
}

// events hands what happens to everybody who watches.
type events struct {
	epoch string // tells ids of this process from those of others

	mu       sync.Mutex
	seq      uint64
	kept     []Event // ring, by seq modulo its length
	watchers map[*watcher]struct{}
	closed   bool
}

type watcher struct{ ch chan Event }

func newEvents(now time.Time) *events {
	return &events{
		epoch: strconv.FormatInt(now.UnixMilli(), 36), kept: make([]Event, eventsKept), watchers: make(map[*watcher]struct{}),
	}
}

// id is the event's name, for a stream that wants to go on after it.
func (e *events) id(seq uint64) string { return e.epoch + "-" + strconv.FormatUint(seq, 10) }

// watch adds a watcher. missed is what happened after the event named last; whole is false where that cannot be said.
func (e *events) watch(last string) (w *watcher, missed []Event, whole bool) {
	w = &watcher{ch: make(chan Event, eventsQueued)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		close(w.ch)
		return w, nil, true
	}
	e.watchers[w] = struct{}{}
	if last == "" {
		return w, nil, true
	}
	epoch, number, _ := strings.Cut(last, "-")
	after, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch != e.epoch || after > e.seq || e.seq-after > eventsKept {
		return w, nil, false
	}
	for seq := after + 1; seq <= e.seq; seq++ {
		missed = append(missed, e.kept[seq%eventsKept])
	}
	return w, missed, true
}

func (e *events) leave(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.watchers[w]; ok {
		delete(e.watchers, w)
		close(w.ch)
	}
}

// close ends every watch.
func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for w := range e.watchers {
		delete(e.watchers, w)
		close(w.ch)
	}
}

// publish tells everybody and waits for nobody.
func (e *events) publish(list ...Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range list {
		e.seq++
		ev.Seq = e.seq
		e.kept[e.seq%eventsKept] = ev
		for w := range e.watchers {
			w.give(ev)
		}
	}
}

// give needs the lock of events: nobody else sends. What does not fit becomes one reset.
func (w *watcher) give(ev Event) {
	select {
	case w.ch <- ev:
		return
	default:
	}
	for {
		select {
		case <-w.ch:
			continue
		default:
		}
		break
	}
	w.ch <- Event{Topic: TopicReset}
}

// observe has the node and its parts learn of every change that is committed in this process.
func (n *Node) observe() {
	n.store.OnCommit(func(changes []store.Change) {
		if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == nsInbox }) {
			n.fresh.give()
		}
		n.events.publish(eventsOf(changes)...)
		n.bridges.committed(changes)
	})
	n.store.OnCommit(n.ends.committed)
	n.store.OnCommit(n.notices.Committed)
	n.store.OnCommit(n.outbox.committed)
	n.store.OnCommit(n.asks.Committed)
	if n.cfg.Agreed != nil {
		n.store.OnCommit(n.cfg.Agreed.OnCommit)
	}
}

// topicOf says which list shows records of a namespace.
var topicOf = map[string]Topic{
	nsInbox: TopicInbox, acl.AskNamespace: TopicApprovals, nsOutbox: TopicOutbox, "notices": TopicNotices,
	"rules": TopicPeers, "recipients": TopicPeers, nsAliases: TopicPeers,
}

// eventsOf are the events of a committed step: one for each record that a list shows, and one for each conversation.
func eventsOf(changes []store.Change) []Event {
	var list []Event
	told := make(map[string]bool, 1)
	for _, c := range changes {
		topic, ok := topicOf[c.Record.NS]
		if !ok {
			continue
		}
		ev := Event{Topic: topic, ID: c.Record.Key}
		for _, term := range c.Record.Terms {
			if state, ok := strings.CutPrefix(term, "state:"); ok {
				ev.State = state
			}
			conv, ok := strings.CutPrefix(strings.Replace(term, "conv/", "conv:", 1), "conv:")
			if !ok {
				continue
			}
			ev.Peer, ev.Conversation, _ = strings.Cut(conv, "/")
			if !told[conv] {
				told[conv] = true
				list = append(list, Event{Topic: TopicConversations, ID: ev.Conversation, Peer: ev.Peer, Conversation: ev.Conversation})
			}
		}
		if c.Delete {
			ev.State = "deleted"
		}
		list = append(list, ev)
	}
	return list
}

// streams bounds the connections that stay open to tell what happens. Pages and agents share it.
type streams struct{ room chan struct{} }

func newStreams() streams { return streams{make(chan struct{}, maxStreams)} }

// enter takes a place; ok is false where there is none.
func (s streams) enter() (leave func(), ok bool) {
	select {
	case s.room <- struct{}{}:
		return sync.OnceFunc(func() { <-s.room }), true
	default:
		return nil, false
	}
}
