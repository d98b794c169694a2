package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of our addresses and links.
const Kind = "mew"

// The intents of what has no native one. Their payloads hold what MEW says as it was said.
const (
	IntentProposal wire.Intent = "com.github.rjcorwin.mew.proposal" // mcp/proposal to us (MEW-L3)
	IntentRequest  wire.Intent = "com.github.rjcorwin.mew.request"  // mcp/request to us, for a tool that is switched on
	IntentForward  wire.Intent = "com.github.rjcorwin.mew.forward"  // chat in a conversation that was brought here (MEW-L6)
	Intents                    = "com.github.rjcorwin.mew.*"        // a pattern of all of them
)

// mesh is the native side in a rule about transit.
const mesh = "mesh"

// Config is what the participant's side of MEW is made of.
type Config struct {
	Links  []bridge.Link
	Tokens map[string]client.Credential // by the name of the link

	Mesh    bridge.Mesh // required with links
	Records store.Records
	Steps   store.Steps
	// Dial makes the connections.
	Dial   websocket.Dialer
	Logger *slog.Logger
	// Retry and MaxRetry bound the wait before a link connects again: 1 s and 60 s where zero (MEW-L1).
	Retry, MaxRetry time.Duration
}

// Bridge is the participant: the node, in spaces that others host. It is safe for concurrent use.
type Bridge struct {
	cfg   Config
	log   *slog.Logger
	links []*Link
}

var _ bridge.Transport = (*Bridge)(nil)

// New makes the links. Nothing connects before [Bridge.Run].
func New(cfg Config) (*Bridge, error) {
	if cfg.Records == nil || cfg.Dial == nil {
		return nil, errors.New("mew: config is incomplete")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Retry, cfg.MaxRetry = cmp.Or(cfg.Retry, time.Second), cmp.Or(cfg.MaxRetry, time.Minute)
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	for _, l := range cfg.Links {
		made, err := b.newLink(l)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", l.Name, err)
		}
		b.links = append(b.links, made)
	}
	return b, nil
}

// Run keeps every link connected until ctx ends, and returns when all has stopped.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range b.links {
		g.Go(func() error { return l.run(ctx) })
	}
	if len(b.links) > 0 {
		g.Go(func() error { b.follow(ctx); return nil })
	}
	return g.Wait()
}

// Links says how the links stand.
func (b *Bridge) Links() []bridge.LinkStatus {
	out := make([]bridge.LinkStatus, 0, len(b.links))
	for _, l := range b.links {
		out = append(out, l.Status())
	}
	return out
}

// Spaces returns the spaces behind the links.
func (b *Bridge) Spaces() []*Link { return b.links }

// Link returns a link by its name, nil if there is none.
func (b *Bridge) Link(name string) *Link {
	for _, l := range b.links {
		if l.cfg.Name == name {
			return l
		}
	}
	return nil
}

// Test connects a link and says what is wrong with it. A link that stands is not disturbed: a second connection would
// take its place (MEW-J5).
func (b *Bridge) Test(ctx context.Context, name string) error {
	l := b.Link(name)
	if l == nil {
		return errors.New("there is no such link")
	}
	if l.Status().State == bridge.LinkUp {
		return nil
	}
	return l.space.try(ctx)
}

// Deliver implements [bridge.Transport].
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	l, peer, err := b.linkOf(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	return l.deliver(ctx, peer, d)
}

// Principal is who access rules act on for everybody in the space behind a link (MEW-L2).
func Principal(link string) string { return Kind + ":" + link }

// socketTarget is where a link connects: a bare URL means /ws?space= (MEW-L1).
func socketTarget(l bridge.Link) (*url.URL, error) {
	u, err := url.Parse(l.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("url must be wss://host")
	}
	switch u.Scheme {
	case "wss":
	case "ws":
		if !httpapi.LoopbackHost(u.Hostname()) && l.Options["allow_insecure"] != "true" {
			return nil, errors.New("url must be wss: over ws everybody on the way reads along and holds your token (options.allow_insecure)")
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

// Losses is what a mesh.message loses as a chat; docs/bridges/mew.md has the whole list.
func Losses() []bridge.Loss {
	return []bridge.Loss{
		{Field: "payload.message.priority", Reason: "a chat has none"},
		{Field: "payload.message.reply_requested", Reason: "a chat has no such mark"},
		{Field: "payload.metadata", Reason: "extensions are not said in a space"},
	}
}

// LinkKind declares links of this kind to the node.
func LinkKind() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "limits", "tools", "broadcast", "transit"}, Intents: Intents}
}
