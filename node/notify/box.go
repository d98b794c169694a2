package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentmesh/agentmesh/node/subprocess"
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
	// Command gets the notices of a batch as lines of JSON on its standard input. Nil runs none.
	Command []string
	Env     []string      // its whole environment; see subprocess.Command
	Batch   time.Duration // how long notices are gathered for one run of Command; zero: 10 s
	Keep    time.Duration // how long they can be listed; zero: 30 days
	Logger  *slog.Logger  // gets one line per notice; nil discards
}

const (
	defaultBatch = 10 * time.Second
	defaultKeep  = 30 * 24 * time.Hour
	commandTime  = time.Minute

	lastCommandTime = 5 * time.Second // for what was gathered when the process stops

	maxWaiting = 256 // notices for the command; what comes above that is only listed and logged
)

// Box is where notices go. It is safe for concurrent use.
type Box struct {
	cfg     Config
	command subprocess.Command
	waiting chan Notice
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
	return &Box{
		cfg:     cfg,
		command: subprocess.Command{Argv: cfg.Command, Env: cfg.Env, MaxOutput: 64 << 10},
		waiting: make(chan Notice, maxWaiting),
	}
}

// Change returns the record of a notice, for the step that it is about. Kind and Title are ours, unless Kind is
// [Agreed]: then Title and Text hold what a peer wrote and are left out where the content is None (AM-36).
func (b *Box) Change(n Notice) store.Change {
	if n.ID == "" {
		n.ID = newID(n.At)
	}
	if n.Kind == Agreed && b.cfg.Content == None {
		n.Title, n.Text = "an event was agreed", ""
	}
	n.Title, n.Text = Clean(n.Title, maxTitle), Clean(n.Text, maxText)
	n.At = n.At.UTC()
	n.Conversation = wire.ConversationID(n.Conv.ID)
	return store.Change{Record: n.record(b.cfg.Keep)}
}

// Published tells the owner of the notices among the changes of a step that is committed. It never blocks.
func (b *Box) Published(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != Namespace || c.Delete {
			continue
		}
		n, err := decode(c.Record.Body)
		if err != nil {
			b.cfg.Logger.Error("publish notice", "err", err)
			continue
		}
		b.cfg.Logger.Info("notice", "kind", n.Kind, "title", n.Title, "text", n.Text, "peer", n.Peer, "conversation", n.Conversation)
		if len(b.cfg.Command) == 0 {
			continue
		}
		select {
		case b.waiting <- n:
		default:
			b.cfg.Logger.Warn("too many notices wait for the command", "dropped", n.ID)
		}
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

// Run gives notices to the command in batches, one run at a time, until ctx ends. What waits then still goes out.
func (b *Box) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			if batch := b.rest(nil); len(batch) > 0 {
				b.run(ctx, batch)
			}
			return
		case n := <-b.waiting:
			timer := time.NewTimer(b.cfg.Batch)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			b.run(ctx, b.rest([]Notice{n}))
		}
	}
}

// rest adds what waits to batch.
func (b *Box) rest(batch []Notice) []Notice {
	for {
		select {
		case n := <-b.waiting:
			batch = append(batch, n)
		default:
			return batch
		}
	}
}

func (b *Box) run(ctx context.Context, batch []Notice) {
	left := commandTime
	if ctx.Err() != nil { // the process is stopping
		ctx, left = context.WithoutCancel(ctx), lastCommandTime
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	var input []byte
	for _, n := range batch {
		line, err := json.Marshal(n)
		if err != nil {
			b.cfg.Logger.Error("encode notice", "err", err)
			continue
		}
		input = append(append(input, line...), '\n')
	}
	if result, err := b.command.Run(ctx, input); err != nil {
		b.cfg.Logger.Warn("notice command", "command", b.cfg.Command[0], "err", err, "stderr", Clean(result.Tail, 1000))
	}
}
