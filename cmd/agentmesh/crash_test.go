//go:build slow || clockstep

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	crashRounds = 3
	crashLoad   = 1200 * time.Millisecond // minimum time before each kill
)

// TestCrash kills the real process with SIGKILL under a load of registrations, messages and approvals, and restarts it.
// Nothing that the process acknowledged is lost, and no message is accepted or answered twice.
func TestCrash(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	c := newCrash(t)
	for range crashRounds {
		c.start()
		c.load(crashLoad)
	}
	c.start()
	c.audit()
	t.Logf("acknowledged: %d registrations, %d messages, %d approvals; unknown: %d messages; later replies: %d",
		len(c.cards), len(c.answers), len(c.approvals), len(c.unknown), len(c.lateReplies))
}

// crash is the process under test with everything that it has acknowledged.
type crash struct {
	t    *testing.T
	dir  string
	http *client.HTTP

	server *serveProcess
	owner  *daemon.Client

	sender   *signing.PrivateKey
	endpoint *httptest.Server // of the sender

	mu          sync.Mutex
	cards       []wire.AgentID               // acknowledged with 201
	answers     map[wire.MessageID]roundTrip // acknowledged with 200 or 202
	unknown     map[wire.MessageID]roundTrip // sent, but the process died before it answered
	approvals   map[string]bool              // acknowledged with 200
	lateReplies map[string][]wire.MessageID  // replies to the sender's endpoint, by the message that they answer
}

type roundTrip struct {
	sent   []byte
	status int
	answer []byte
}

func newCrash(t *testing.T) *crash {
	c := &crash{
		t: t, dir: t.TempDir() + "/data", http: client.NewHTTP(client.HTTPConfig{Local: true}),
		answers: map[wire.MessageID]roundTrip{}, unknown: map[wire.MessageID]roundTrip{},
		approvals: map[string]bool{}, lateReplies: map[string][]wire.MessageID{},
	}
	t.Cleanup(c.http.Close)
	c.endpoint = httptest.NewServer(http.HandlerFunc(c.recordReply))
	t.Cleanup(c.endpoint.Close)
	var err error
	if c.sender, err = signing.GenerateEd25519(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.server != nil {
			c.kill()
		}
	})
	return c
}

// recordReply handles the requests to the sender's endpoint. It records which message each reply answers.
func (c *crash) recordReply(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	v, err := wire.ParseObject(body)
	if err != nil {
		return
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to := m.Meta("in_reply_to")
	if !slices.Contains(c.lateReplies[to], m.ID) {
		c.lateReplies[to] = append(c.lateReplies[to], m.ID)
	}
	w.WriteHeader(http.StatusNoContent)
}

// start runs serve on the same data again, open and without limits, and registers the sender.
func (c *crash) start() {
	c.t.Helper()
	c.serve("--set=access.mode=open", "--set=limits.messages_new_conversations=0", "--set=limits.messages_conversation=0",
		"--set=limits.messages_total=0")
	if _, _, err := c.directory().Register(c.t.Context(), loadCard(c.sender, c.endpoint.URL), "the-credential-of-the-sender", c.sender); err != nil {
		c.t.Fatal(err)
	}
}

// serve runs serve on the same data again.
func (c *crash) serve(args ...string) {
	c.t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	var err error
	if c.server, err = startServe(c.dir, append(args, "--set=log.level=warn"), env); err != nil {
		c.t.Fatal(err)
	}
	if c.owner = daemon.Running(c.t.Context(), c.dir); c.owner == nil {
		c.t.Fatal("the owner API does not answer")
	}
}

func (c *crash) kill() {
	c.server.Process.Kill()
	c.server.Wait()
	c.owner.Close()
}

func (c *crash) directory() *client.Directory {
	return client.NewDirectory(c.server.info.Directory, c.http, nil)
}

func loadCard(key *signing.PrivateKey, endpoint string) wire.Value {
	return wire.Obj(
		wire.Member{Key: "agentmesh", Value: wire.Text(wire.Version)},
		wire.Member{Key: "agent_id", Value: wire.Text(string(key.Public().AgentID()))},
		wire.Member{Key: "name", Value: wire.Text("Load")},
		wire.Member{Key: "endpoint", Value: wire.Text(endpoint)},
		wire.Member{Key: "public_key", Value: wire.Text(key.PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts([]string{"load"})},
		wire.Member{Key: "intents", Value: wire.Texts([]wire.Intent{wire.Deliver})},
	)
}

// waitForLoad waits for d and then, on a slow machine, until the process has acknowledged something of each kind.
func waitForLoad(t *testing.T, d time.Duration, reached func() bool) {
	t.Helper()
	<-time.After(d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll(ctx, "the load did not reach every kind of acknowledgement", func() (bool, error) { return reached(), nil }); err != nil {
		t.Error(err)
	}
}

// load sends many kinds of requests to the process for d, and then kills it while they are running.
func (c *crash) load(d time.Duration) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var work sync.WaitGroup
	forever := func(step func(context.Context) error) {
		work.Go(func() {
			for ctx.Err() == nil {
				if step(ctx) != nil {
					return // the process has been killed
				}
			}
		})
	}
	for range 4 {
		forever(c.register)
		forever(func(ctx context.Context) error {
			return c.message(ctx, wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`)
		})
	}
	for range 2 {
		forever(func(ctx context.Context) error {
			return c.message(ctx, wire.Negotiate, `{"action":"propose","terms":{"description":"a deal"}}`)
		})
	}
	forever(c.approve)
	waitForLoad(c.t, d, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.cards) > 0 && len(c.answers) > 0 && len(c.approvals) > 0
	})
	c.kill()
	cancel()
	work.Wait()
}

func (c *crash) register(ctx context.Context) error {
	key, err := signing.GenerateEd25519()
	if err != nil {
		return err
	}
	reg, _, err := c.directory().Register(ctx, loadCard(key, "http://127.0.0.1:9/agentmesh"), client.NewCredential(), key)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cards = append(c.cards, reg.AgentID)
	return nil
}

// message sends one message in a new conversation.
func (c *crash) message(ctx context.Context, intent wire.Intent, payload string) error {
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		return err
	}
	d := wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: c.sender.Public().AgentID(), To: c.server.info.AgentID,
		Time: time.Now(), Intent: intent, Payload: v,
	}
	signed, err := c.sender.SignValue(d.Tree())
	if err != nil {
		return err
	}
	e := roundTrip{sent: signed.JSON()}
	e.status, e.answer, err = c.post(ctx, e.sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.unknown[d.ID] = e
		return err
	}
	if e.status == http.StatusOK || e.status == http.StatusAccepted {
		c.answers[d.ID] = e
	}
	return nil
}

func (c *crash) post(ctx context.Context, body []byte) (int, []byte, error) {
	return sendJSON(ctx, http.MethodPost, c.server.info.Endpoint, body)
}

func sendJSON(ctx context.Context, method, url string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

func (c *crash) approve(ctx context.Context) error {
	raw, err := c.owner.Call(ctx, "GET", "approvals", owner.Params("state", "pending", "limit", "5"), nil)
	if err != nil {
		return err
	}
	page, err := daemon.Decode[owner.List[acl.Ask]](raw)
	if err != nil {
		return err
	}
	for _, k := range page.Items {
		if _, err := decideApproval(ctx, c.owner, k.ID, owner.Decision{Choice: acl.Approve, Hash: k.Hash}); err != nil {
			return err
		}
		c.mu.Lock()
		c.approvals[k.ID] = true
		c.mu.Unlock()
	}
	return nil
}

// audit checks that the process still has everything that it acknowledged.
func (c *crash) audit() {
	ctx, t := c.t.Context(), c.t
	for _, id := range c.cards {
		if _, err := c.directory().Card(ctx, id); err != nil {
			t.Errorf("acknowledged registration is lost: %v", err)
		}
	}
	for id := range c.approvals {
		raw, err := c.owner.Call(ctx, "GET", "approvals/"+url.PathEscape(id), nil, nil)
		if err != nil {
			t.Errorf("acknowledged approval is lost: %v", err)
			continue
		}
		if k, err := daemon.Decode[acl.Ask](raw); err != nil || k.State != acl.AskApproved {
			t.Errorf("acknowledged approval is %s: %v", k.State, err)
		}
	}
	for id, e := range c.answers {
		status, answer, err := c.post(ctx, e.sent)
		if err != nil {
			t.Fatal(err)
		}
		// If a held message was approved meanwhile, the repetition gets the final reply (AM-22).
		if e.status == http.StatusOK && (status != e.status || !bytes.Equal(answer, e.answer)) {
			t.Errorf("%s was answered %d %s, now %d %s", id, e.status, e.answer, status, answer)
		}
		if status != http.StatusOK && status != http.StatusAccepted {
			t.Errorf("acknowledged message is lost: %s is answered %d %s", id, status, answer)
		}
	}
	for id, e := range c.unknown {
		if status, answer, err := c.post(ctx, e.sent); err != nil || status >= 300 {
			t.Errorf("%s cannot be sent again: %d %s %v", id, status, answer, err)
		}
	}
	c.auditInbox(ctx)
	c.drain(ctx)
	c.auditReplies()
}

// countInbox returns how often each message is in an inbox. It calls next for the client that reads the next page.
func countInbox(ctx context.Context, next func() *daemon.Client) (map[wire.MessageID]int, error) {
	seen := map[wire.MessageID]int{}
	for after := ""; ; {
		raw, err := next().Call(ctx, "GET", "inbox", owner.Params("after", after, "limit", "1000"), nil)
		if err != nil {
			return nil, err
		}
		page, err := daemon.Decode[struct {
			Items []struct {
				MessageID wire.MessageID `json:"message_id"`
			} `json:"items"`
			Next string `json:"next"`
		}](raw)
		if err != nil {
			return nil, err
		}
		for _, i := range page.Items {
			seen[i.MessageID]++
		}
		if after = page.Next; after == "" {
			return seen, nil
		}
	}
}

// auditInbox checks that every message is in the inbox exactly once, whether it was acknowledged or sent again.
func (c *crash) auditInbox(ctx context.Context) {
	seen, err := countInbox(ctx, func() *daemon.Client { return c.owner })
	if err != nil {
		c.t.Fatal(err)
	}
	for _, sent := range []map[wire.MessageID]roundTrip{c.answers, c.unknown} {
		for id := range sent {
			if seen[id] != 1 {
				c.t.Errorf("%s is in the inbox %d times, want once", id, seen[id])
			}
		}
	}
}

func (c *crash) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err := poll(ctx, "replies still wait in the outbox", func() (bool, error) {
		raw, err := c.owner.Call(ctx, "GET", "status", nil, nil)
		if err != nil {
			return false, err
		}
		s, err := daemon.Decode[owner.Status](raw)
		return s.Outbox["queued"]+s.Outbox["delivering"] == 0, err
	})
	if err != nil {
		c.t.Error(err)
	}
}

// auditReplies checks that each approved message was answered, and by only one message.
func (c *crash) auditReplies() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lateReplies) < len(c.approvals) {
		c.t.Errorf("%d messages were approved, %d answered", len(c.approvals), len(c.lateReplies))
	}
	for to, ids := range c.lateReplies {
		if len(ids) > 1 {
			c.t.Errorf("%s was answered by %v", to, ids)
		}
	}
}

// poll calls done until it returns true or an error, or ctx ends. what names the awaited event in the error.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}
