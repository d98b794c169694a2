package notify

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Content says how much a notice may tell.
type Content string

const (
	Summary Content = "summary" // title, time and place of an agreed event; the default
	None    Content = "none"    // that something happened, and with whom
)

// Config configures [New]. Records is required.
type Config struct {
	Records store.Records
	Content Content // empty: Summary
	Target  Target  // nil: notices are listed and logged
	Kinds   []string
	// Urgent are the kinds that are told in quiet hours as well.
	Urgent []string
	Quiet  Quiet
	Batch  time.Duration // how long notices are gathered; zero: 10 s
	Keep   time.Duration // how long they can be listed; zero: 30 days
	Logger *slog.Logger  // gets one line per notice; nil discards
	// Changed is called when telling the owner began to fail or works again; nil calls nothing.
	Changed func()
}

const (
	defaultBatch = 10 * time.Second
	defaultKeep  = 30 * 24 * time.Hour
	sendTime     = time.Minute // for one call of the target, whatever it does

	maxBatch  = 50   // notices that are told one by one
	maxTaken  = 1000 // and those that are only counted
	perHour   = 60   // records of one kind in an hour; more are one record that counts
	checkBack = time.Minute
)

// Box is where notices go. It is safe for concurrent use.
type Box struct {
	cfg  Config
	kick chan struct{}

	mu    sync.Mutex
	hours map[string]*hour // by kind, which are ours
}

// hour is how many notices of a kind there were since it began.
type hour struct {
	since time.Time
	count int
}

// New makes a box. It starts nothing: that is [Box.Run].
func New(cfg Config) *Box {
	if cfg.Content == "" {
		cfg.Content = Summary
	}
	if cfg.Batch == 0 {
		cfg.Batch = defaultBatch
	}
	if cfg.Keep == 0 {
		cfg.Keep = defaultKeep
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Box{cfg: cfg, kick: make(chan struct{}, 1), hours: make(map[string]*hour)}
}

// OnChanged has f called when telling the owner began to fail or works again. It is for set-up.
func (b *Box) OnChanged(f func()) { b.cfg.Changed = f }

// Change returns the record of a notice, for the step that it is about. Kind and Title are ours, unless Kind is
// [Agreed] or [Cancelled]: then Title and Text hold what a peer wrote and are left out where the content is None (AM-36). Of a flood
// of one kind most become one record that counts them.
func (b *Box) Change(n Notice) store.Change {
	if b.cfg.Content == None {
		switch n.Kind {
		case Agreed:
			n.Title, n.Text = "an event was agreed", ""
		case Cancelled:
			n.Title, n.Text = "an agreed event was cancelled", ""
		}
	}
	n.Title, n.Text = wire.OneLine(n.Title, maxTitle), wire.OneLine(n.Text, maxText)
	n.At = n.At.UTC()
	n.Conversation = wire.ConversationID(n.Conv.ID)
	ifRev := store.Absent
	if since, over := b.over(n.Kind, n.At); over > 0 {
		n.ID = fmt.Sprintf("note_%012x%s", since.UnixMilli(), wire.OneLine(n.Kind, 40))
		n.Text, n.Peer, n.Conv, n.Conversation = fmt.Sprintf("and %d more of the kind within the hour", over), "", store.ConvKey{}, ""
		n.Count, ifRev = over, store.Any
	}
	if n.ID == "" {
		n.ID = newID(n.At)
	}
	rec := n.record(b.cfg.Keep)
	if b.tells(n.Kind) {
		rec.Terms = []string{termTodo}
	}
	return store.Change{Record: rec, IfRev: ifRev}
}

// over counts a notice. Where there were too many of its kind, it says since when and how many.
func (b *Box) over(kind string, at time.Time) (since time.Time, over int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hours[kind]
	if h == nil || at.Sub(h.since).Abs() >= time.Hour { // or the clock was set back; steps come a little out of order
		h = &hour{since: at}
		b.hours[kind] = h
	}
	h.count++
	return h.since, max(0, h.count-perHour)
}

// tells says whether the target gets notices of a kind.
func (b *Box) tells(kind string) bool {
	return b.cfg.Target != nil && (len(b.cfg.Kinds) == 0 || slices.Contains(b.cfg.Kinds, kind))
}

// Committed logs the notices among the changes of a unit that is committed, and has the owner told. It never blocks. It
// is an observer for [store.Observed.OnCommit].
func (b *Box) Committed(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != Namespace || c.Delete || c.IfRev != store.Absent && c.IfRev != store.Any {
			continue // no notice, or the mark that the owner was told of one
		}
		n, err := decode(c.Record.Body)
		if err != nil {
			b.cfg.Logger.Error("publish notice", "err", err)
			continue
		}
		if n.Count == 0 || n.Count&(n.Count-1) == 0 { // of a flood, ever fewer lines
			b.cfg.Logger.Info("notice", "kind", n.Kind, "title", n.Title, "text", n.Text, "peer", n.Peer, "conversation", n.Conversation)
		}
		if b.tells(n.Kind) {
			b.poke()
		}
	}
}

func (b *Box) poke() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// List returns at most limit notices, oldest first, after the id named after. next is empty on the last page.
func (b *Box) List(ctx context.Context, after string, limit int, now time.Time) (notices []Notice, next string, err error) {
	page, err := b.cfg.Records.List(ctx, Namespace, "", after, limit, now)
	if err != nil {
		return nil, "", fmt.Errorf("list notices: %w", err)
	}
	for _, r := range page.Records {
		n, err := decode(r.Body)
		if err != nil {
			return nil, "", err
		}
		notices = append(notices, n)
	}
	return notices, page.Next, nil
}
