package mess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// Kind is the kind of our addresses and links.
const Kind = "mess"

// Intent is the intent of AgentMesh messages with MESS requests and updates (MESS section 12).
const Intent wire.Intent = "com.github.teaguesterling.mess.request"

// Config is the configuration of a bridge. Exchange, Store and Mesh are required.
type Config struct {
	Exchange *exchange.Exchange
	Serve    bool   // let strangers reach the exchange
	Local    bool   // the node serves this machine only: the local profile (AM-82)
	URL      string // the public URL of the listener
	Mirror   string // directory of the thread files; "" for none (MESS-51)

	Links  []bridge.Link
	Tokens map[string]client.Credential // tokens of the links, by the name of the link

	Mesh    bridge.Mesh
	Names   owner.Names // the names under which the owner sees agents; nil without a node
	Notices *notify.Box
	Store   store.Store
	HTTP    *client.HTTP // for links over REST, and for fetches
	Logger  *slog.Logger
}

// Agent is an agent that the directory lists.
type Agent struct {
	ID   wire.AgentID `json:"agent_id"`
	Name string       `json:"name,omitempty"`
}

// Bridge connects a MESS exchange, which passes requests for work to executors, to the mesh. It offers threads (the
// requests) to agents and to the owner, accepts requests from agents, and runs the links to foreign exchanges. [New]
// starts nothing; [Bridge.Run] does.
type Bridge struct {
	bridge.Switch
	cfg     Config
	x       *exchange.Exchange
	server  *rest.Server
	log     *slog.Logger
	records store.Records
	links   bridge.LinkSet[*link]
	mirror  *folder.Mirror
}

// New returns a bridge. It fails if the configuration is incomplete.
func New(cfg Config) (*Bridge, error) {
	if cfg.Exchange == nil || cfg.Store == nil || cfg.Mesh == nil {
		return nil, errors.New("mess: the configuration lacks Exchange, Store or Mesh")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	b := &Bridge{cfg: cfg, x: cfg.Exchange, log: cfg.Logger, records: cfg.Store.Records()}
	b.Serve(cfg.Serve)
	b.server = &rest.Server{
		Exchange: b.x, Local: cfg.Local, Log: b.log, Names: cfg.Names, Withdraw: b.withdrawRegistration,
	}
	b.x.Work.Add(work.Queue{NS: exchange.NSNotices, Max: maxCalls, PerParty: maxCallsPerParty, Do: b.workNotice})
	b.x.Work.Add(work.Queue{NS: nsControl, Max: maxCalls, PerParty: maxCallsPerParty, Do: b.workControl})
	b.registerResolvers()
	if cfg.Mirror != "" {
		b.mirror = folder.NewMirror(b.x, cfg.Mirror, b.log)
		b.x.Mirror = b.mirror.Schedule
	}
	b.x.WantsNotices, b.x.Executors.Ask = b.wantsNotices, b.askRegistration
	return b, bridge.PutLinks(b, cfg.Links, cfg.Tokens)
}

// PutLink adds a link, or replaces the one with the same name.
func (b *Bridge) PutLink(l bridge.Link, token client.Credential) error {
	for key, value := range l.Options {
		if valid := key == "as" || key == "git" && (value == "true" || value == "false"); !valid {
			return fmt.Errorf("link %s: the only options are as: NAME, and git: true or false", l.Name)
		}
	}
	b.links.Put(newLink(LinkConfig{
		Link: l, Token: token, Home: b.x, Records: b.records, Mesh: b.cfg.Mesh, Notices: b.cfg.Notices,
		HTTP: b.cfg.HTTP, Logger: b.cfg.Logger, Offer: b.offerTo,
	}))
	return nil
}

// RemoveLink stops a link and removes it.
func (b *Bridge) RemoveLink(name string) { b.links.Remove(name) }

// Mount adds the routes for strangers.
func (b *Bridge) Mount(e *echo.Echo) { b.server.Mount(e, b.Guard) }

// The owner's operations with JSON bodies of the bridge.
var (
	SendThrough    = owner.Endpoint[owner.None, SentTo]{Method: http.MethodPost, Path: "/mess/send/:ref/:link", Right: owner.Decide}
	FetchReference = owner.Endpoint[FetchCall, Fetched]{Method: http.MethodPost, Path: "/mess/fetch/:ref", Right: owner.Decide}
)

// Operations returns the routes for the owner.
func (b *Bridge) Operations() []owner.Operation {
	return append(b.server.Operations(),
		SendThrough.Serve(b.sendThrough), FetchReference.Serve(b.ownerFetch),
		owner.Raw(http.MethodPost, "/mess/send/:link", owner.Decide, b.requestThrough))
}

// Run runs the exchange, the mirror and the links until ctx ends.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.x.Run(ctx) })
	if b.mirror != nil {
		g.Go(func() error { return b.mirror.Run(ctx) })
	}
	g.Go(func() error { return b.links.Run(ctx) })
	return g.Wait()
}

// Exchange returns the exchange behind the bridge.
func (b *Bridge) Exchange() *exchange.Exchange { return b.x }

// LinkKind describes MESS links to the node.
func LinkKind() bridge.Kind {
	return bridge.Kind{
		Name: Kind, Intents: string(Intent), Native: true, Repeatable: true, Receipts: "ack",
		Silence: map[wire.Intent]time.Duration{Intent: 90 * 24 * time.Hour}, // long, because the timing of the thread ends the conversation (MESS section 12)
	}
}
