package directory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Operations returns the operator's part of the owner API. A test of the package from outside sets it, because the
// operator's package imports this one.
var Operations func(*Registry) []owner.Operation

// The bodies of some operations of the operator.
type (
	orderResult struct {
		Ban     *moderation.Ban
		Removed int
	}
	banList struct {
		Bans []moderation.Ban `json:"items"`
	}
	reportPage struct {
		Reports []Report `json:"items"`
		Next    string
	}
	invite      = credential.Code
	issuedToken struct {
		invite
		Code string
	}
	importOrder struct {
		Cards  []CardExport `json:"cards"`
		Reason string       `json:"reason"`
	}
	tokenList struct {
		Tokens []credential.Code `json:"items"`
	}
)

const testBase = "https://directory.example/v1"

// Credentials in the tests. They need at least 16 characters.
const (
	alice = "alice-credential-1"
	bob   = "bob-credential-22"
)

// world is a directory with its HTTP server over a real database.
type world struct {
	t     testing.TB
	store store.Store
	reg   *Registry
	edge  *httpapi.Server
	owner *httpapi.Owner
}

// newWorld starts a directory in the public profile without limits on addresses. Each change may edit its config.
func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return newWorldOver(t, db, change...)
}

// newWorldOver starts a directory over an existing store.
func newWorldOver(t testing.TB, db store.Store, change ...func(*Config)) *world {
	cfg := Config{Store: db, BaseURL: testBase, Quotas: Quotas{PerToken: -1, PerHost: -1, PerHour: -1}, Site: site.Operator{Name: "Test Directory"}, Version: "v0"}
	for _, f := range change {
		f(&cfg)
	}
	w := &world{t: t, store: db}
	w.edge = httpapi.New(httpapi.Config{Local: cfg.Local, RequestsPerMinute: -1})
	w.owner = httpapi.NewOwner(httpapi.OwnerConfig{})
	w.reg = New(cfg)
	w.reg.Mount(w.edge.Echo())
	owner.Mount(w.owner.Group(), Operations(w.reg)...)
	return w
}

// do sends a request and checks the response against openapi.yaml. header alternates names and values.
func (w *world) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	return send(apitest.Check(w.t, w.edge.Handler()), method, path, body, header...)
}

// send sends a request to h. The header names "Host" and "Remote" set the host and the client address.
func send(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Host = "127.0.0.1:3141"
	for i := 0; i < len(header); i += 2 {
		switch header[i] {
		case "Host":
			r.Host = header[i+1]
		case "Remote":
			r.RemoteAddr = header[i+1]
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// withBearer returns the header of a request with this bearer token.
func withBearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// register registers a card and fails the test if that is refused.
func (w *world) register(token string, card wire.Value) {
	w.t.Helper()
	if got := w.do("POST", "/v1/agents", string(card.JSON()), withBearer(token)...); got.Code != http.StatusCreated {
		w.t.Fatalf("register %s = %d %s", card.GetStr("agent_id"), got.Code, got.Body)
	}
}

// want checks the status of a response and, unless code is "", its error code.
func want(t testing.TB, got *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	if got.Code != status || code != "" && code != errorCode(got.Body.Bytes()) {
		t.Errorf("answer = %d %s, want %d %s", got.Code, got.Body, status, code)
	}
}

func errorCode(body []byte) string {
	var doc struct{ Error struct{ Code string } }
	if json.Unmarshal(body, &doc) != nil {
		return ""
	}
	return doc.Error.Code
}

// testKey returns the key that is derived from seed.
func testKey(seed string) *signing.PrivateKey {
	sum := sha256.Sum256([]byte(seed))
	return signing.NewEd25519FromSeed(sum[:])
}

// testCard returns a card. members replace or extend its usual members.
func testCard(id string, members ...wire.Member) wire.Value {
	card := wire.Obj(
		wire.Member{Key: "agentmesh", Value: wire.Text("0.1.0")},
		wire.Member{Key: "agent_id", Value: wire.Text(id)},
		wire.Member{Key: "name", Value: wire.Text("Agent " + id)},
		wire.Member{Key: "endpoint", Value: wire.Text("https://" + strings.ReplaceAll(id, "_", "-") + ".example/agentmesh")},
		wire.Member{Key: "public_key", Value: wire.Text(testKey(id).PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts([]string{"scheduling"})},
		wire.Member{Key: "intents", Value: wire.Texts([]string{"mesh.schedule"})},
	)
	for _, m := range members {
		card = card.With(m.Key, m.Value)
	}
	return card
}

func text(key, value string) wire.Member { return wire.Member{Key: key, Value: wire.Text(value)} }

// proof returns the header of AM-62 for a request.
func proof(key *signing.PrivateKey, method, path, base string, at time.Time, card wire.Value) string {
	stamp := wire.FormatTime(at)
	sig, err := key.Sign(wire.KeyProofText(method, path, base, stamp, signing.Digest(card)))
	if err != nil {
		panic(err)
	}
	return wire.KeyProof{Stamp: stamp, Signature: sig}.Header()
}

// decodeList returns the ids in a list and its cursor.
func decodeList(t testing.TB, rec *httptest.ResponseRecorder) (ids []string, cursor string) {
	t.Helper()
	if rec.Code != http.StatusOK {
		t.Fatalf("list = %d %s", rec.Code, rec.Body)
	}
	doc, err := wire.ParseObject(bytes.Clone(rec.Body.Bytes()))
	if err != nil {
		t.Fatalf("list %s: %v", rec.Body, err)
	}
	agents, _ := doc.Get("agents")
	for a := range agents.Elems() {
		ids = append(ids, a.GetStr("agent_id"))
	}
	return ids, doc.GetStr("cursor")
}

// pollMail polls GET /v1/relay, and returns the items of the page. It returns nothing if ctx ends.
func (w *world) pollMail(ctx context.Context, bearer string, q mailbox.Query) ([]mailbox.Item, error) {
	params := url.Values{"agent_id": {string(q.Box)}, "conversation": {string(q.Conversation)}, "after": {q.After}, "wait": {fmt.Sprint(int(q.Wait.Seconds()))}}
	if q.Limit > 0 {
		params.Set("limit", fmt.Sprint(q.Limit))
	}
	r := httptest.NewRequestWithContext(ctx, "GET", "/v1/relay?"+params.Encode(), nil)
	r.Header.Set("Authorization", "Bearer "+bearer)
	got := httptest.NewRecorder()
	w.edge.Handler().ServeHTTP(got, r)
	var doc struct{ Messages []mailbox.Item }
	err := json.Unmarshal(got.Body.Bytes(), &doc)
	if ctx.Err() != nil {
		return doc.Messages, nil
	}
	if got.Code != http.StatusOK {
		err = fmt.Errorf("poll = %d %s", got.Code, got.Body)
	}
	return doc.Messages, err
}

// countMail returns how much mail waits in all mailboxes together.
func (w *world) countMail() mailbox.Usage {
	w.t.Helper()
	counts, err := w.reg.relay.Counts(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	all, _ := counts.Total(wire.Now())
	return all
}
