package mcp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
	"github.com/agentmesh/agentmesh/node/wire"
)

// post sends a message of a stranger that a node accepts.
func post(t *testing.T, to *meshtest.Member, from *meshtest.Stranger, intent wire.Intent, payload string) {
	t.Helper()
	if a := meshtest.Post(t, to.URL, from.Sign(from.Draft(to.ID(), intent, payload))); a.Status >= 300 {
		t.Errorf("post: %d %s", a.Status, a.Body)
	}
}

func says(text string) string { return `{"action":"deliver","message":{"body":"` + text + `"}}` }

// startChannel starts a session into which the messages of a peer are pushed. next returns the next line of the server,
// after the answer to initialize; quiet fails if there is another one.
func startChannel(t *testing.T, door *owner.Client, peer string) (next func() string, quiet func()) {
	t.Helper()
	cfg := mcp.Config{Client: door, Version: "test", Channel: true}
	in, out := startStdio(t, cfg, mcp.NewChannel(cfg, []string{peer}))
	lines := make(chan string, 10)
	go func() {
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	next = func() string {
		t.Helper()
		select {
		case line := <-lines:
			return line
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was pushed")
			return ""
		}
	}
	if _, err := io.WriteString(in, initialize+"\n"); err != nil {
		t.Fatal(err)
	}
	if answer := next(); !strings.Contains(answer, `"claude/channel"`) {
		t.Errorf("the capability is missing: %s", answer)
	}
	return next, func() {
		t.Helper()
		select {
		case line := <-lines:
			t.Errorf("also pushed: %s", line)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// TestChannel: a message of a listed peer is pushed into the session, as untrusted text, and a held one after its
// release. A message of another is not pushed.
func TestChannel(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	friend, other := mesh.Stranger("friend"), mesh.Stranger("other")
	post(t, sarah, friend, wire.Deliver, says("before the session"))
	offer := friend.Draft(sarah.ID(), wire.Negotiate, `{"action":"propose","terms":{"description":"A website"}}`)
	if a := meshtest.Post(t, sarah.URL, friend.Sign(offer)); a.Status != http.StatusAccepted {
		t.Fatalf("post: %d %s, want it held", a.Status, a.Body)
	}
	next, quiet := startChannel(t, agentOf(sarah), string(friend.ID))
	post(t, sarah, other, wire.Deliver, says("from another"))
	post(t, sarah, friend, wire.Deliver, says("hello \\u202e from a friend"))
	line := next()
	pushed, err := wire.ParseObject([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	params, _ := pushed.Get("params")
	meta, _ := params.Get("meta")
	if pushed.GetStr("method") != "notifications/claude/channel" || !strings.Contains(params.GetStr("content"), `"untrusted_text":"hello  from a friend"`) ||
		meta.GetStr("from") != string(friend.ID) || meta.GetStr("item") == "" {
		t.Errorf("pushed = %s", line)
	}
	quiet()
	asks, _, err := sarah.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 {
		t.Fatalf("asks = %+v, %v", asks, err)
	}
	if _, err := sarah.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	if line := next(); !strings.Contains(line, "A website") {
		t.Errorf("after the release of an earlier message: %s", line)
	}
	quiet()
}

// TestChannelOfAnAlias: the owner may name a peer by its alias.
func TestChannelOfAnAlias(t *testing.T) {
	const words = "from a friend"
	mesh := meshtest.New(t)
	sarah, friend := mesh.Node("sarah", open), mesh.Stranger("friend")
	if _, err := sarah.OwnerAPI().ChangePeer(t.Context(), string(friend.ID), owner.PeerChange{Action: "alias", Alias: "buddy"}, "test"); err != nil {
		t.Fatal(err)
	}
	next, quiet := startChannel(t, agentOf(sarah), "buddy")
	post(t, sarah, mesh.Stranger("other"), wire.Deliver, says("from another"))
	post(t, sarah, friend, wire.Deliver, says(words))
	if line := next(); !strings.Contains(line, words) {
		t.Errorf("pushed = %s", line)
	}
	quiet()
}

// TestChannelAfterHook: a message that a hook leaves to the agent is pushed, although a newer one was pushed before.
func TestChannelAfterHook(t *testing.T) {
	const words = "for the hook"
	started, goOn := make(chan struct{}), make(chan struct{})
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", func(c *node.Config) {
		open(c)
		c.Routes = []node.Route{{Pattern: string(wire.Deliver), Name: "agent", Handler: waking(func() { close(started); <-goOn })}}
	})
	friend := mesh.Stranger("friend")
	next, quiet := startChannel(t, agentOf(sarah), string(friend.ID))
	var posts sync.WaitGroup
	defer posts.Wait()
	posts.Go(func() { post(t, sarah, friend, wire.Deliver, says(words)) })
	<-started
	post(t, sarah, friend, wire.RequestInfo, `{"action":"ask","question":"for nobody"}`)
	if line := next(); !strings.Contains(line, "for nobody") {
		t.Errorf("pushed = %s", line)
	}
	close(goOn)
	if line := next(); !strings.Contains(line, words) {
		t.Errorf("after the hook: %s", line)
	}
	quiet()
}

// TestChannelWithoutStream: a message that comes while no stream of events is open is pushed when one is open.
func TestChannelWithoutStream(t *testing.T) {
	const words = "before the stream"
	mesh := meshtest.New(t)
	sarah, friend := mesh.Node("sarah", open), mesh.Stranger("friend")
	door, opening, goOn := agentOf(sarah), make(chan struct{}), make(chan struct{})
	inner := door.HTTP.Transport
	door.HTTP.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, owner.StreamEvents.Path) {
			close(opening)
			<-goOn
		}
		return inner.RoundTrip(r)
	})
	next, quiet := startChannel(t, door, string(friend.ID))
	<-opening
	post(t, sarah, friend, wire.Deliver, says(words))
	quiet()
	close(goOn)
	if line := next(); !strings.Contains(line, words) {
		t.Errorf("pushed = %s", line)
	}
	quiet()
}

// TestChannelFirstListing: the messages from before the session are not pushed, although the first look at the inbox
// fails.
func TestChannelFirstListing(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, friend := mesh.Node("sarah", open), mesh.Stranger("friend")
	post(t, sarah, friend, wire.Deliver, says("before the session"))
	door, failed := agentOf(sarah), false
	inner := door.HTTP.Transport
	door.HTTP.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, owner.ListInbox.Path) && !failed {
			failed = true
			return nil, io.ErrUnexpectedEOF
		}
		return inner.RoundTrip(r)
	})
	next, quiet := startChannel(t, door, string(friend.ID))
	quiet()
	post(t, sarah, friend, wire.Deliver, says("news"))
	if line := next(); !strings.Contains(line, "news") {
		t.Errorf("pushed = %s", line)
	}
}

// TestAgentHasItsOwnConversations: mesh_get_agent finds the conversation with an agent behind many newer ones.
func TestAgentHasItsOwnConversations(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", meshtest.Unlimited)
	friend, other := mesh.Stranger("friend"), mesh.Stranger("other")
	post(t, sarah, friend, wire.Deliver, says("long ago"))
	for range 201 {
		post(t, sarah, other, wire.Deliver, says("something"))
	}
	s := connect(t, sarah)
	if seen := s.call("mesh_get_agent", args{"agent": string(friend.ID)}); at(seen, "conversations.0.state") != "open" || at(seen, "conversations.1") != nil {
		t.Errorf("the agent: %v", seen)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// waking is a hook that leaves each message to the agent.
type waking func()

func (w waking) Handle(context.Context, hook.Call) (hook.Answer, error) {
	w()
	return hook.Answer{Async: true}, nil
}

// TestWaitForTopicsLooksFirst: mesh_wait returns at once if the inbox is one of several topics and has a new message.
func TestWaitForTopicsLooksFirst(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	post(t, sarah, mesh.Stranger("friend"), wire.Deliver, says("just before"))
	s := connect(t, sarah)
	began := time.Now()
	news := s.call("mesh_wait", args{"topics": []string{string(owner.TopicInbox), string(owner.TopicApprovals)}})
	if at(news, "items.0.text.untrusted_text") != "just before" || news["changed"] != nil || time.Since(began) > 20*time.Second {
		t.Errorf("after %v: %v", time.Since(began), news)
	}
	began = time.Now()
	if s.call("mesh_wait", args{"seconds": 1, "topics": []string{string(owner.TopicApprovals)}}); time.Since(began) < time.Second {
		t.Error("a message ends a wait for approvals")
	}
}
