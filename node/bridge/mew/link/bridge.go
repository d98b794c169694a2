package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of MEW addresses and links.
const Kind = "mew"

// These intents are for MEW messages to which no intent of the mesh corresponds.
const (
	IntentProposal wire.Intent = "com.github.rjcorwin.mew.proposal" // mcp/proposal to this node (MEW-L3)
	IntentRequest  wire.Intent = "com.github.rjcorwin.mew.request"  // mcp/request to this node, for a tool that is switched on
)

// Intents is a pattern for all intents of this package.
const Intents = "com.github.rjcorwin.mew.*"

// Config configures a bridge.
type Config struct {
	Links  []bridge.Link
	Tokens map[string]client.Credential // by the name of a link
	Own    map[string]bool              // names of the links to spaces that this process hosts

	Mesh    bridge.Mesh // the node; required if there are links
	Records store.Records
	Steps   store.Steps
	// Dial makes connections.
	Dial   websocket.Dialer
	Logger *slog.Logger
	// Retry is the first wait before a link connects again, and MaxRetry the longest. Zero means 1 s and 60 s (MEW-L1).
	Retry, MaxRetry time.Duration
}

// Bridge is the node as a participant in spaces. It is safe for concurrent use.
type Bridge struct {
	cfg   Config
	log   *slog.Logger
	links bridge.LinkSet[*Link]
}

var _ bridge.Transport = (*Bridge)(nil)

// New returns a bridge with the links of cfg. Nothing connects before [Bridge.Run].
func New(cfg Config) (*Bridge, error) {
	if cfg.Records == nil || cfg.Steps == nil || cfg.Dial == nil {
		return nil, errors.New("mew: the configuration lacks a store or a dialer")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Retry, cfg.MaxRetry = cmp.Or(cfg.Retry, time.Second), cmp.Or(cfg.MaxRetry, time.Minute)
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	return b, bridge.PutLinks(b, cfg.Links, cfg.Tokens)
}

// PutLink adds a link, or replaces the one with the same name.
func (b *Bridge) PutLink(lc bridge.Link, token client.Credential) error {
	l, err := b.newLink(lc, token)
	if err != nil {
		return fmt.Errorf("link %s: %w", lc.Name, err)
	}
	b.links.Put(l)
	return nil
}

// RemoveLink stops a link and removes it.
func (b *Bridge) RemoveLink(name string) { b.links.Remove(name) }

// Run keeps every link connected until ctx ends, and returns when all of them have stopped.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.links.Run(ctx) })
	if b.cfg.Mesh != nil {
		g.Go(func() error { b.followEvents(ctx); return nil })
	}
	return g.Wait()
}

// Links returns the status of each link.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// NextChange returns a channel that is closed when a link is added or removed.
func (b *Bridge) NextChange() <-chan struct{} { return b.links.NextChange() }

// RemoteLinks returns the links to spaces that this process does not host.
func (b *Bridge) RemoteLinks() []*Link {
	return slices.DeleteFunc(slices.Clone(b.links.All()), func(l *Link) bool { return b.cfg.Own[l.cfg.Name] })
}

// Link returns the link with a name, or nil.
func (b *Bridge) Link(name string) *Link {
	l, _ := b.links.Find(name)
	return l
}

// Test tests a link, as [Link.Test] does.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

// Test joins the space of the link, leaves it at once, and returns the error. If the link is up, Test does nothing,
// because a second connection would replace the first one (MEW-J5). After a test that succeeds, the link connects at
// once, unless it is down.
func (l *Link) Test(ctx context.Context) error {
	err := l.space.testJoin(ctx)
	if err == nil && !l.space.isDown() {
		l.Connect()
	}
	return err
}

// Deliver implements [bridge.Transport].
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	l, peer, err := b.findLink(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	return l.deliver(ctx, peer, d)
}

// Principal returns the principal of everybody in the space behind a link: the name under which the node counts, blocks
// and approves all of them together (MEW-L2).
func Principal(link string) string { return Kind + ":" + link }

// socketTarget returns the URL to which a link connects. It adds the path /ws and the query parameter "space" if the
// configured URL lacks them (MEW-L1).
func socketTarget(l bridge.Link) (*url.URL, error) {
	for key, value := range l.Options {
		if key != "allow_insecure" || value != "true" && value != "false" {
			return nil, errors.New("the only option is allow_insecure: true or false")
		}
	}
	u, err := url.Parse(l.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("url must be wss://host")
	}
	switch u.Scheme {
	case "wss":
	case "ws":
		if !httpapi.LoopbackHost(u.Hostname()) && l.Options["allow_insecure"] != "true" {
			return nil, errors.New("url must begin with wss:// because over ws:// anybody on the network path can read the messages and the token; to allow ws:// anyway, set options.allow_insecure to true")
		}
	default:
		return nil, errors.New("url must be wss://host")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/ws"
	}
	q := u.Query()
	if !q.Has("space") && l.Space != "" {
		q.Set("space", l.Space)
		u.RawQuery = q.Encode()
	}
	return u, nil
}

// LinkKind tells the node what MEW links support.
func LinkKind() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "limits", "tools", "broadcast"}, Intents: Intents}
}
