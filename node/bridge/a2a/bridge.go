package a2a

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// syncPause is the pause after a comparison of all tasks that failed.
const syncPause = 10 * time.Second

// Config is the configuration of a bridge. Mesh, Store and HTTP are required.
type Config struct {
	// Serve switches on the agent card and both bindings, JSON-RPC and HTTP+JSON.
	Serve bool
	// Anonymous lets callers without a token in. All of them are one principal and see the same tasks.
	Anonymous bool
	URL       string // where others reach the listener
	Relay     string // the node's URL at its mailbox relay, for the card; "" if others reach the node directly
	Directory string // the directory that lists the node; "" for none
	Version   string // of the program
	Local     bool   // the local profile: webhooks and agents may be on loopback (AM-82)
	Addresses *httpapi.Addresses

	Links  []bridge.Link
	Tokens map[string]client.Credential // for our calls to agents, by link
	Mesh   bridge.Mesh
	Store  store.Store
	HTTP   *client.HTTP
	Idle   time.Duration // silence after which a conversation expires; zero means the default
	Logger *slog.Logger
}

// Bridge is the A2A side of a node. It is safe for concurrent use.
type Bridge struct {
	bridge.Switch
	cfg     Config
	log     *slog.Logger
	records store.Records
	front   *door.Door

	hub      door.Hub           // passes changes of tasks to callers that wait
	contexts *waiting.KeyedLock // by caller and context, while a message is accepted
	full     fullCallers        // callers that may open no task
	due      *work.Worker       // sends push notifications, and asks about tasks of other agents
	out      *outbound

	working *lru.Cache[wire.MessageID, string] // the tasks of messages that a hook works on
}

var _ bridge.Service = (*Bridge)(nil)

// New returns a bridge. [Bridge.Run] starts it.
func New(cfg Config) (*Bridge, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Store = store.Observe(cfg.Store)
	b := &Bridge{
		cfg: cfg, log: cfg.Logger, records: cfg.Store.Records(),
		contexts: waiting.NewKeyedLock(),
	}
	b.working, _ = lru.New[wire.MessageID, string](1024) // fails for no size only
	b.front = door.New(door.Config{Open: b.open, Hub: &b.hub, Logger: cfg.Logger})
	b.Serve(cfg.Serve)
	b.out = &outbound{cfg: cfg, log: cfg.Logger, records: b.records}
	b.due = work.New(cfg.Store, nil, cfg.Logger)
	tasks := bridge.Queue(nsTasks, 0, b.syncDue)
	tasks.Term, tasks.Ends = termOpen, true
	b.due.Add(tasks)
	b.due.Add(bridge.Queue(nsPush, pushPause, b.notify))
	b.due.Add(bridge.Queue(nsSent, pollPause, b.out.poll))
	return b, bridge.PutLinks(b, cfg.Links, cfg.Tokens)
}

// PutLink adds a link, or replaces the one with the same name. There is no connection that it could start.
func (b *Bridge) PutLink(l bridge.Link, token client.Credential) error {
	if !isName(l.Name) {
		return fmt.Errorf("link %s: the name is reserved; choose another", l.Name)
	}
	if l.URL == "" {
		return fmt.Errorf("link %s: needs the url of an A2A agent", l.Name)
	}
	for key, value := range l.Options {
		if key != "replies" || value != "push" {
			return fmt.Errorf("link %s: the only option is replies: push", l.Name)
		}
	}
	b.out.links.Put(bridge.NewCalledLink(l, token, b.testLink))
	return nil
}

// RemoveLink removes a link.
func (b *Bridge) RemoveLink(name string) { b.out.links.Remove(name) }

// Run delivers push notifications, asks for answers, and keeps the tasks in step with the inbox, until ctx ends.
func (b *Bridge) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { b.due.Run(ctx) })
	all.Go(func() { _ = b.out.links.Run(ctx) })
	stale := make(chan struct{}, 1)
	all.Go(func() {
		follow := func(key store.ConvKey) {
			if err := b.sync(ctx, key); err != nil && ctx.Err() == nil {
				b.log.WarnContext(ctx, "a2a: cannot update a task, so all open tasks are compared", "err", err)
				waiting.Wake(stale)
			}
		}
		b.cfg.Mesh.Follow(ctx, func(e bridge.Event) {
			switch {
			case e.Missing: // at the start, and when events were lost
				waiting.Wake(stale)
			case e.Progress != nil:
				b.report(ctx, e.Progress)
			case e.Gone != nil:
				follow(*e.Gone)
			case e.Item != nil:
				_, changesTask := itemStates[e.Item.State]
				if a, err := bridge.ParseAddress(e.Item.Address); err == nil && a.Kind == Kind && changesTask {
					follow(store.ConvKey{Peer: string(a.Pseudonym()), ID: string(e.Item.Conversation)})
				}
			}
		})
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-stale:
		}
		began := time.Now()
		if err := b.syncAll(ctx); err != nil && ctx.Err() == nil {
			b.log.WarnContext(ctx, "a2a: cannot compare tasks with the inbox, and tries again", "err", err)
			time.AfterFunc(syncPause, func() { waiting.Wake(stale) })
		}
		// A comparison reads all open tasks. While many events come, some are always lost, so comparisons may take only
		// a tenth of the time.
		select {
		case <-ctx.Done():
		case <-time.After(9 * time.Since(began)):
		}
	}
}

// Links returns the status of each link.
func (b *Bridge) Links() []bridge.LinkStatus { return b.out.links.States() }

// Test fetches the card of the agent behind a link and checks its signature and its key.
func (b *Bridge) Test(ctx context.Context, link string) error { return b.out.links.Test(ctx, link) }

func (b *Bridge) testLink(ctx context.Context, l *bridge.CalledLink) error {
	const maxAge = 0 // fetch the card even if we know it
	began := time.Now()
	_, err := b.out.resolve(ctx, bridge.Address{Kind: Kind, Link: l.Name, Peer: linkPeer}, maxAge)
	b.out.recordLink(l.Name, began, err)
	return err
}

// Deliver implements [bridge.Transport]. A message to a caller changes the caller's task; see also isAnswer. A message
// to another address is a call to that agent. A close cancels the tasks of its conversation; receipts are dropped.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	address, err := bridge.ParseAddress(d.Address)
	if err != nil || address.Kind != Kind {
		return bridge.Delivered{}, fmt.Errorf("%q is not an A2A address", d.Address)
	}
	isAnswer := address.Link == InboundLink
	if !isAnswer {
		if isAnswer, err = b.isAnswer(ctx, d); err != nil {
			return bridge.Delivered{}, client.RetryLater(err)
		}
	}
	if isAnswer {
		if err := b.answer(ctx, d); err != nil {
			b.log.WarnContext(ctx, "a2a: cannot store an answer", "err", err)
			return bridge.Delivered{}, client.RetryLater(err)
		}
		if l, ok := b.out.links.Find(address.Link); !ok || l.Options["replies"] != "push" {
			return bridge.Delivered{}, nil
		}
	}
	action := d.Message.Action()
	if action == wire.ActionReceived || action == wire.ActionPending {
		return bridge.Delivered{}, nil // A2A has no such message to a server
	}
	row, err := b.out.load(ctx, d.Address, d.Message.Conversation)
	if err != nil {
		return bridge.Delivered{}, client.RetryLater(err)
	}
	if action == wire.ActionClose {
		return bridge.Delivered{}, b.out.cancel(ctx, address, row)
	}
	return b.out.send(ctx, address, row, d)
}

// isAnswer reports whether a message belongs to the conversation of a task that the agent behind a link opened here.
// Such an agent finds the answer in its task. With the option replies: push, the agent also gets the answer as a
// message, because it never asks about its tasks.
func (b *Bridge) isAnswer(ctx context.Context, d bridge.Delivery) (bool, error) {
	tasks, err := b.tasksWith(ctx, convTerm(store.ConvKey{Peer: string(d.To), ID: string(d.Message.Conversation)}))
	return len(tasks) > 0, err
}
