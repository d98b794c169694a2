package mess

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of our addresses and links.
const Kind = "mess"

// Intent is what a MESS list travels under between agents (MESS section 12).
const Intent wire.Intent = "com.github.teaguesterling.mess.request"

// Config is what a bridge is made of. Exchange is always there, because links are served through it too; Serve says
// whether strangers reach it.
type Config struct {
	Exchange *Exchange
	Serve    bool
	Local    bool   // the local profile (AM-82)
	URL      string // under which others reach the listener
	Mirror   string // directory of thread files; "" for none (MESS-51)
	Route    bool   // send what nobody here can do to an agent of the directory without asking (MESS-44)
	Notify   bool   // send executors' notifications (MESS-45)

	Links  []bridge.Link
	Tokens map[string]client.Credential // of links, by name

	Node      bridge.Receiver
	Self      func() wire.AgentID
	Sender    Sender // nil: nothing is sent into the mesh
	Directory func(ctx context.Context, capabilities []string) ([]Agent, error)
	Asks      *acl.Asks
	Desk      bridge.Desk // nil: the owner finds threads in lists alone
	Notices   *notify.Box
	Store     store.Store
	HTTP      *client.HTTP
	Logger    *slog.Logger
}

// Agent is one that the directory lists.
type Agent struct {
	ID   wire.AgentID `json:"agent_id"`
	Name string       `json:"name,omitempty"`
}

// Letter is a message of the bridge into the mesh.
type Letter struct {
	To      wire.AgentID
	Address string // of a foreign peer
	Conv    wire.ConversationID
	Intent  wire.Intent
	Payload wire.Value
	Records []store.Change // change in the unit that stores the message, so that it is sent once
}

// Sender sends into the mesh: it is the node. The id is that of the message, "" where the owner is asked first.
type Sender interface {
	SendLetter(ctx context.Context, l Letter) (wire.MessageID, error)
}

// Bridge is the exchange on the mesh: it offers threads to agents and the owner, takes requests of agents, and is the
// client of foreign exchanges. Making one starts nothing.
type Bridge struct {
	cfg   Config
	x     *Exchange
	door  *door
	log   *slog.Logger
	links []*link
	disk  *mirror

	pushes pushes
}

// New returns a bridge.
func New(cfg Config) (*Bridge, error) {
	if cfg.Exchange == nil || cfg.Store == nil {
		return nil, errors.New("mess: config is incomplete")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	b := &Bridge{cfg: cfg, x: cfg.Exchange, log: cfg.Logger, pushes: pushes{http: cfg.HTTP, log: cfg.Logger}}
	b.door = &door{x: b.x, local: cfg.Local}
	if cfg.Asks != nil {
		b.door.ask, b.door.answered = b.askRegistration, b.registrationAnswered
		b.resolvers()
	}
	if cfg.Mirror != "" {
		b.disk = newMirror(b.x, cfg.Mirror, b.log)
		b.x.mirror = b.disk.changed
	}
	b.x.hears = b.hears
	for _, l := range cfg.Links {
		made, err := b.newLink(l)
		if err != nil {
			return nil, err
		}
		b.links = append(b.links, made)
	}
	return b, nil
}

// Mount adds what strangers call.
func (b *Bridge) Mount(e *echo.Echo) {
	if b.cfg.Serve {
		b.door.Mount(e)
	}
}

// Operations returns the owner's part.
func (b *Bridge) Operations() []owner.Operation {
	return append(b.door.operations(),
		owner.Raw(http.MethodPost, "/mess/send/:ref/:link", owner.Send, b.sendThrough),
		owner.Raw(http.MethodPost, "/mess/send/:link", owner.Send, b.requestThrough),
		owner.Raw(http.MethodPost, "/mess/fetch/:ref", owner.Decide, b.ownerFetch))
}

// Run works until ctx ends: deadlines, notices, the mirror and the links.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	defer b.pushes.all.Wait()
	g.Go(func() error { return b.x.Run(ctx) })
	g.Go(func() error { return b.carry(ctx) })
	if b.disk != nil {
		g.Go(func() error { return b.disk.run(ctx) })
	}
	for _, l := range b.links {
		g.Go(func() error { return l.run(ctx) })
	}
	return g.Wait()
}

// Exchange returns the exchange behind the bridge.
func (b *Bridge) Exchange() *Exchange { return b.x }

// LinkKind declares links of this kind to the node.
func LinkKind() bridge.Kind { return bridge.Kind{Name: Kind} }
