package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const referenceID = wire.AgentID("am_7f3a2b1c9d4e5f60")

// recorded plays back exchanges of testdata/reference in order, and compares our requests with them.
type recorded struct {
	t     *testing.T
	names []string
}

func (r *recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(r.names) == 0 {
		r.t.Fatalf("unexpected %s %s", req.Method, req.URL)
	}
	name := r.names[0]
	r.names = r.names[1:]
	data, err := os.ReadFile(filepath.Join("testdata", "reference", name+".http"))
	if err != nil {
		r.t.Fatal(err)
	}
	want, answer, _ := bytes.Cut(data, []byte("----\n"))
	lines := strings.Split(strings.TrimSpace(string(want)), "\n")
	if got := req.Method + " " + req.URL.RequestURI(); got != lines[0] {
		r.t.Errorf("%s: sent %s, want %s", name, got, lines[0])
	}
	for _, line := range lines[1:] {
		key, value, _ := strings.Cut(line, ": ")
		if got := req.Header.Get(key); got != value && (value != "*" || got == "") {
			r.t.Errorf("%s: sent %s: %s, want %s", name, key, got, value)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, nil
}

func reference(t *testing.T, exchanges ...string) *Directory {
	t.Helper()
	r := &recorded{t, exchanges}
	t.Cleanup(func() {
		if len(r.names) > 0 {
			t.Errorf("not asked for: %v", r.names)
		}
	})
	return NewDirectory("https://directory.example/v1/", nil, r)
}

var seedKey = signing.NewEd25519FromSeed(bytes.Repeat([]byte{7}, 32))

func testCard(id wire.AgentID, key *signing.PrivateKey) wire.Value {
	return wire.Obj(
		wire.Member{Key: "agentmesh", Value: wire.Text(wire.Version)},
		wire.Member{Key: "agent_id", Value: wire.Text(string(id))},
		wire.Member{Key: "name", Value: wire.Text("Test")},
		wire.Member{Key: "endpoint", Value: wire.Text("https://agent.example/agentmesh")},
		wire.Member{Key: "public_key", Value: wire.Text(key.PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts([]string{"testing"})},
		wire.Member{Key: "intents", Value: wire.Texts(wire.StandardIntents())},
	)
}

// TestReferenceReplacesTheID checks that we continue with the id that the existing directory assigned in place of ours
// (AM-57).
func TestReferenceReplacesTheID(t *testing.T) {
	d := reference(t, "register", "renew", "withdraw")
	cred := Credential("my-own-secret-token")
	reg, card, err := d.Register(t.Context(), testCard("am_mine", seedKey), cred, seedKey)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.Registered{
		AgentID:      referenceID,
		RegisteredAt: time.Date(2026, 2, 19, 10, 30, 0, 123e6, time.UTC),
		ExpiresAt:    time.Date(2026, 3, 21, 10, 30, 0, 123e6, time.UTC),
	}
	if diff := cmp.Diff(want, reg); diff != "" {
		t.Error(diff)
	}
	if got := card.GetStr("agent_id"); got != string(referenceID) {
		t.Errorf("the card has agent_id %s, want the adopted %s", got, referenceID)
	}
	// The answer to PUT has no registered_at.
	reg, err = d.Renew(t.Context(), card, cred, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reg.RegisteredAt.IsZero() || reg.AgentID != referenceID || reg.ExpiresAt.Month() != time.April {
		t.Errorf("Renew() = %+v", reg)
	}
	if err := d.Withdraw(t.Context(), referenceID, cred); err != nil {
		t.Error(err)
	}
}

func TestReferenceErrors(t *testing.T) {
	cred := Credential("my-own-secret-token")
	card := testCard(referenceID, seedKey)
	tests := []struct {
		exchange string
		call     func(d *Directory) error
		want     error
		retry    bool
	}{
		{"renew-wrong-token", func(d *Directory) error { _, err := d.Renew(t.Context(), card, cred, nil); return err }, ErrCredential, false},
		{"renew-unknown", func(d *Directory) error { _, err := d.Renew(t.Context(), card, cred, nil); return err }, ErrUnknownAgent, false},
		{"register-no-token", func(d *Directory) error { _, _, err := d.Register(t.Context(), card, "", nil); return err }, ErrCredential, false},
		{"register-down", func(d *Directory) error { _, _, err := d.Register(t.Context(), card, cred, nil); return err }, ErrRefused, true},
		{"card-unknown", func(d *Directory) error { _, err := d.Card(t.Context(), referenceID); return err }, ErrUnknownAgent, false},
		{"search-limit", func(d *Directory) error { _, err := d.Search(t.Context(), Query{Limit: 101}); return err }, ErrRefused, false},
		{"keys", func(d *Directory) error { _, err := d.Keys(t.Context(), referenceID); return err }, ErrBadAnswer, false},
	}
	for _, tt := range tests {
		t.Run(tt.exchange, func(t *testing.T) {
			err := tt.call(reference(t, tt.exchange))
			e, ok := errors.AsType[*DirectoryError](err)
			if !ok || !errors.Is(err, tt.want) || e.Retry != tt.retry {
				t.Errorf("error %v (retry %v), want %v (retry %v)", err, ok && e.Retry, tt.want, tt.retry)
			}
			if strings.ContainsRune(err.Error(), 0x1b) || strings.Contains(err.Error(), string(cred)) {
				t.Errorf("the error shows what it must not: %q", err)
			}
			if tt.exchange == "register-down" && e.RetryAfter != 7*time.Second {
				t.Errorf("RetryAfter = %v, want 7s", e.RetryAfter)
			}
		})
	}
}

func TestReferencePages(t *testing.T) {
	d := reference(t, "search-page-1", "search-page-2")
	q := Query{Capabilities: []string{"scheduling"}, Limit: 2}
	for i, want := range [][]string{{"am_0000000000000001", "am_0000000000000002"}, nil} {
		page, err := d.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, card := range page.Agents {
			ids = append(ids, card.GetStr("agent_id"))
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Errorf("page %d: %s", i+1, diff)
		}
		q.Cursor = page.Cursor
	}
}

func TestReferenceCard(t *testing.T) {
	card, err := reference(t, "card").Card(t.Context(), referenceID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := wire.ParseCard(card, wire.CardRules{})
	if err != nil || c.Name != "Sarah's Agent" {
		t.Errorf("ParseCard() = %q, %v", c.Name, err)
	}
}

// TestKeyProofs checks what the proofs sign, as a directory sees it (AM-62, AM-60).
func TestKeyProofs(t *testing.T) {
	old, renewed := seedKey, signing.NewEd25519FromSeed(bytes.Repeat([]byte{8}, 32))
	card := testCard("am_mine", renewed)
	var header http.Header
	d := NewDirectory("https://directory.example/mesh/v1", nil, InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		fmt.Fprint(w, `{"agent_id":"am_mine","expires_at":"2026-03-21T10:30:00Z"}`)
	})))
	if _, err := d.Rotate(t.Context(), card, NewCredential(), renewed, old); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]*signing.PrivateKey{wire.HeaderKeyProof: renewed, wire.HeaderPreviousKeyProof: old} {
		p, ok := wire.ParseKeyProof(header.Get(name))
		if !ok || time.Since(p.Time).Abs() > time.Minute {
			t.Fatalf("%s = %q", name, header.Get(name))
		}
		text := "agentmesh-key-proof-v1\nPUT /mesh/v1/agents/am_mine\nhttps://directory.example/mesh/v1\n" + p.Stamp + "\n" +
			fmt.Sprintf("%x", signing.Digest(card)) + "\n"
		if err := key.Public().Verify([]byte(text), p.Signature, signing.Window{}, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirectoryBadAnswers(t *testing.T) {
	answers := []string{
		``, `null`, `[]`, `{}`, `<html>`, `{"agent_id":"am_x","agent_id":"am_y","expires_at":"2026-03-21T10:30:00Z"}`,
		`{"agent_id":"sk_x","expires_at":"2026-03-21T10:30:00Z"}`, `{"agent_id":"am_x"}`, `{"agent_id":"am_x","expires_at":"soon"}`,
		`{"agent_id":"am_other","expires_at":"2026-03-21T10:30:00Z"}`, `{"agents":{}}`, `{"agents":[{}]}`,
		strings.Repeat(" ", maxPageAnswer+1),
	}
	for _, answer := range answers {
		d := NewDirectory("http://127.0.0.1/v1", nil, InProcess(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) })))
		calls := map[string]error{}
		_, calls["renew"] = d.Renew(t.Context(), testCard("am_x", seedKey), "c", nil)
		_, calls["card"] = d.Card(t.Context(), "am_x")
		_, calls["record"] = d.Record(t.Context(), "am_x")
		_, calls["keys"] = d.Keys(t.Context(), "am_x")
		_, calls["search"] = d.Search(t.Context(), Query{})
		for op, err := range calls {
			known := op == "card" && strings.HasPrefix(answer, `{"agent_id":"am_x"`) && !strings.Contains(answer, "am_y") ||
				op == "keys" && strings.HasPrefix(answer, `{"agent_id":"am_x"`) && !strings.Contains(answer, "am_y")
			if !known && !errors.Is(err, ErrBadAnswer) {
				t.Errorf("%s of %.60q = %v, want ErrBadAnswer", op, answer, err)
			}
		}
	}
}

// TestAnswerOfUnknownCall checks that the status alone tells that the directory no longer knows the call. A proxy may
// have replaced the body.
func TestAnswerOfUnknownCall(t *testing.T) {
	for _, body := range []string{``, `<html>`, `[]`, `{"code":"agent_unavailable"}`, `{"a2a":{}}`} {
		d := NewDirectory("http://127.0.0.1/v1", nil, InProcess(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, body)
		})))
		if next, err := d.AnswerCall(t.Context(), "task", "token", []byte(`{}`)); next != nil || err != nil {
			t.Errorf("AnswerCall() with status 404 and body %q = %q, %v, want success", body, next, err)
		}
	}
}

// TestLargestAnswers checks that cards of the largest depth and number of values can be read in every answer. Otherwise
// the cards of one stranger would hide all others of a page.
func TestLargestAnswers(t *testing.T) {
	deep := strings.Repeat("[", wire.MaxDepth-1) + strings.Repeat("]", wire.MaxDepth-1)
	card := `{"agent_id":"am_x","deep":` + deep + `,"wide":[1` + strings.Repeat(",1", wire.MaxValues-wire.MaxDepth-3) + `]}`
	record := `{"card":` + card + `,"registered_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:00:00Z","key_proof":"x",
		"verification":{"key":null,"endpoint":null,"alive":null,"id":"opaque","key_changed_at":null}}`
	of := func(n int, text string) string { return strings.Repeat(text+",", n-1) + text }
	answers := map[string]string{
		"/v1/agents":             `{"agents":[` + of(100, card) + `],"cursor":"x","verification":{}}`,
		"/v1/agents/am_x/record": record,
		"/v1/agents/am_x/keys":   `{"agent_id":"am_x","keys":[` + of(9, `{"public_key":"x","since":"2026-01-01T00:00:00Z","card":`+card+`}`) + `]}`,
		"/v1/changes":            `{"changes":[` + of(maxChanges, `{"agent_id":"am_x","change":"renewed","at":"2026-01-01T00:00:00Z","record":`+record+`}`) + `],"next":"x","more":true}`,
	}
	d := NewDirectory("http://127.0.0.1/v1", nil, InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, answers[r.URL.Path]) })))
	if page, err := d.Search(t.Context(), Query{}); err != nil || len(page.Agents) != 100 {
		t.Errorf("Search() has %d agents, %v", len(page.Agents), err)
	}
	if _, err := d.Record(t.Context(), "am_x"); err != nil {
		t.Errorf("Record() = %v", err)
	}
	if _, err := d.Keys(t.Context(), "am_x"); err != nil {
		t.Errorf("Keys() = %v", err)
	}
	if page, err := d.Changes(t.Context(), "", 0); err != nil || len(page.Changes) != maxChanges {
		t.Errorf("Changes() has %d lines, %v", len(page.Changes), err)
	}
	answers["/v1/agents"] = `{"agents":[` + of(101, card) + `]}`
	if _, err := d.Search(t.Context(), Query{}); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("Search() of more values than cards may have = %v, want ErrBadAnswer", err)
	}
}

func TestDirectoryUnreachable(t *testing.T) {
	srv := serve(t, nil)
	srv.Close()
	d := NewDirectory(srv.URL+"/v1", local(t, HTTPConfig{}), nil)
	_, err := d.Search(t.Context(), Query{})
	e, ok := errors.AsType[*DirectoryError](err)
	if !errors.Is(err, ErrUnreachable) || !ok || !e.Retry || e.Hint() == "" {
		t.Errorf("Search() = %v, want ErrUnreachable with a hint", err)
	}
	if _, err := NewDirectory("not a url", local(t, HTTPConfig{}), nil).Search(t.Context(), Query{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Search() of no URL = %v, want ErrUnreachable", err)
	}
}

func TestMaxAge(t *testing.T) {
	tests := []struct {
		control, age string
		want         time.Duration
	}{
		{"", "", -1},
		{"public, max-age=300", "", 5 * time.Minute},
		{"Public,Max-Age=300", "100", 200 * time.Second},
		{"max-age=300", "400", 0},
		{"max-age=60, no-store", "", 0},
		{"no-cache", "", 0},
		{"max-age=x", "", 0},
		{"max-age=-1", "", 0},
		{"max-age=99999999999999", "", 0},
		{"private", "", -1},
	}
	for _, tt := range tests {
		h := http.Header{}
		h.Set("Cache-Control", tt.control)
		h.Set("Age", tt.age)
		if got := maxAge(h); got != tt.want {
			t.Errorf("maxAge(%q, Age %q) = %v, want %v", tt.control, tt.age, got, tt.want)
		}
	}
}

func TestCredentialIsNotShown(t *testing.T) {
	c := Credential("top-secret-token")
	for _, format := range []string{"%v", "%s", "%q", "%x", "%d", "%+v", "%#v"} {
		if got := fmt.Sprintf(format, c); got != redacted {
			t.Errorf("Sprintf(%s) = %q", format, got)
		}
	}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(handler).Info("said", "credential", c, slog.Group("of", "credential", c))
	}
	if strings.Contains(log.String(), string(c)) || strings.Count(log.String(), redacted) != 4 {
		t.Errorf("logged as %s", log.String())
	}
	if a, b := NewCredential(), NewCredential(); a == b || len(a) < 52 || len(a) > 256 {
		t.Errorf("NewCredential() = %q, %q", string(a), string(b))
	}
}

func FuzzParseListing(f *testing.F) {
	f.Add([]byte(`{"agents":[{"agent_id":"am_1"}],"cursor":"x","verification":{"am_1":{"key":null,"endpoint":"2026-01-01T00:00:00Z","id":"derived"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		page, err := parseListing(data)
		if err != nil {
			return
		}
		for _, card := range page.Agents {
			if !wire.AgentID(card.GetStr("agent_id")).Valid() {
				t.Error("a card without an id")
			}
		}
	})
}

// TestHintOfABareURL checks that the hint for a URL without /v1, at which no directory answers, mentions /v1.
func TestHintOfABareURL(t *testing.T) {
	for base, want := range map[string]bool{"http://mesh.example": true, "http://mesh.example/v1": false} {
		for _, op := range []string{opRegister, opRenew} {
			e := &DirectoryError{Op: op, Directory: base, Kind: ErrRefused, Status: http.StatusNotFound, Code: wire.InvalidMessage}
			if got := strings.Contains(e.Hint(), "/v1"); got != want {
				t.Errorf("%s at %s: hint %q", op, base, e.Hint())
			}
		}
	}
}

// TestHintOfARefusedEndpoint checks that an agent at home, whose endpoint is on loopback, reads about the mailbox.
func TestHintOfARefusedEndpoint(t *testing.T) {
	const base = "https://mesh.example/v1"
	for message, want := range map[string]string{
		"the card is not acceptable: endpoint must be an https URL": "--via-relay " + base + ";",
		"the card is not acceptable: name is missing":               "change the field",
	} {
		e := &DirectoryError{Op: opRegister, Directory: base, Kind: ErrRefused, Status: http.StatusBadRequest, Code: wire.InvalidMessage, Message: message}
		if got := e.Hint(); !strings.Contains(got, want) {
			t.Errorf("%s: hint %q", message, got)
		}
	}
}
