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
	maxKeptEvents   = 1024 // the newest events, which a stream that reconnects can still get
	maxQueuedEvents = 64   // events that wait for one watcher; if more come, one reset replaces them
	maxStreams      = 64   // event streams open at once, for agents and pages together
)

// Topic names the list of the owner API in which something changed.
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

// Event reports that something changed.
type Event = owner.Event

// Watch returns a channel of events that closes when stop is called or the node ends. A slow watcher delays nobody: it
// loses events and gets an event with [TopicReset] instead. stop may be called twice.
func (n *Node) Watch() (events <-chan Event, stop func()) {
	w, _, _ := n.events.watch("")
	return w.ch, func() { n.events.unwatch(w) }
}

// events passes every event to all watchers.
type events struct {
	epoch string // distinguishes event ids of this process from those of others

	mu       sync.Mutex
	seq      uint64
	ring     []Event // ring, by seq modulo its length
	watchers map[*watcher]struct{}
	closed   bool
}

type watcher struct{ ch chan Event }

func newEvents(now time.Time) *events {
	return &events{
		epoch: strconv.FormatInt(now.UnixMilli(), 36), ring: make([]Event, maxKeptEvents), watchers: make(map[*watcher]struct{}),
	}
}

// id returns the id of an event. A stream that reconnects sends the id to continue after that event.
func (e *events) id(seq uint64) string { return e.epoch + "-" + strconv.FormatUint(seq, 10) }

// watch adds a watcher. last is the id of the last event that the caller has seen, or "". missed holds the events after
// it. complete is false if the node no longer knows all of them.
func (e *events) watch(last string) (w *watcher, missed []Event, complete bool) {
	w = &watcher{ch: make(chan Event, maxQueuedEvents)}
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
	if err != nil || epoch != e.epoch || after > e.seq || e.seq-after > maxKeptEvents {
		return w, nil, false
	}
	for seq := after + 1; seq <= e.seq; seq++ {
		missed = append(missed, e.ring[seq%maxKeptEvents])
	}
	return w, missed, true
}

func (e *events) unwatch(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.watchers[w]; ok {
		delete(e.watchers, w)
		close(w.ch)
	}
}

// close closes the channels of all watchers.
func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for w := range e.watchers {
		delete(e.watchers, w)
		close(w.ch)
	}
}

// publish sends the events to all watchers without blocking.
func (e *events) publish(list ...Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range list {
		e.seq++
		ev.Seq = e.seq
		e.ring[e.seq%maxKeptEvents] = ev
		for w := range e.watchers {
			w.give(ev)
		}
	}
}

// give sends an event to the watcher. If the channel is full, one reset replaces everything in it. The caller must hold
// events.mu, so that nobody else sends meanwhile.
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

// observe makes the node and its parts observe every change that is committed in this process.
func (n *Node) observe() {
	n.store.OnCommit(func(changes []store.Change) {
		if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == nsInbox }) {
			n.inboxChanged.broadcast()
		}
		n.events.publish(eventsOf(changes)...)
		n.bridges.reportCommit(changes)
	})
	n.store.OnCommit(n.expiryAlarm.OnCommit)
	n.store.OnCommit(n.notices.OnCommit)
	n.store.OnCommit(n.outbox.onCommit)
	n.store.OnCommit(n.asks.Committed)
	if n.cfg.Agreed != nil {
		n.store.OnCommit(n.cfg.Agreed.OnCommit)
	}
}

// topicOf maps a record namespace to the list that shows its records.
var topicOf = map[string]Topic{
	nsInbox: TopicInbox, acl.AskNamespace: TopicApprovals, nsOutbox: TopicOutbox, "notices": TopicNotices,
	"rules": TopicPeers, "recipients": TopicPeers, nsAliases: TopicPeers,
}

// eventsOf returns the events of a committed step: one for each listed record, and one for each conversation.
func eventsOf(changes []store.Change) []Event {
	var list []Event
	reported := make(map[string]bool, 1)
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
			if !reported[conv] {
				reported[conv] = true
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

// streams limits the open event streams. Pages and agents share the limit.
type streams struct{ room chan struct{} }

func newStreams() streams { return streams{make(chan struct{}, maxStreams)} }

// enter takes one of the places; ok is false if all are taken.
func (s streams) enter() (leave func(), ok bool) {
	select {
	case s.room <- struct{}{}:
		return sync.OnceFunc(func() { <-s.room }), true
	default:
		return nil, false
	}
}
