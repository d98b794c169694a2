package moltspeak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of links and addresses of this bridge.
const Kind = "moltspeak"

// InboundLink is the link in the addresses of peers that wrote to our endpoint and are behind no configured link.
const InboundLink = "inbound"

// The intents of what has no standard one. They are supported without standing on the card (§10).
const (
	IntentQuery  wire.Intent = "xyz.moltspeak.query"
	IntentTask   wire.Intent = "xyz.moltspeak.task"
	IntentTool   wire.Intent = "xyz.moltspeak.tool"
	IntentStream wire.Intent = "xyz.moltspeak.stream"
)

// ToolInfo is a tool that peers may list and ask for. Whether a call runs is for the owner (MS-34).
type ToolInfo struct {
	Name        string
	Description string
	Peers       []string // who may call it without the owner: agent@org
}

// Directory is where discover looks, and who is asked for the card of an agent that writes.
type Directory interface {
	Search(ctx context.Context, q client.Query) (wire.Listing, error)
	Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error)
}

// Config is what a bridge needs. Agent, Key, Box, Mesh, Store and HTTP are required.
type Config struct {
	Agent message.Agent // our name; without keys
	Key   *signing.PrivateKey
	Box   *signing.BoxKey

	// Serve answers at /moltspeak/v0.1.
	Serve     bool
	URL       string   // of our endpoint, told to peers; empty: nobody can call back
	Domains   []string // of queries that go to the handler of xyz.moltspeak.query
	Tools     []ToolInfo
	PlainConf []string // peers whose confidential messages may come unencrypted (MS-37)
	Reveal    []string // peers whose personal data reaches the inbox and hooks unmasked
	Origins   []string // of web pages that may open /stream, beside our own
	Addresses *httpapi.Addresses
	Registry  bool // serve the registry façade
	NoAuth    bool // of the façade: take any key from anybody, for development (MS-54)
	Local     bool // the local profile: endpoints on loopback may be called (AM-82)

	// Secret takes a secret of our own organisation from memory (MS-37). Nil refuses them. It must neither store nor
	// log what it gets.
	Secret func(ctx context.Context, from string, p wire.Value) (wire.Value, error)

	// Doubt is told that a peer shows another key than the pinned one, at most once an hour for each. Nil: the log says it.
	Doubt func(ctx context.Context, address bridge.Address)
	// RegistryToken is the bearer that guards our entry in a registry of others, by its base URL.
	RegistryToken func(base string) client.Credential

	Links  []bridge.Link
	Tokens map[string]client.Credential // by link
	Mesh   bridge.Mesh
	Store  store.Store
	HTTP   *client.HTTP
	// Directories are asked in this order. The first one's cards are what our registry serves.
	Directories []Directory
	Logger      *slog.Logger
}

// Bridge is a MoltSpeak agent: our node as the others see it.
type Bridge struct {
	cfg     Config
	records store.Records
	self    message.Agent // with keys

	known     quota.Known     // MS-48
	strangers quota.Strangers // all others: they use up nothing that the known ones need
	pins      *pins
	handshake *handshakes
	streams   *streams
	callbacks chan callback // answers to deliver outside any step
	sockets   *sockets
	registry  *registryServer
	registrar *registrar
	grants    grants

	mu    sync.Mutex
	links map[string]*linkState
}

// New makes a bridge. It starts nothing.
func New(cfg Config) (*Bridge, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if !message.ValidName(cfg.Agent.Agent) || !message.ValidName(cfg.Agent.Org) {
		return nil, errors.New("agent and org must be 1 to 128 of A-Z a-z 0-9 _ -")
	}
	b := &Bridge{
		cfg: cfg, records: cfg.Store.Records(),
		self: message.Agent{
			Agent: cfg.Agent.Agent, Org: cfg.Agent.Org,
			Key: message.SigPrefix + cfg.Key.Public().Text64(), EncKey: "x25519:" + cfg.Box.Public().String(),
		},
		known: quota.NewKnown(), strangers: quota.NewStrangers(),
		handshake: newHandshakes(), streams: newStreams(), sockets: newSockets(),
		callbacks: make(chan callback, 256), links: make(map[string]*linkState),
	}
	b.registry, b.grants = newRegistryServer(cfg, b.challenge), grants{b.records, cfg.Key}
	b.registrar = &registrar{
		links: cfg.Links, http: cfg.HTTP, token: cfg.RegistryToken, told: b.told, log: cfg.Logger, states: make(map[string]RegistryState),
	}
	b.pins = newPins(cfg, &listedKeys{
		registrar: b.registrar, directories: cfg.Directories, quota: quota.NewLookups(), log: cfg.Logger, words: make(map[string]word),
	})
	for _, l := range cfg.Links {
		if l.Name == InboundLink {
			return nil, fmt.Errorf("link %s: the name stands for peers behind no link", l.Name)
		}
		if _, err := Endpoint(l.URL); err != nil {
			return nil, fmt.Errorf("link %s: %w", l.Name, err)
		}
		for key, value := range l.Options {
			if _, named := message.ParseName(value); key == "peer" && !named || key != "peer" && key != "reply_ops" {
				return nil, fmt.Errorf("link %s: options are peer (agent@org) and reply_ops (core)", l.Name)
			}
		}
		b.links[l.Name] = &linkState{Link: l, status: bridge.LinkStatus{Name: l.Name, Kind: Kind, To: l.URL, State: bridge.LinkConnecting, Since: time.Now().UTC()}}
	}
	b.cfg.Tools = slices.DeleteFunc(slices.Clone(cfg.Tools), func(t ToolInfo) bool { return strings.HasPrefix(t.Name, "code.") }) // MS-34
	b.registrar.self = Entry{
		ID: b.self.Name(), AgentName: b.self.Agent, Org: b.self.Org, PublicKey: b.self.Key, Endpoint: cfg.URL, Capabilities: b.capabilities(),
	}
	cfg.Mesh.Asks().Handle(askConsent, consentResolver{b})
	return b, nil
}

// Run delivers answers that come later, forgets strangers, and takes open connections down when ctx ends.
func (b *Bridge) Run(ctx context.Context) error {
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case c := <-b.callbacks:
					b.call(ctx, c)
				}
			}
		})
	}
	work.Go(func() { b.pins.run(ctx) })
	if b.cfg.Registry {
		work.Go(func() { b.registry.proveEndpoints(ctx) })
	}
	if b.cfg.Serve && b.cfg.URL != "" {
		work.Go(func() { b.registrar.run(ctx) })
	}
	<-ctx.Done()
	b.sockets.close()
	work.Wait()
	return nil
}

// Endpoint is where messages to a configured or claimed URL go (MS-49).
func Endpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", errors.New("url must be an absolute http or https URL")
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case strings.HasSuffix(path, "/message"):
	case strings.HasSuffix(path, "/moltspeak/v0.1"):
		path += "/message"
	case strings.HasSuffix(path, "/moltspeak"):
		path += "/v0.1/message"
	case path == "":
		path = "/moltspeak/v0.1/message"
	}
	u.Path = path
	return u.String(), nil
}

// coreOnly reports whether a peer is answered with the nine core operations alone, which is all that the public SDKs can
// read: until the peer itself used another one, and always if its link says so (MS-25).
func (b *Bridge) coreOnly(a message.Agent, p peer) bool {
	return !p.AllOps || slices.ContainsFunc(b.cfg.Links, func(l bridge.Link) bool {
		return l.Options["peer"] == a.Name() && l.Options["reply_ops"] == "core"
	})
}

// hash makes a short name of texts that strangers chose.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// uuid is a version 4 UUID made of a hash, the same at every attempt.
func uuid(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
