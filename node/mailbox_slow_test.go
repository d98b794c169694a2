//go:build slow

package node_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestMailOfAnExpiredConversation: mail is accepted if its conversation was open when the mailbox received it. The
// conversation then continues. Later mail is refused.
func TestMailOfAnExpiredConversation(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	configure := func(cfg *node.Config) {
		cfg.Policy.Allow, cfg.Idle = []string{string(chris.ID)}, 2*time.Second
		cfg.Relay = mesh.Directory()
		cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
	}
	sarah := mesh.Node("sarah", configure)
	post := func(conv wire.ConversationID) {
		t.Helper()
		d := in(conv, chris.Draft(sarah.ID(), wire.Deliver, hello))
		if got := meshtest.Post(t, mesh.URL+"/mailbox/"+string(sarah.ID()), chris.Sign(d)); got.Status >= 300 {
			t.Fatalf("%+v", got)
		}
	}
	waitForMail := func(late, timely, fresh int) {
		t.Helper()
		waitFor(t, "the mail", func() bool {
			count := map[wire.ConversationID]int{}
			items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
			for _, item := range items {
				count[item.Conversation]++
			}
			return err == nil && count["conv_late"] == late && count["conv_timely"] == timely && count["conv_new"] == fresh
		})
	}
	post("conv_late")
	post("conv_timely")
	waitForMail(1, 1, 0)
	sarah.Stop()
	post("conv_timely") // the directory waits for a poll, for longer than the conversation lives
	post("conv_late")
	post("conv_new")

	sarah = mesh.Restart(sarah, configure)
	waitForMail(1, 2, 1)
}

// TestRelayThatDoesNotWait: a directory that answers a poll at once with no mail, because it has no place for another
// waiting poll or does not support waiting, is not polled in a tight loop.
func TestRelayThatDoesNotWait(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	base, err := url.Parse(mesh.URL)
	if err != nil {
		t.Fatal(err)
	}
	base.Path = ""
	directory := httputil.NewSingleHostReverseProxy(base)
	var mu sync.Mutex
	var polls []time.Time
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/relay") {
			directory.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		polls = append(polls, time.Now())
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"messages":[]}`))
	}))
	t.Cleanup(relay.Close)
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Relay = client.NewDirectory(relay.URL+"/v1", h, nil)
		cfg.Directories = []*client.Directory{cfg.Relay}
	})
	waitFor(t, "four polls", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(polls) >= 4
	})
	mu.Lock()
	defer mu.Unlock()
	if took := polls[3].Sub(polls[0]); took < time.Second {
		t.Errorf("four polls within %v", took)
	}
}

// TestMailFromBeforeARotation: mail that waited while its sender changed the key is accepted, because it is judged at the
// time when the mailbox received it (AM-20).
func TestMailFromBeforeARotation(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	configure := func(cfg *node.Config) {
		cfg.Relay = mesh.Directory()
		cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
	}
	sarah := mesh.Node("sarah", configure)
	chris := mesh.Node("chris", func(cfg *node.Config) {
		cfg.SaveKey = func(*signing.PrivateKey, wire.Value) error { return nil }
	})
	sarah.Stop()
	time.Sleep(mailbox.ConnectedFor)
	out := to("", "conv_1", "hello")
	out.To, out.Address = sarah.ID(), ""
	if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendDelivered {
		t.Fatalf("%+v", sent)
	}
	if list, err := chris.Registrar().RotateKey(t.Context()); err != nil || list[0].Error != "" {
		t.Fatalf("RotateKey = %+v, %v", list, err)
	}
	sarah = mesh.Restart(sarah, configure)
	waitFor(t, "the mail from before the rotation", func() bool {
		items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 1 && items[0].Peer == chris.ID()
	})
}
