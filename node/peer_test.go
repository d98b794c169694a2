package node_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// peer is an agent whose endpoint answers as the test wants.
type peer struct {
	*meshtest.Stranger
	serves bool // serves the well-known document of AM-81

	mu     sync.Mutex
	answer func(w http.ResponseWriter, m wire.Message)
	seen   []wire.Message
}

func newPeer(t *testing.T, mesh *meshtest.Mesh, name string) *peer {
	t.Helper()
	p := &peer{Stranger: mesh.Stranger(name)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if p.serves && r.URL.Path == "/.well-known/agentmesh.json" {
				fmt.Fprintf(w, `{"agentmesh":"0.1.0","agent_id":%q}`, p.ID)
				return
			}
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		tree, err := wire.ParseObject(body)
		if err != nil {
			t.Errorf("peer got %q: %v", body, err)
			return
		}
		m, err := wire.ParseMessage(tree)
		if err != nil {
			t.Errorf("peer got %s: %v", body, err)
		}
		p.mu.Lock()
		p.seen = append(p.seen, m)
		answer := p.answer
		p.mu.Unlock()
		answer(w, m)
	}))
	t.Cleanup(srv.Close)
	mesh.Register(name, meshtest.Card(t, name, srv.URL+"/agentmesh"))
	return p
}

// answers sets how the peer answers from now on.
func (p *peer) answers(how func(w http.ResponseWriter, m wire.Message)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = how
}

func (p *peer) got() []wire.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// reply returns the peer's answer to m.
func (p *peer) reply(m wire.Message, payload string) wire.Draft {
	d := p.Draft(m.From, m.Intent, payload)
	d.Conversation = m.Conversation
	return d
}

// says returns a handler that answers every message with a signed payload.
func (p *peer) says(payload string) func(http.ResponseWriter, wire.Message) {
	return func(w http.ResponseWriter, m wire.Message) { w.Write(p.Sign(p.reply(m, payload))) }
}

func status(code int, header ...string) func(http.ResponseWriter, wire.Message) {
	return func(w http.ResponseWriter, _ wire.Message) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func statusWithBody(code int, body string) func(http.ResponseWriter, wire.Message) {
	return func(w http.ResponseWriter, _ wire.Message) {
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

// message returns a mesh.message to the peer.
func (p *peer) message(t *testing.T, body string) node.Outgoing {
	t.Helper()
	out := to("", "conv_1", body)
	out.To, out.Address = p.ID, ""
	return out
}

// impatient configures a node that waits only briefly for a peer's answer.
func impatient(t *testing.T) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.HTTP = client.NewHTTP(client.HTTPConfig{Local: true, Answer: 500 * time.Millisecond})
		t.Cleanup(cfg.HTTP.Close)
	}
}
