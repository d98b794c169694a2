package moltspeak

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/registry"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// Kind is the kind of links and addresses of this bridge.
const Kind = "moltspeak"

// InboundLink is the link name in the addresses of peers that write to our endpoint without a configured link.
const InboundLink = "inbound"

// The intents for MoltSpeak operations that no standard intent of AgentMesh covers. The node supports these intents
// although its card does not list them.
const (
	IntentQuery  wire.Intent = "xyz.moltspeak.query"
	IntentTask   wire.Intent = "xyz.moltspeak.task"
	IntentTool   wire.Intent = "xyz.moltspeak.tool"
	IntentStream wire.Intent = "xyz.moltspeak.stream"
)

// ToolInfo is a tool that peers may list and request to call. The owner decides whether a call runs (MS-34).
type ToolInfo struct {
	Name        string
	Description string
	Peers       []string // agent@org of peers that may call the tool without asking the owner
}

// Directory is a directory of agent cards. The bridge searches it to answer discover messages, and looks up in it the
// card of an agent whose key is not pinned.
type Directory interface {
	Search(ctx context.Context, q client.Query) (wire.Listing, error)
	Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error)
}

// Config is the configuration of a bridge. Agent, Key, Box, Mesh, Store and HTTP are required.
type Config struct {
	Agent message.Agent // our name, without keys
	Key   *signing.PrivateKey
	Box   *signing.BoxKey

	// Serve switches on the endpoint at /moltspeak/v0.1.
	Serve   bool
	URL     string   // URL of our endpoint, as peers see it while we serve; empty if peers cannot call us
	Domains []string // domains whose queries become messages with IntentQuery
	Tools   []ToolInfo
	// PlainConf lists peers that may send us confidential messages unencrypted. Our confidential messages to such a
	// peer are unencrypted if it has no key (MS-37).
	PlainConf []string
	Reveal    []string // peers whose personal data reaches the inbox and hooks unmasked
	Origins   []string // origins of web pages that may open /stream, besides our own
	Addresses *httpapi.Addresses
	Registry  bool // serve the registry
	NoAuth    bool // the registry accepts any key from anybody, for development (MS-54)
	Local     bool // the local profile: the bridge may call endpoints on loopback (AM-82)

	// Secret handles a secret from an agent of our organization (MS-37). It must neither store nor log the secret. A
	// nil Secret refuses all secrets.
	Secret func(ctx context.Context, from string, p wire.Value) (wire.Value, error)

	// OnOtherKey is called if a peer shows a key other than the pinned one, at most once an hour for each peer. If it
	// is nil, the bridge only logs the event.
	OnOtherKey func(ctx context.Context, address bridge.Address)
	// OnBlocked is called if the bridge must not send an answer that the peer waits for, for example because the
	// answer has personal data that no consent covers (MS-40). It is not called again if the peer repeats its
	// message. If it is nil, the bridge only logs the event.
	OnBlocked func(ctx context.Context, address bridge.Address, cause error)
	// RegistryToken returns the bearer token for our entry in a foreign registry, by the base URL of the registry.
	RegistryToken func(base string) client.Credential

	Links  []bridge.Link
	Tokens map[string]client.Credential // by link
	Mesh   bridge.Mesh
	Store  store.Store
	HTTP   *client.HTTP
	// Directories are searched in this order. Our registry serves the cards of the first one.
	Directories []Directory
	Logger      *slog.Logger
}

// Bridge makes our node a MoltSpeak agent.
type Bridge struct {
	bridge.Switch
	cfg     Config
	records store.Records
	self    message.Agent // with keys
	// capabilities are those that our hello, hello_ack and pong messages and our registry entries list.
	capabilities []string

	quotas    quotas
	pins      *pins
	handshake *handshakes
	streams   *streams
	due       *work.Worker // sends later answers to requests for consent; they do not pass through the outbox
	sockets   *sockets
	registry  *registry.Server // nil if it is not served
	registrar *registry.Registrar
	grants    grants
	replays   replays
	links     *links
}

// New returns a bridge. [Bridge.Run] starts it.
func New(cfg Config) (*Bridge, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if !message.ValidName(cfg.Agent.Agent) || !message.ValidName(cfg.Agent.Org) {
		return nil, errors.New("agent and org must each be 1 to 128 characters from A-Z a-z 0-9 _ -")
	}
	cfg.Store = store.Observe(cfg.Store)
	b := &Bridge{
		cfg: cfg, records: cfg.Store.Records(),
		self: message.Agent{
			Agent: cfg.Agent.Agent, Org: cfg.Agent.Org,
			Key: message.Ed25519Prefix + cfg.Key.Public().Text64(), EncKey: "x25519:" + cfg.Box.Public().String(),
		},
		quotas:    quotas{quota.NewKnown(), quota.NewStrangers()},
		handshake: newHandshakes(), streams: newStreams(), sockets: newSockets(),
		links: &links{log: cfg.Logger},
	}
	b.Serve(cfg.Serve)
	b.due = work.New(cfg.Store, store.NewWallClock(cfg.Logger), cfg.Logger)
	b.due.Add(bridge.Queue(nsCallbacks, time.Hour, b.answerConsent))
	b.cfg.Tools = slices.DeleteFunc(slices.Clone(cfg.Tools), func(t ToolInfo) bool { return strings.HasPrefix(t.Name, "code.") }) // code execution is never offered (MS-34)
	b.capabilities = capabilitiesWith(b.cfg.Tools)
	b.grants, b.replays = grants{b.records, cfg.Key}, replays{b.records, cfg.Logger}
	if cfg.Registry {
		registryConfig := registry.Config{Records: b.records, Addresses: cfg.Addresses, NoAuth: cfg.NoAuth, Local: cfg.Local, Logger: cfg.Logger}
		if len(cfg.Directories) > 0 {
			registryConfig.Directory = cfg.Directories[0]
		}
		var err error
		if b.registry, err = registry.NewServer(context.Background(), registryConfig); err != nil {
			return nil, err
		}
	}
	b.registrar = &registry.Registrar{
		Self:  registry.Entry{ID: b.self.Name(), AgentName: b.self.Agent, Org: b.self.Org, PublicKey: b.self.Key, Endpoint: cfg.URL, Capabilities: b.capabilities},
		Links: b.links.configured, HTTP: cfg.HTTP, Token: cfg.RegistryToken, Logger: cfg.Logger,
		Reachable: func(base string) bool { return urlOf(b).reachableFrom(base) != "" },
	}
	b.pins = newPins(cfg, b.links, &listedKeys{
		registrar: b.registrar, directories: cfg.Directories, quota: quota.NewLookups(), log: cfg.Logger, cache: make(map[string]listedKey),
	})
	b.due.Add(work.Queue{NS: nsPeers, Term: termStranger, Max: 4, Ends: true, Do: func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
		return b.pins.workStranger(ctx, rec, time.Now())
	}})
	cfg.Mesh.Asks().Handle(askConsent, consentResolver{b})
	return b, bridge.PutLinks(b, cfg.Links, cfg.Tokens)
}

// Links returns the status of each link.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// Run delivers callbacks, deletes old pins of strangers, and keeps us
// registered in foreign registries, until ctx ends. Then it closes the open connections.
func (b *Bridge) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { b.due.Run(ctx) })
	all.Go(func() { _ = b.links.Run(ctx) }) // fails never
	if b.registry != nil {
		all.Go(func() { b.registry.Reload(ctx) })
	}
	err := b.RunServing(ctx, func(ctx context.Context) error {
		b.sockets.group.Open()
		if b.cfg.URL != "" {
			b.registrar.Run(ctx)
		}
		<-ctx.Done()
		b.sockets.group.Close(stopPatience)
		return nil
	})
	all.Wait()
	return err
}
