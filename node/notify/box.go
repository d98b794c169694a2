package notify

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Content controls how much detail a notice contains.
type Content string

const (
	Summary Content = "summary" // title, time and place of an agreed event; the default
	None    Content = "none"    // only the kind of event and the peer
)

// Config configures [New]. Records is required.
type Config struct {
	Records store.Records
	Content Content  // empty: Summary
	Target  Target   // nil: notices are only listed and logged
	Kinds   []string // kinds of notices that the target gets; empty: all
	// Urgent are the kinds that are sent in quiet hours too.
	Urgent []string
	Quiet  Quiet
	Batch  time.Duration // how long notices are collected into one batch; zero: 10 s
	Keep   time.Duration // how long notices can be listed; zero: 30 days
	Logger *slog.Logger  // gets one line per notice; nil discards
	// Changed is called when the target begins to fail and when it works again. May be nil.
	Changed func()
	// Link returns a URL at which the owner can decide a question, or "" if a link cannot decide it. May be nil.
	Link func(ctx context.Context, ask string, now time.Time) (string, error)
}

const (
	defaultBatch = 10 * time.Second
	defaultKeep  = 30 * 24 * time.Hour
	sendTimeout  = time.Minute // bounds one call of the target

	maxBatch   = 50   // notices that a batch lists
	maxCounted = 1000 // notices that a batch lists or counts
	perHour    = 60   // records of one kind in an hour, and one more that counts the rest
)

// Box stores notices and sends them to the target. It is safe for concurrent use.
type Box struct {
	cfg Config

	mu    sync.Mutex
	hours map[string]*hourCount // by kind
}

type hourCount struct {
	since time.Time
	count int
}

// New makes a box. Its notices are sent while a worker has its [Box.Queue].
func New(cfg Config) *Box {
	cfg.Content, cfg.Logger = cmp.Or(cfg.Content, Summary), cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Batch, cfg.Keep = cmp.Or(cfg.Batch, defaultBatch), cmp.Or(cfg.Keep, defaultKeep)
	return &Box{cfg: cfg, hours: make(map[string]*hourCount)}
}

// OnStatusChange sets Changed of [Config]. Call it during set-up.
func (b *Box) OnStatusChange(f func()) { b.cfg.Changed = f }

// AddLinks sets Link of [Config]. Call it during set-up.
func (b *Box) AddLinks(link func(ctx context.Context, ask string, now time.Time) (string, error)) {
	b.cfg.Link = link
}

// Change returns the change that stores a notice. The caller stores it together with what the notice reports. Only a
// notice of the kind [Agreed] or [Cancelled] may contain text of a message, in Title and Text; Change removes that text
// if [Config].Content is [None] (AM-36). If there are more than perHour notices of a kind in an hour, a single record
// counts the others.
func (b *Box) Change(n Notice) store.Change {
	if b.cfg.Content == None {
		switch n.Kind {
		case Agreed:
			n.Title, n.Text = "an event was agreed", ""
		case Cancelled:
			n.Title, n.Text = "an agreed event was cancelled", ""
		}
	}
	n.Title, n.Text = wire.OneLine(showHidden(n.Title), maxTitle), wire.OneLine(showHidden(n.Text), maxText)
	n.At = n.At.UTC()
	n.Conversation = wire.ConversationID(n.Conv.ID)
	ifRev := store.Absent
	if since, excess := b.countExcess(n.Kind, n.At); excess > 0 {
		n.ID = fmt.Sprintf("note_%012x%s", since.UnixMilli(), wire.OneLine(n.Kind, 40))
		n.Text, n.Peer, n.Conv, n.Conversation, n.Ask = fmt.Sprintf("and %d more of this kind within the hour", excess), "", store.ConvKey{}, "", ""
		n.Count, ifRev = excess, store.Any
	}
	if n.ID == "" {
		n.ID = newID(n.At)
	}
	rec := n.record(b.cfg.Keep)
	if b.isForTarget(n.Kind) { // until the target has received the notice
		rec.Terms, rec.Due, rec.Party = []string{termTodo}, n.At.Add(b.cfg.Batch), partyOther
		if n.Count > 0 { // its At moves on
			rec.Due = store.DueNow
		}
		if slices.Contains(b.cfg.Urgent, n.Kind) {
			rec.Party = partyUrgent
		}
	}
	return store.Change{Record: rec, IfRev: ifRev}
}

// countExcess counts a notice. excess is the number of notices of its kind beyond the limit, in the hour that began at
// hourStart.
func (b *Box) countExcess(kind string, t time.Time) (hourStart time.Time, excess int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hours[kind]
	if h == nil || t.Sub(h.since).Abs() >= time.Hour { // Abs: the clock may be set back, and notices may come slightly out of order
		h = &hourCount{since: t}
		b.hours[kind] = h
	}
	h.count++
	return h.since, max(0, h.count-perHour)
}

func (b *Box) isForTarget(kind string) bool {
	return b.cfg.Target != nil && (len(b.cfg.Kinds) == 0 || slices.Contains(b.cfg.Kinds, kind))
}

// OnCommit logs the notices among committed changes. It never blocks. Pass it to [store.Observed.OnCommit].
func (b *Box) OnCommit(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != Namespace || c.Delete || c.IfRev != store.Absent && c.IfRev != store.Any {
			continue // not a notice, or one that the target has received now
		}
		n, err := decode(c.Record.Body)
		if err != nil {
			b.cfg.Logger.Error("notice cannot be read; the owner will not see it", "err", err)
			continue
		}
		if n.Count == 0 || n.Count&(n.Count-1) == 0 { // in a flood, log only counts that are powers of two
			b.cfg.Logger.Info("notice", "kind", n.Kind, "title", n.Title, "text", n.Text, "peer", n.Peer, "conversation", n.Conversation)
		}
	}
}

// List returns a page of at most limit notices, oldest first. after is "" for the first page, and otherwise next from
// the previous page. next is "" on the last page.
func (b *Box) List(ctx context.Context, after string, limit int, now time.Time) (notices []Notice, next string, err error) {
	return decodePage(b.cfg.Records.List(ctx, Namespace, "", after, limit, now))
}

// Latest is [Box.List] from the newest notice on.
func (b *Box) Latest(ctx context.Context, before string, limit int, now time.Time) (notices []Notice, next string, err error) {
	return decodePage(b.cfg.Records.ListBackward(ctx, Namespace, "", before, limit, now))
}

func decodePage(page store.RecordPage, err error) (notices []Notice, next string, _ error) {
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
