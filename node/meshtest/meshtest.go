// Package meshtest runs a whole mesh inside one test process: a directory and nodes with real handlers, real bbolt
// files and real HTTP on loopback, and strangers that sign and post what the test wants.
//
// Every public response is checked against openapi.yaml. The package is for tests only. Start with [New], or with
// [InMemory] inside a synctest bubble, and add members with [Mesh.Node] and [Mesh.Stranger]. Signing keys are derived
// from names, so a member has the same id in every run.
package meshtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Main runs the tests of a package for TestMain, and returns the exit code. More parallel tests run at once than there are
// processors, because they mostly wait; the flag -parallel overrides the number. Commits do not wait for the disk.
func Main(m *testing.M) int {
	flag.Set("test.parallel", "8")
	bolt.NoSync = true
	return m.Run()
}

// Mesh is a directory with its users.
type Mesh struct {
	URL    string       // base of the directory, with /v1
	Public http.Handler // the directory's routes

	t         testing.TB
	reg       *directory.Registry
	http      *client.HTTP
	inProcess http.RoundTripper              // reaches the directory; nil means the network
	wire      *wires                         // carries calls to members; nil means the network, or nothing if inProcess is set
	ages      map[string]*signing.PrivateKey // the encryption keys (age), by name
}

// New starts a directory in the local profile.
func New(t testing.TB) *Mesh {
	t.Helper()
	edge := httpapi.New(httpapi.Config{Local: true})
	srv := httptest.NewUnstartedServer(nil)
	m := newMesh(t, "http://"+srv.Listener.Addr().String()+"/v1", edge)
	srv.Config.Handler = m.Public
	srv.Start()
	t.Cleanup(srv.Close)
	return m
}

// InMemory makes a mesh like New, but without a socket, so that a test can use a fake clock. Its members accept what
// [Member.Post] passes them and do no background work until [Member.Start]. The messages that they send to each other
// do not arrive.
func InMemory(t testing.TB) *Mesh {
	t.Helper()
	edge := httpapi.New(httpapi.Config{Local: true})
	m := newMesh(t, "http://localhost/v1", edge)
	m.inProcess = client.InProcess(m.Public)
	return m
}

func newMesh(t testing.TB, base string, edge *httpapi.Server) *Mesh {
	m := &Mesh{t: t, URL: base, Public: apitest.Check(t, edge.Handler()), ages: make(map[string]*signing.PrivateKey), http: client.NewHTTP(client.HTTPConfig{Local: true})}
	t.Cleanup(m.http.Close)
	m.reg = directory.New(directory.Config{Store: Store(t), BaseURL: m.URL, Local: true, Addresses: edge.Addresses()})
	m.reg.Mount(edge.Echo())
	return m
}

// Store opens an empty bbolt store that closes with the test.
func Store(t testing.TB) store.Store {
	t.Helper()
	s, err := bolt.Open(context.Background(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{})
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// Key returns the signing key that is derived from a name.
func Key(name string) *signing.PrivateKey {
	seed := sha256.Sum256([]byte("agentmesh test key " + name))
	return signing.NewEd25519FromSeed(seed[:])
}

// Age returns the encryption key (age) of a name, the same for the lifetime of the mesh.
func (m *Mesh) Age(name string) *signing.PrivateKey {
	m.t.Helper()
	if m.ages[name] == nil {
		text, _, err := signing.GenerateAge()
		if err != nil {
			m.t.Fatal(err)
		}
		if m.ages[name], err = signing.ParsePrivateKey([]byte(text)); err != nil {
			m.t.Fatal(err)
		}
	}
	return m.ages[name]
}

// Card returns a card for name at endpoint, with the standard intents.
func Card(t testing.TB, name, endpoint string, capabilities ...string) wire.Card {
	t.Helper()
	key := Key(name)
	if len(capabilities) == 0 {
		capabilities = []string{"testing"}
	}
	tree := wire.Obj(
		wire.Member{Key: "agentmesh", Value: wire.Text(wire.Version)},
		wire.Member{Key: "agent_id", Value: wire.Text(string(key.Public().AgentID()))},
		wire.Member{Key: "name", Value: wire.Text(name)},
		wire.Member{Key: "endpoint", Value: wire.Text(endpoint)},
		wire.Member{Key: "public_key", Value: wire.Text(key.PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts(capabilities)},
		wire.Member{Key: "intents", Value: wire.Texts(wire.StandardIntents())},
	)
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		t.Fatalf("card of %s: %v", name, err)
	}
	return card
}

// Directory returns a client of the mesh's directory.
func (m *Mesh) Directory() *client.Directory { return client.NewDirectory(m.URL, m.http, m.inProcess) }

// Register registers a card at the directory.
func (m *Mesh) Register(name string, card wire.Card) {
	m.t.Helper()
	m.register(name, card, "credential-of-"+name)
}

func (m *Mesh) register(name string, card wire.Card, credential string) {
	m.t.Helper()
	_, _, err := m.Directory().Register(context.Background(), card.Tree, client.Credential(url.QueryEscape(credential)), Key(name))
	if err != nil {
		m.t.Fatalf("register %s: %v", name, err)
	}
}

// CredentialOf returns the directory's name for the credential of a card, for a node in the directory's process.
func (m *Mesh) CredentialOf(ctx context.Context, id wire.AgentID) (string, error) {
	return m.reg.CredentialOf(ctx, id)
}

// Import adds the card of a node as the operator's import does, which accepts any id. So a test can have a card that
// was registered before derived ids were reserved for their keys, or at a directory that does not check ids. The node
// called name owns the card.
func (m *Mesh) Import(name string, card wire.Card) {
	m.t.Helper()
	owner := credential.HashOf(string(registration.Credential(client.Credential("credential-of-"+name), m.Directory())))
	now := time.Now()
	line := directory.CardExport{
		Card: card.Tree, Owner: hex.EncodeToString(owner[:]), Registered: now, Updated: now, Expires: now.Add(24 * time.Hour), Meta: []byte("{}"),
	}
	result, err := m.reg.Import(context.Background(), []directory.CardExport{line}, "test", "test")
	if err != nil || result.Added != 1 {
		m.t.Fatalf("import %s: %+v, %v", name, result, err)
	}
}
