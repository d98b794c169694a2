package agentrelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of our addresses and links.
const Kind = "agentrelay"

// Config is what a bridge is made of.
type Config struct {
	Relay *Relay // hosted here; nil: none

	Links  []bridge.Link
	Tokens map[string]client.Credential // of links, by name
	// Dir is where a link that registered itself keeps its id and token, a file each (AR-51). Required with links.
	Dir string
	// Identity is the age identity that peers encrypt to; empty: what is encrypted cannot be read (AR-48).
	Identity string
	// Node takes foreign messages in. Required with links.
	Node bridge.Receiver
	// Tunnel takes a signed AgentMesh message through the whole receive path (AR-59); nil: none is taken.
	Tunnel func(ctx context.Context, message []byte) (bridge.Outcome, error)
	Store  store.Store
	HTTP   *client.HTTP
	Logger *slog.Logger
}

// Bridge is what a process has of AgentRelay: a relay, links, or both. Making one starts nothing.
type Bridge struct {
	cfg   Config
	log   *slog.Logger
	links []*link
}

// New returns a bridge.
func New(cfg Config) (*Bridge, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	if len(cfg.Links) > 0 && (cfg.Node == nil || cfg.Store == nil || cfg.HTTP == nil || cfg.Dir == "") {
		return nil, errors.New("agentrelay: config is incomplete")
	}
	for _, l := range cfg.Links {
		made, err := b.newLink(l)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", l.Name, err)
		}
		b.links = append(b.links, made)
	}
	return b, nil
}

// Mount adds what strangers call, where a relay is hosted.
func (b *Bridge) Mount(e *echo.Echo) {
	if b.cfg.Relay != nil {
		b.cfg.Relay.Mount(e)
	}
}

// Operations returns the owner's part.
func (b *Bridge) Operations() []owner.Operation {
	if b.cfg.Relay == nil {
		return b.linkOperations()
	}
	return append(b.cfg.Relay.Operations(), b.linkOperations()...)
}

// Run works until ctx ends, and returns when everything has stopped.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if b.cfg.Relay != nil {
		g.Go(func() error { return b.cfg.Relay.Run(ctx) })
	}
	for _, l := range b.links {
		g.Go(func() error { return l.run(ctx) })
	}
	return g.Wait()
}

// Links says how the links stand.
func (b *Bridge) Links() []bridge.LinkStatus {
	out := make([]bridge.LinkStatus, 0, len(b.links))
	for _, l := range b.links {
		out = append(out, l.status())
	}
	return out
}

// Test connects a link as if for the first time and says what is wrong with it. A link that is up is not disturbed:
// a second connection would end its first (AR-13). A link that is down connects again when the test succeeds.
func (b *Bridge) Test(ctx context.Context, name string) error {
	l, err := b.link(name)
	if err != nil {
		return err
	}
	if l.status().State == bridge.LinkUp {
		return nil
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	conn.Abort()
	finish(conn)
	select {
	case l.again <- struct{}{}:
	default:
	}
	return nil
}

func (b *Bridge) link(name string) (*link, error) {
	for _, l := range b.links {
		if l.cfg.Name == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("there is no link %s", name)
}

// Deliver carries a message of the node to the peer that its address names.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	to, err := bridge.ParseAddress(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	l, err := b.link(to.Link)
	if err != nil {
		return bridge.Delivered{}, err
	}
	if !ValidAgentID(to.Peer) || to.Peer == relayID || strings.Contains(to.Peer, everybody) {
		return bridge.Delivered{}, errors.New("the address names no agent of a relay")
	}
	return l.deliver(ctx, to, d)
}
