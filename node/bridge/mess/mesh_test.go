package mess

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// party is a node with an exchange.
type party struct {
	*lab
	node   *meshtest.Member
	bridge *Bridge
}

// meshHandler hands messages to a bridge, as cmd does it.
type meshHandler struct{ b func() *Bridge }

func (h meshHandler) Handle(ctx context.Context, c node.Call) (node.HookAnswer, error) {
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		return node.HookAnswer{}, err
	}
	answer, err := h.b().Receive(ctx, Incoming{From: c.Message.From, Address: c.Conversation.Address, Conv: c.Message.Conversation, ID: c.Message.ID, Payload: payload})
	if err != nil {
		return node.HookAnswer{Err: Refusal(err)}, nil
	}
	return node.HookAnswer{Payload: &answer}, nil
}

type meshSender struct{ n *node.Node }

func (s meshSender) SendLetter(ctx context.Context, l Letter) (wire.MessageID, error) {
	sent, err := s.n.Send(ctx, node.Outgoing{To: l.To, Address: l.Address, Conv: l.Conv, Intent: l.Intent, Payload: l.Payload, Via: "bridge", Records: l.Records}, 0)
	return sent.MessageID, err
}

// newParty starts a node with a bridge; change sets what a test needs.
func newParty(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config)) *party {
	t.Helper()
	return newPartyWith(t, mesh, name, change, func(*node.Config) {})
}

// newPartyWith is newParty with a node of another configuration.
func newPartyWith(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config), more func(*node.Config)) *party {
	t.Helper()
	p := &party{}
	transports := map[string]bridge.Transport{}
	configure := func(c *node.Config) {
		c.Routes = []node.Route{{Pattern: string(Intent), Name: "mess", Handler: meshHandler{func() *Bridge { return p.bridge }}, Repeatable: true, Receipts: "ack"}}
		c.Transports = transports
		more(c)
	}
	first := mesh.Node(name, configure)
	first.Stop()
	transports[Kind] = lazyTransport{&p.bridge}
	p.node = mesh.Copy(first, configure)
	if _, err := p.node.Register(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	p.lab = labOn(t, p.node.Store)
	cfg := Config{
		Exchange: p.lab.Exchange, Serve: true, Local: true, Node: p.node, Self: p.node.ID, Sender: meshSender{p.node.Node},
		Asks: p.node.Asks(), Desk: p.node, Notices: p.node.Notices, Store: p.node.Store,
	}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.bridge = b
	p.node.Follow(b)
	p.node.Answers(Kind, b)
	p.node.KeepOpen(Intent, 90*24*time.Hour)
	p.node.Start()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("bridge of %s: %v", name, err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

type lazyTransport struct{ b **Bridge }

func (l lazyTransport) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	return (*l.b).Deliver(ctx, d)
}

// eventually waits for something that another goroutine brings about.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("%s did not happen", what)
		}
	}
}

func (p *party) reaches(ref string, code Code) *Thread {
	p.t.Helper()
	eventually(p.t.(*testing.T), ref+" "+string(code), func() bool { return p.thread(ref).Status == code })
	return p.thread(ref)
}

// theirs returns the one thread that came from the mesh.
func (p *party) theirs() string {
	p.t.Helper()
	var ref string
	eventually(p.t.(*testing.T), "a thread from the mesh", func() bool {
		page, err := p.List(context.Background(), Owner("test"), "", position{}, 10)
		if err == nil && len(page.Threads) > 0 {
			ref = page.Threads[0].Ref
		}
		return ref != ""
	})
	return ref
}

// A MESS client of one exchange is served by an executor of another node's exchange, which the directory found, without
// either knowing of AgentMesh: claim, question, answer, result (MESS-44, MESS section 12).
func TestThroughTheMesh(t *testing.T) {
	mesh := meshtest.New(t)
	var agents []Agent
	away := newParty(t, mesh, "away", nil)
	home := newParty(t, mesh, "home", func(c *Config) {
		c.Route = true
		c.Directory = func(_ context.Context, capabilities []string) ([]Agent, error) {
			if len(capabilities) != 1 || capabilities[0] != "vacuum-floor" {
				t.Errorf("the directory is asked for %v", capabilities)
			}
			return agents, nil
		}
	})
	agents = []Agent{{ID: away.node.ID()}}
	away.executor("roomba", "vacuum-floor")
	ref := home.request("client", "{id: vacuum-kitchen, intent: vacuum the kitchen, requires: [vacuum-floor]}")
	there := away.theirs()
	if th := away.thread(there); th.Requester != string(home.node.ID()) || th.Intent != "vacuum the kitchen" {
		t.Fatalf("it arrived as %+v", th)
	}
	away.status("roomba", there, "claimed, eta: 5m")
	if th := home.reaches(ref, Claimed); th.Holder != string(away.node.ID()) {
		t.Errorf("holder = %q", th.Holder)
	}
	away.status("roomba", there, "needs_input, questions: [{field: where, question: Which area?, options: [sink, stove]}]")
	home.reaches(ref, NeedsInput)
	home.do("client", "- reply: {re: vacuum-kitchen, answers: {where: sink}}")
	away.reaches(there, InProgress)
	away.do("roomba", "- response: {re: "+there+", content: [{confirmation: true}, clean]}")
	home.reaches(ref, Completed)
	messages, err := home.Messages(t.Context(), ref)
	if err != nil || !strings.Contains(string(messages[len(messages)-1].Mess.JSON()), "clean") {
		t.Errorf("messages = %+v, %v", messages, err)
	}
	for name, p := range map[string]*party{"home": home, "away": away} {
		if items, _, err := p.node.Inbox(t.Context(), node.ItemNew, "", 10); err != nil || len(items) != 0 {
			t.Errorf("%s: the inbox has %+v, %v, and nobody there is to do anything", name, items, err)
		}
		convs, err := p.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now())
		if err != nil || len(convs.Conversations) != 1 || convs.Conversations[0].Open {
			t.Errorf("%s has %d conversations, open %v, %v; want one that is closed", name, len(convs.Conversations), convs.Conversations, err)
			continue
		}
		if conv, err := conversations.Decode(convs.Conversations[0]); err != nil || conv.Idle != 90*24*time.Hour {
			t.Errorf("%s: the conversation may be silent for %v, %v", name, conv.Idle, err)
		}
	}
}

// What the requester wants to confirm, or pays for, waits for our owner whatever the policy; the owner's word releases it.
func TestOwnerIsAskedFirst(t *testing.T) {
	mesh := meshtest.New(t)
	away := newParty(t, mesh, "away", nil)
	away.executor("bob")
	home := newParty(t, mesh, "home", func(c *Config) {
		c.Directory = func(context.Context, []string) ([]Agent, error) {
			return []Agent{{ID: away.node.ID(), Name: "Away"}}, nil
		}
	})
	ref := home.request(ownerID, "{intent: move the piano, compensation: {shells: 5}}")
	home.decide(askRoute, acl.Approve)
	there := away.theirs()
	away.reaches(there, Held)
	away.refuse(404, "bob", "- status: {re: "+there+", code: claimed}")
	home.reaches(ref, Held)
	away.decide(askHeld, acl.Approve)
	away.reaches(there, Received)
	away.status("bob", there, "needs_confirmation, action: through the window")
	home.reaches(ref, NeedsConfirmation)
	home.decide(askConfirm, acl.Approve)
	away.reaches(there, InProgress)
	away.status("bob", there, "failed, reason: too heavy")
	if th := home.reaches(ref, Failed); th.Holder != string(away.node.ID()) {
		t.Errorf("holder = %q", th.Holder)
	}
}

// A link over REST: our request goes to a foreign exchange, its progress and result come back.
func TestRESTLink(t *testing.T) {
	foreign := newSite(t, nil)
	us, bob := foreign.register("us"), foreign.register("bob")
	mesh := meshtest.New(t)
	home := newParty(t, mesh, "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: foreign.srv.URL}}
		c.Tokens = map[string]client.Credential{"garden": client.Credential(us)}
	})
	ref := home.request(ownerID, "{id: water, intent: water the roses}")
	address := bridge.Address{Kind: Kind, Link: "garden", Peer: exchangeID}
	if err := home.bridge.offerTo(t.Context(), ref, string(address.Pseudonym()), address.String(), nil); err != nil {
		t.Fatal(err)
	}
	var there string
	eventually(t, "the request over there", func() bool {
		list, _ := foreign.want(200, bob, "GET", "requests", "").Get("threads")
		if list.Len() == 1 {
			there = list.At(0).GetStr("ref")
		}
		return there != ""
	})
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"claimed"}`)
	home.bridge.links[0].poke()
	home.reaches(ref, Claimed)
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"needs_input","message":"how much?"}`)
	home.bridge.links[0].poke()
	home.reaches(ref, NeedsInput)
	remote := home.bridge.links[0].remote.(*restRemote)
	remote.mu.Lock()
	remote.me = "" // as after a restart: what we say comes back, and is not somebody's
	remote.mu.Unlock()
	home.do(ownerID, "- reply: {re: water, answers: {amount: a lot}}")
	eventually(t, "the answer over there", func() bool { return foreign.thread(there).Status == InProgress })
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet"]}}]}`)
	home.bridge.links[0].poke()
	home.reaches(ref, Completed)
	if convs, err := home.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now()); err != nil || len(convs.Conversations) != 1 {
		t.Errorf("%d conversations, %v", len(convs.Conversations), err)
	}
	if n := strings.Count(home.said(ref), "a lot"); n != 1 {
		t.Errorf("the answer is in the thread %d times", n)
	}
	if err := home.bridge.Test(t.Context(), "garden"); err != nil {
		t.Errorf("Test: %v", err)
	}
	if links := home.bridge.Links(); len(links) != 1 || links[0].State != bridge.LinkUp || links[0].Peers == 0 {
		t.Errorf("links = %+v", links)
	}
	foreign.srv.Close()
	if err := home.bridge.Test(t.Context(), "garden"); err == nil {
		t.Error("a closed exchange passes the test")
	}
}

// A link over a directory: a request that others put there reaches our owner's exchange, and what is done here is
// written there.
func TestDirectoryLink(t *testing.T) {
	dir := t.TempDir()
	mesh := meshtest.New(t)
	home := newParty(t, mesh, "home", func(c *Config) {
		c.Links = []bridge.Link{{Name: "shed", Kind: Kind, Dir: dir, Options: map[string]string{"as": "us"}}}
	})
	home.executor("bob")
	others := &dirRemote{dir: dir, name: "neighbour"}
	there, err := others.create(t.Context(), mustParse(t, "- request: {id: saw, intent: lend me a saw}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	home.bridge.links[0].poke()
	ref := home.theirs()
	if th := home.thread(ref); th.Intent != "lend me a saw" || !strings.HasPrefix(th.Requester, "am_") {
		t.Fatalf("it came in as %+v", th)
	}
	home.status("bob", ref, "claimed")
	state := func() Code {
		root, err := openLayout(others.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		f, err := others.load(root, there)
		if err != nil {
			return ""
		}
		return f.thread.Status
	}
	eventually(t, "the claim in the directory", func() bool { return state() == Claimed })
	if err := others.say(t.Context(), there, mustParse(t, "- cancel: {re: x, reason: found mine}")); err != nil {
		t.Fatal(err)
	}
	home.bridge.links[0].poke()
	home.reaches(ref, Cancelled)
}

// suiteBridge is the bridge as the common suite sees it: its link leads to a foreign side that the test plays.
type suiteBridge struct {
	*Bridge
	fake *fakeRemote
}

func (b *suiteBridge) Inject(ctx context.Context, peer string, raw []byte) {
	block, err := Parse(raw)
	if err != nil {
		return
	}
	l := b.links[0]
	in, err := l.inbound(peer, digestOf(block.Tree()), block)
	if err != nil {
		return
	}
	in.Records = l.change(string(in.MessageID), knownThread{Conv: string(in.ConvID)})
	_, _ = l.b.cfg.Node.Accept(ctx, in)
}

func (b *suiteBridge) Next(ctx context.Context, _ string) ([]byte, error) {
	select {
	case raw := <-b.fake.got:
		return raw, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *suiteBridge) Mirror(raw []byte) []byte { return raw }
func (b *suiteBridge) Disconnect()              { b.fake.down.Lock() }
func (b *suiteBridge) Reconnect()               { b.fake.down.Unlock() }

// fakeRemote is a foreign exchange that keeps what it gets.
type fakeRemote struct {
	got  chan []byte
	down sync.Mutex // held while the link is broken
}

func (r *fakeRemote) self(context.Context) string { return "us" }
func (r *fakeRemote) create(_ context.Context, body wire.Value) (string, error) {
	if !r.down.TryLock() {
		return "", &client.SendError{Retry: true}
	}
	defer r.down.Unlock()
	r.got <- Block{{Type: "request", Body: body}}.YAML()
	return "2026-01-31-001", nil
}
func (r *fakeRemote) say(context.Context, string, Block) error        { return nil }
func (r *fakeRemote) changed(context.Context) ([]remoteThread, error) { return nil, nil }
func (r *fakeRemote) view(context.Context, string) (remoteView, error) {
	return remoteView{}, nil
}
func (r *fakeRemote) probe(context.Context) error { return nil }

// The suite that every bridge passes.
func TestBridgeSuite(t *testing.T) {
	address := func(peer string) bridge.Address { return bridge.Address{Kind: Kind, Link: "garden", Peer: peer} }
	var hostiles [][]byte
	for _, text := range hostile() {
		hostiles = append(hostiles, []byte(text))
	}
	hostiles = append(hostiles, []byte("- request: {intent: 3}"), []byte("- status: {re: x}"), []byte("MESS: []"))
	var shared store.Store // of the node that was started last: a bridge keeps its state in the node's steps
	bridgetest.Suite{
		Address:   address,
		Principal: func(peer string) string { return address(peer).String() },
		Peers:     [2]string{"roomba", "household:teague-phone"},
		New: func(t *testing.T, receiver bridge.Receiver) bridgetest.Bridge {
			s := shared
			b, err := New(Config{Exchange: NewExchange(ExchangeConfig{Store: s}), Store: s, Node: receiver,
				HTTP: client.NewHTTP(client.HTTPConfig{Local: true}), Links: []bridge.Link{{Name: "garden", Kind: Kind, URL: "http://127.0.0.1:9"}}})
			if err != nil {
				t.Fatal(err)
			}
			fake := &fakeRemote{got: make(chan []byte, 100)}
			b.links[0].remote = fake
			return &suiteBridge{b, fake}
		},
		Node: func(t *testing.T, cfg bridgetest.NodeConfig) bridgetest.Node {
			s := meshtest.Store(t)
			exchange, err := New(Config{Exchange: NewExchange(ExchangeConfig{Store: s}), Store: s})
			if err != nil {
				t.Fatal(err)
			}
			member := meshtest.New(t).Node("home", func(c *node.Config) {
				c.Policy, c.Rates = cfg.Policy, cfg.Rates
				c.Transports = map[string]bridge.Transport{Kind: cfg.Transport}
				c.Routes = []node.Route{{Pattern: string(Intent), Name: "mess", Handler: meshHandler{func() *Bridge { return exchange }}, Repeatable: true}}
			})
			shared = member.Store
			return bridgetest.Node{Receiver: member, Asks: member.Asks(), Store: member.Store}
		},
		Message: func(n int) []byte { return []byte("- request: {id: m" + itoa(n) + ", intent: hello}") },
		Kinds: []bridgetest.Kind{{
			Name: "request", Intent: Intent,
			Payload: `{"action":"request","mess":[{"request":{"id":"a","intent":"look\nhere","requires":["x",{"y":{"level":"expert"}}],"own":{"k":[1,2.50]}}}]}`,
		}},
		Hostile: hostiles,
	}.Run(t)
}

// Links to what is no exchange fail in the open: nothing hangs, nothing is taken in.
func TestRubbishExchange(t *testing.T) {
	e := echo.New()
	answers := []string{"", "[]", `{"threads":3}`, `{"threads":[{"ref":"../../x"},{"ref":3},7]}`, strings.Repeat("[", 10_000), `{"thread":{"messages":[{"mess":3}]}}`}
	n := 0
	e.Any("/*", func(c echo.Context) error { n++; return c.String(http.StatusOK, answers[n%len(answers)]) })
	srv := httptest.NewServer(e)
	defer srv.Close()
	r := &restRemote{base: srv.URL, token: "mess_x_1", http: client.NewHTTP(client.HTTPConfig{Local: true})}
	for range 2 * len(answers) {
		if list, err := r.changed(t.Context()); err == nil && len(list) > 0 {
			t.Errorf("threads = %v", list)
		}
		if _, err := r.create(t.Context(), wire.Obj()); err == nil {
			t.Error("a request was made")
		}
	}
	if text := remoteText([]byte(`{"error":"\u001b[31m` + strings.Repeat("x", 500) + `"}`)); len(text) > 200 || strings.ContainsRune(text, 0x1b) {
		t.Errorf("text = %q", text)
	}
}
