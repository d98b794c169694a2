package agentrelay

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/link"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of AgentRelay addresses and links.
const Kind = link.Kind

// Config configures a bridge.
type Config struct {
	Relay *relay.Relay // the relay that this process may host; nil: none
	Serve bool         // host Relay

	Links   []bridge.Link
	OwnLink string                       // name of a link to Relay; "": none
	Tokens  map[string]client.Credential // of the links, by name of the link
	// Dir is where a link that registered itself stores its id and token, in one file per link (AR-51). Required if
	// there are links.
	Dir string
	// Mesh connects the bridge to the node. Mesh, Store and HTTP are required if there are links.
	Mesh  bridge.Mesh
	Store store.Store
	HTTP  *client.HTTP
	// Dial makes the connections of links; nil: HTTP makes them.
	Dial   websocket.Dialer
	Logger *slog.Logger
}

// Bridge is the AgentRelay part of a process: a relay, links, or both. Nothing runs before [Bridge.Run].
type Bridge struct {
	bridge.Switch
	cfg   Config
	links bridge.LinkSet[*link.Link]
}

// LinkKind returns what the node must know about AgentRelay links.
func LinkKind() bridge.Kind { return link.Declare() }

// New returns a bridge with the relay and the links of cfg.
func New(cfg Config) (*Bridge, error) {
	b := &Bridge{cfg: cfg}
	b.Serve(cfg.Serve)
	return b, bridge.PutLinks(b, cfg.Links, cfg.Tokens)
}

// PutLink adds a link, or replaces the one with the same name.
func (b *Bridge) PutLink(l bridge.Link, token client.Credential) error {
	c := link.Config{
		Link: l, Token: token, Dir: b.cfg.Dir, Mesh: b.cfg.Mesh,
		Store: b.cfg.Store, HTTP: b.cfg.HTTP, Dial: b.cfg.Dial, Logger: b.cfg.Logger,
	}
	if b.cfg.Relay != nil && l.Name == b.cfg.OwnLink {
		c.Join = func(ctx context.Context) (frame.Credentials, error) { return b.cfg.Relay.Join(ctx, l.AgentID) }
	}
	made, err := link.New(c)
	if err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	b.links.Put(made)
	return nil
}

// RemoveLink stops a link and removes it.
func (b *Bridge) RemoveLink(name string) { b.links.Remove(name) }

// Mount adds the public routes of the relay.
func (b *Bridge) Mount(e *echo.Echo) {
	if b.cfg.Relay != nil {
		b.cfg.Relay.Mount(e, b.Guard)
	}
}

// Health returns the probe of the relay for /health, or nil if it is not served.
func (b *Bridge) Health() func(context.Context) (any, error) {
	if !b.Serving() {
		return nil
	}
	return func(context.Context) (any, error) { return b.cfg.Relay.Health(), nil }
}

// Operations returns the owner's operations on the links and on the relay.
func (b *Bridge) Operations() []owner.Operation {
	operations := link.Operations(b.link)
	if b.cfg.Relay != nil {
		for _, op := range b.cfg.Relay.Operations() {
			op.Handle = b.Guard(op.Handle)
			operations = append(operations, op)
		}
	}
	return operations
}

// Run runs the relay and the links until ctx ends, and returns when they have stopped.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if b.cfg.Relay != nil {
		g.Go(func() error { return b.RunServing(ctx, b.cfg.Relay.Run) })
	}
	g.Go(func() error { return b.links.Run(ctx) })
	return g.Wait()
}

// Links returns the status of each link.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// Test tests a link, as [link.Link.Test] does.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

func (b *Bridge) link(name string) (*link.Link, error) {
	if l, ok := b.links.Find(name); ok {
		return l, nil
	}
	return nil, fmt.Errorf("there is no link %s", name)
}

// Deliver sends a message of the node to the peer that its address names.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	to, err := bridge.ParseAddress(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	l, err := b.link(to.Link)
	if err != nil {
		return bridge.Delivered{}, err
	}
	return l.Deliver(ctx, to.Peer, d)
}

// Carry sends a signed message to an agent inside a frame, if the owner has assigned the id of that agent to a peer of a
// link. It returns the agent's answer, which is not verified yet. Without such an assignment, carried is false.
func (b *Bridge) Carry(ctx context.Context, to wire.AgentID, message []byte) (answer []byte, carried bool, err error) {
	return link.Carry(ctx, b.links.All(), to, message)
}
