package mess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
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
	for _, l := range cfg.Links {
		if err := b.PutLink(l, cfg.Tokens[l.Name]); err != nil {
			return nil, err
		}
	}
	return b, nil
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

// linkOf returns the link to which an address belongs, or nil.
func (b *Bridge) linkOf(address string) *link {
	a, err := bridge.ParseAddress(address)
	if err != nil || a.Kind != Kind {
		return nil
	}
	l, _ := b.findLink(a.Link)
	return l
}

// linkBehind returns the link whose exchange has the foreign thread ref, or nil if t is not our copy of that thread.
func (b *Bridge) linkBehind(ctx context.Context, t *thread.Thread, ref string) (*link, error) {
	for id, p := range t.Peers {
		l := b.linkOf(p.Address)
		if l == nil {
			continue
		}
		if found, err := l.Knows(ctx, id, p.Conv, ref); err != nil || found {
			return l, err
		}
	}
	return nil, nil
}

// Deliver implements [bridge.Transport] for all links.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	l := b.linkOf(d.Address)
	if l == nil {
		return bridge.Delivered{}, fmt.Errorf("mess: there is no link to %s", d.Address)
	}
	return bridge.Delivered{Queued: true}, l.Deliver(ctx, d)
}

// Links returns the state of all links.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// Test asks the exchange of a link for its list, even if the link is down. If that works, a link that is down starts
// again.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

// sendThrough sends a thread to the exchange behind a link.
func (b *Bridge) sendThrough(c echo.Context, _ owner.None) (SentTo, error) {
	l, err := b.findLink(c.Param("link"))
	if err != nil {
		return SentTo{}, err
	}
	ctx := c.Request().Context()
	if _, err := b.x.Thread(ctx, exchange.Owner("cli"), c.Param("ref")); err != nil {
		return SentTo{}, err
	}
	t, sent, err := l.Send(ctx, c.Param("ref"))
	switch {
	case err != nil:
		return SentTo{}, err
	case !sent && t.IsClaimable():
		return SentTo{}, thread.Conflict("the thread is only for another executor")
	case !sent:
		return SentTo{}, thread.Conflict("the thread is %s and cannot be sent now", t.Status)
	}
	return SentTo{Ref: t.Ref, To: l.Address().String()}, nil
}

// SentTo is a thread, and the address of the exchange to which it was sent.
type SentTo struct {
	Ref string `json:"ref"`
	To  string `json:"to"`
}

func (b *Bridge) findLink(name string) (*link, error) {
	l, ok := b.links.Find(name)
	if !ok {
		return nil, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no link " + wire.OneLine(name, 60) + " of kind mess; agentmesh links list names them"}
	}
	return l, nil
}

// requestThrough handles POST /mess/send/:link: it applies a block of the owner. The requests in it are only for the
// exchange of the link. The answer contains the acks, and reports for each request whether it was sent. A request
// that may not be claimed yet is sent as soon as it may.
func (b *Bridge) requestThrough(c echo.Context) error {
	l, err := b.findLink(c.Param("link"))
	if err != nil {
		return err
	}
	block, replay, err := b.server.ReadBlock(c, "send", l.cfg.Name)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	res, err := b.x.Do(ctx, exchange.Owner("cli"), block, exchange.Options{Only: string(l.Address().Pseudonym()), Replay: replay})
	if err != nil {
		return err
	}
	var list []wire.Value
	for _, ref := range requestRefs(res.Answers) {
		t, sent, err := l.Send(ctx, ref)
		if err != nil {
			return err
		}
		list = append(list, wire.Obj(
			wire.TextField("ref", ref), wire.TextField("status", string(t.Status)),
			wire.Field("sent", wire.Bool(sent)),
			wire.Field("later", wire.Bool(!sent && t.Only == string(l.Address().Pseudonym()) && t.Status.Open()))))
	}
	out := wire.Obj(wire.Field("MESS", res.Answers.Tree()), wire.Field("threads", wire.Arr(list...)))
	status := http.StatusOK
	if len(res.Created) > 0 {
		status = http.StatusCreated
	}
	return httpapi.Raw(c, status, append(out.JSON(), '\n'))
}

// requestRefs returns the refs in the acks of requests. An ack names one thread or several (MESS-35).
func requestRefs(acks thread.Block) []string {
	var refs []string
	for _, e := range acks {
		requests, hasSeveral := e.Body.Get("requests")
		if !hasSeveral {
			requests = wire.Arr(e.Body)
		}
		for r := range requests.Elems() {
			// the ref of a message contains a slash, the ref of a thread does not
			if ref := r.GetStr("ref"); e.Type == "ack" && ref != "" && !strings.Contains(ref, "/") {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}
