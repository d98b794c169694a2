package node_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// failingTarget is a notification target that always fails.
type failingTarget struct{}

func (failingTarget) Name() string { return "deaf" }

func (failingTarget) Send(context.Context, notify.Batch) error {
	return errors.New("nobody <b>listens</b>")
}

// TestFailureToTellIsSeen: if notices do not reach the owner, the status and the page show that, and watchers get an
// event.
func TestFailureToTellIsSeen(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	var box *notify.Box
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Approval
		box = notify.New(notify.Config{Records: cfg.Store.Records(), Target: failingTarget{}, Batch: time.Nanosecond})
		cfg.Notices = box
	})
	events, stop := sarah.Watch()
	defer stop()
	must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
	late := time.After(30 * time.Second)
	for seen := false; !seen; {
		select {
		case ev := <-events:
			seen = ev.Topic == owner.TopicStatus
		case <-late:
			t.Fatal("no status event")
		}
	}
	var status struct {
		Notify notify.Status `json:"notify"`
	}
	sarah.Call("GET", "/status", nil, &status)
	if s := status.Notify; s.Target != "deaf" || s.Failures == 0 || s.Waiting != 1 || s.Next.IsZero() {
		t.Errorf("status = %+v", s)
	}
	body := ownerPage(t, sarah, "settings")
	if !strings.Contains(body, "do not reach you") || strings.Contains(body, "<b>listens") {
		t.Errorf("page:\n%s", body)
	}
}
