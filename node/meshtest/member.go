package meshtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Member is a node of the mesh.
type Member struct {
	*node.Node
	Name    string
	URL     string      // the node's endpoint
	Store   store.Store // reports commits to this member's node
	Notices *notify.Box
	Public  http.Handler // the endpoint and the other public routes
	Owner   http.Handler // the owner API, under /owner
	Agent   http.Handler // the agent's door (docs/glossary.md), under /owner

	t    testing.TB
	stop func() // stops the node and its listener
}

// Node makes a node that is registered at the directory, and starts it unless the mesh is [InMemory]. The node accepts
// messages from everyone unless configure changes that, and stops with the test.
func (m *Mesh) Node(name string, configure func(*node.Config)) *Member {
	m.t.Helper()
	mem := m.newMember(name, Store(m.t), configure)
	if _, err := mem.Registrar().Register(context.Background(), ""); err != nil {
		m.t.Fatalf("register node %s: %v", name, err)
	}
	if m.inProcess == nil {
		mem.Start()
	}
	return mem
}

// Restart stops a member and returns a new one over the same store, as after a restart of its process. It starts
// the new member unless the mesh is [InMemory].
func (m *Mesh) Restart(old *Member, configure func(*node.Config)) *Member {
	m.t.Helper()
	old.Stop()
	mem := m.Copy(old, configure)
	if m.inProcess == nil {
		mem.Start()
	}
	return mem
}

// Copy returns a new member over the same store without starting it. It does not stop the old member, so the store is
// as if the old process had been killed.
func (m *Mesh) Copy(old *Member, configure func(*node.Config)) *Member {
	m.t.Helper()
	s := old.Store
	if o, ok := s.(*store.Observed); ok {
		s = o.Store // a new process does not see the old one's commits
	}
	return m.newMember(old.Name, s, configure)
}

// Process makes a process of the node called name over the store s, without starting it. All processes of a node have
// the card of the first process. For the first process itself, first is nil. configure must not be nil.
func (m *Mesh) Process(name string, s store.Store, first *Member, configure func(*node.Config)) *Member {
	m.t.Helper()
	return m.newMember(name, s, func(cfg *node.Config) {
		if first != nil {
			cfg.Identity.Card = first.Card()
		}
		configure(cfg)
	})
}

// newMember makes a node without starting it.
func (m *Mesh) newMember(name string, s store.Store, configure func(*node.Config)) *Member {
	m.t.Helper()
	mem := &Member{Name: name, Store: s, t: m.t, URL: deadURL + node.Path, stop: func() {}}
	var l net.Listener
	if m.inProcess == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			m.t.Fatal(err)
		}
		mem.URL = "http://" + l.Addr().String() + node.Path
	}
	if m.wire != nil {
		mem.URL = m.wire.url(name) + node.Path
	}
	mem.Notices = notify.New(notify.Config{Records: s.Records()})
	cfg := node.Config{
		Store: s, Directories: []*client.Directory{m.Directory()}, Credential: client.Credential("credential-of-" + name),
		HTTP: m.http, Identity: node.Identity{Key: Key(name), Card: m.addAgeKey(name, Card(m.t, name, mem.URL))}, Age: []*signing.PrivateKey{m.Age(name)},
		Policy: acl.Policy{Mode: acl.Open}, Rates: acl.DefaultRates(), Notices: mem.Notices,
		Logger: slog.New(slog.NewTextHandler(testLog{m.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if configure != nil {
		configure(&cfg)
	}
	mem.Store = store.Observe(cfg.Store)
	cfg.Store = mem.Store
	var err error
	if mem.Node, err = node.New(context.Background(), cfg); err != nil {
		m.t.Fatalf("start node %s: %v", name, err)
	}
	edge := httpapi.New(httpapi.Config{Local: true})
	mem.Mount(edge.Echo(), edge.Addresses())
	mem.Public = apitest.Check(m.t, edge.Handler())
	private := httpapi.NewOwner(httpapi.OwnerConfig{})
	owner.Mount(private.Group(), mem.OwnerAPI().Operations()...)
	owner.MountAgent(private.AgentGroup(), mem.OwnerAPI().Operations()...)
	mem.Owner, mem.Agent = private.Handler(), private.AgentHandler()
	if l != nil {
		srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: mem.Public}}
		srv.Start()
		mem.stop = srv.Close
		m.t.Cleanup(mem.Stop)
	}
	return mem
}

// addAgeKey adds the age recipient of name to a card.
func (m *Mesh) addAgeKey(name string, card wire.Card) wire.Card {
	meta := wire.Obj(wire.Member{Key: "age_recipient", Value: wire.Text(m.Age(name).PublicText())})
	card, err := wire.ParseCard(card.Tree.With("metadata", meta), wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		m.t.Fatalf("card of %s: %v", name, err)
	}
	return card
}

// Start runs the node until [Member.Stop] or the end of the test.
func (m *Member) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	runErr := make(chan error, 1)
	go func() { runErr <- m.Run(ctx) }()
	stopListener := m.stop
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-runErr; err != nil {
			m.t.Errorf("node %s: %v", m.Name, err)
		}
		stopListener()
	})
	m.t.Cleanup(m.stop)
}

// Stop stops the node and then its listener. It may be called more than once.
func (m *Member) Stop() { m.stop() }

// Post posts a message to the endpoint without a socket.
func (m *Member) Post(body []byte) Answer {
	m.t.Helper()
	return post(m.t, m.Public, body)
}

// PostTo posts a message to a handler without a socket.
func PostTo(t testing.TB, h http.Handler, body []byte) Answer {
	t.Helper()
	return post(t, apitest.Check(t, h), body)
}

func post(t testing.TB, h http.Handler, body []byte) Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+node.Path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.InProcess(h).RoundTrip(req)
	if err != nil {
		t.Fatalf("post: %v", err)
	}
	return readAnswer(t, resp)
}

// Call makes a request to the member's owner API and returns the status. If the status is below 300 and dst is not nil,
// Call decodes the response into dst.
func (m *Member) Call(method, path string, body, dst any) int {
	m.t.Helper()
	var in []byte
	if body != nil {
		var err error
		if in, err = json.Marshal(body); err != nil {
			m.t.Fatal(err)
		}
	}
	a := m.Ask(method, path, in)
	if dst != nil && a.Status < 300 {
		if err := json.Unmarshal(a.Body, dst); err != nil {
			m.t.Fatalf("%s %s: %s: %v", method, path, a.Body, err)
		}
	} else if a.Status >= 300 {
		m.t.Logf("%s %s: %d %s", method, path, a.Status, a.Body)
	}
	return a.Status
}

// CallAgent is [Member.Call] through the agent's door.
func (m *Member) CallAgent(method, path string, body, dst any) int {
	m.t.Helper()
	agent := *m
	agent.Owner = m.Agent
	return agent.Call(method, path, body, dst)
}

// Ask makes a request to the member's owner API with body byte for byte; nil sends no body.
func (m *Member) Ask(method, path string, body []byte) Answer {
	m.t.Helper()
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(m.t.Context(), method, "http://localhost/owner"+path, in)
	if err != nil {
		m.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.InProcess(m.Owner).RoundTrip(req)
	if err != nil {
		m.t.Fatalf("%s %s: %v", method, path, err)
	}
	return readAnswer(m.t, resp)
}

// testLog writes log lines to the test's log.
type testLog struct{ t testing.TB }

var _ io.Writer = testLog{}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}
