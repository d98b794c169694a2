package registry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	cat, dog = "cat@acme", "dog@acme"
	mine     = "a-bearer-of-my-choosing"
)

func keyOf(name string) string {
	seed := sha256.Sum256([]byte("test " + name))
	return message.Ed25519Prefix + signing.NewEd25519FromSeed(seed[:]).Public().Text64()
}

func register(name, endpoint string) string {
	a, _ := message.ParseName(name)
	return fmt.Sprintf(`{"agent_name":"%s","org":"%s","public_key":"%s","endpoint":"%s"}`, a.Agent, a.Org, keyOf(name), endpoint)
}

// newTestServer returns a registry in the local profile, whose challenges all fail, and a client of it.
func newTestServer(t *testing.T, change func(*Config)) (*Server, testClient) {
	t.Helper()
	cfg := Config{
		Records: meshtest.Store(t).Records(), Local: true, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	s, err := NewServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	edge := httpapi.New(httpapi.Config{Local: true})
	s.Mount(edge.Echo())
	srv := httptest.NewServer(apitest.Check(t, edge.Handler()))
	t.Cleanup(srv.Close)
	return s, testClient{t, srv.URL}
}

type testClient struct {
	t    *testing.T
	base string
}

func (c testClient) do(method, path, token, body string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(got))
}

// cards is a directory of cards that counts requests for a page.
type cards struct {
	list  []wire.Value
	pages atomic.Int64
}

func (d *cards) Search(_ context.Context, q client.Query) (wire.Listing, error) {
	d.pages.Add(1)
	from := 0
	fmt.Sscan(q.Cursor, &from)
	to := min(from+q.Limit, len(d.list))
	l := wire.Listing{Agents: d.list[from:to]}
	if to < len(d.list) {
		l.Cursor = fmt.Sprint(to)
	}
	return l, nil
}

func mustTree(t *testing.T, text string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
