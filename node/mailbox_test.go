package node_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestMailBehindAStranger: mail that a node cannot accept yet stays in the mailbox and does not delay the mail of
// others. In approval mode that is every stranger's second message, until the owner has decided.
func TestMailBehindAStranger(t *testing.T) {
	mesh := meshtest.New(t)
	chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
	configure := func(cfg *node.Config) {
		cfg.Policy.Mode, cfg.Policy.Allow = acl.Approval, []string{string(ann.ID)}
		cfg.Relay = mesh.Directory()
		cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
	}
	sarah := mesh.Node("sarah", configure)
	sarah.Stop()
	post := func(from *meshtest.Stranger, conv wire.ConversationID) wire.MessageID {
		t.Helper()
		d := in(conv, from.Draft(sarah.ID(), wire.Deliver, hello))
		must(t, meshtest.Post(t, mesh.URL+"/mailbox/"+string(sarah.ID()), from.Sign(d)), http.StatusAccepted)
		return d.ID
	}
	for i := range 40 { // together with the mail below more than two pages, and as much as one sender may leave
		post(chris, wire.ConversationID(fmt.Sprintf("conv_%d", i)))
	}
	for _, name := range []string{"dora", "emil"} {
		other := mesh.Stranger(name)
		for range 40 {
			post(other, "conv_same")
		}
	}
	wanted := []wire.MessageID{post(ann, "conv_ann"), post(ann, "conv_ann")}

	sarah = mesh.Restart(sarah, configure)
	waitFor(t, "the mail of the known peer", func() bool {
		items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 2 && items[0].MessageID == wanted[0] && items[1].MessageID == wanted[1]
	})
	if asks := pendingAsks(t, sarah); len(asks) != 3 {
		t.Errorf("%d messages wait for the owner, want one of each stranger", len(asks))
	}
}

// TestMailBehindAFailingDirectory: while one directory fails, nobody can tell who sent a message whose sender the
// others do not list. Such messages do not delay the mail of a peer that another directory lists.
func TestMailBehindAFailingDirectory(t *testing.T) { // THREATS row 26
	t.Parallel()
	mesh, elsewhere := meshtest.New(t), meshtest.New(t)
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	t.Cleanup(failing.Close)
	ann := mesh.Stranger("ann")
	configure := func(cfg *node.Config) {
		cfg.Policy.Allow = []string{string(ann.ID)}
		cfg.Relay = mesh.Directory()
		cfg.Directories = append(cfg.Directories, client.NewDirectory(failing.URL+"/v1", cfg.HTTP, nil))
		cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
	}
	sarah := mesh.Node("sarah", configure)
	sarah.Stop()
	post := func(from *meshtest.Stranger) wire.MessageID {
		t.Helper()
		d := from.Draft(sarah.ID(), wire.Deliver, hello)
		must(t, meshtest.Post(t, mesh.URL+"/mailbox/"+string(sarah.ID()), from.Sign(d)), http.StatusAccepted)
		return d.ID
	}
	for i := range 20 {
		post(elsewhere.Stranger(fmt.Sprint("invented", i)))
	}
	wanted := post(ann)

	sarah = mesh.Restart(sarah, configure)
	waitFor(t, "the mail of the known peer", func() bool {
		items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 1 && items[0].MessageID == wanted
	})
}

// TestResendsByMailShareAnAnswer: however often a stranger signs a message again and leaves it in the mailbox, the
// answer takes one place in the outbox. Resends are charged to no limit, so they could otherwise fill the outbox.
func TestResendsByMailShareAnAnswer(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
	configure := func(cfg *node.Config) {
		cfg.Policy.Mode, cfg.Policy.Allow = acl.Approval, []string{string(ann.ID)}
		cfg.Relay = mesh.Directory()
		cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
	}
	sarah := mesh.Node("sarah", configure)
	sarah.Stop()
	post := func(from *meshtest.Stranger, d wire.Draft) {
		t.Helper()
		must(t, meshtest.Post(t, mesh.URL+"/mailbox/"+string(sarah.ID()), from.Sign(d)), http.StatusAccepted)
	}
	first := chris.Draft(sarah.ID(), wire.Deliver, hello)
	closed := in(first.Conversation, chris.Draft(sarah.ID(), wire.Deliver, closing))
	post(chris, first)
	post(chris, closed)
	for range 5 {
		again := in(first.Conversation, chris.Draft(sarah.ID(), wire.Deliver, closing))
		again.Payload = again.Payload.With("metadata", wire.Obj(wire.Member{Key: "resend_of", Value: wire.Text(string(closed.ID))}))
		post(chris, again)
	}
	post(ann, ann.Draft(sarah.ID(), wire.Deliver, hello))

	sarah = mesh.Restart(sarah, configure)
	waitFor(t, "the mail behind the resends", func() bool {
		items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 1 && items[0].Peer == ann.ID
	})
	if entries, _, err := sarah.Outbox(t.Context(), "", "", 10); err != nil || len(entries) != 1 {
		t.Errorf("%d entries are in the outbox, %v, want the answer once", len(entries), err)
	}
}

// TestMailboxAfterTheRegistration: a directory has no mailbox for an unregistered node, so the node registers before
// its first poll, and the log does not begin with a warning.
func TestMailboxAfterTheRegistration(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	base, err := url.Parse(mesh.URL)
	if err != nil {
		t.Fatal(err)
	}
	base.Path = ""
	directory := httputil.NewSingleHostReverseProxy(base)
	polled := make(chan bool, 100) // reports that the registration was tried
	early := make(chan struct{}, 100)
	var tried atomic.Bool
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/relay"):
			early <- struct{}{}
			polled <- tried.Load()
		case r.Method == http.MethodPost:
			select {
			case <-early:
			case <-time.After(300 * time.Millisecond): // gives an early poll time to come first
			}
			defer tried.Store(true)
		}
		directory.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	mesh.Copy(&meshtest.Member{Name: "nora", Store: meshtest.Store(t)}, func(cfg *node.Config) { // listed nowhere yet
		cfg.Relay = client.NewDirectory(relay.URL+"/v1", h, nil)
		cfg.Directories = []*client.Directory{cfg.Relay}
	}).Start()
	if !<-polled {
		t.Error("the mailbox was polled before the registration was tried")
	}
}
