package node_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestOldOutboxEntry (AM-48): what happens to an outbox entry whose signature is older than 14 minutes.
func TestOldOutboxEntry(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		name   string
		first  func(http.ResponseWriter, wire.Message)
		serves bool // the peer has the document of AM-81
		age    time.Duration
		want   owner.SendState
		resent bool
	}{
		{"young", status(500), false, 13 * time.Minute, owner.SendDelivered, false},
		{"nothing was processed", status(503), false, 15 * time.Minute, owner.SendDelivered, true},
		{"maybe, and the peer knows resends", status(500), true, 15 * time.Minute, owner.SendDelivered, true},
		{"maybe, and it does not", status(500), false, 15 * time.Minute, owner.SendUnknown, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			ann.serves = c.serves
			ann.answers(c.first)
			dir := t.TempDir()
			native := func(cfg *node.Config) { cfg.Directories = []*client.Directory{mesh.Directory()} }
			mesh.Register("lone", meshtest.Card(t, "lone", "http://127.0.0.1:9/agentmesh"))
			l := loneNode(t, dir, nil, native)
			first := mustSend(t, l.Node, ann.message(t, "hello"), 10*time.Second)
			l.stop()

			s := testStore(t, dir)
			makeOlder(t, s, c.age)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ann.answers(ann.says(`{"action":"received"}`))
			l = loneNode(t, dir, nil, native)
			waitFor(t, "the entry ends", func() bool { return theEntry(t, l.Node).State != owner.SendQueued })
			if entry := theEntry(t, l.Node); entry.State != c.want {
				t.Fatalf("entry is %s (%v), want %s", entry.State, entry.Err, c.want)
			}
			got := ann.got()
			last := got[len(got)-1]
			switch {
			case c.want == owner.SendUnknown:
				if kinds := noticeKinds(t, l.store); len(got) != 1 || !slices.Contains(kinds, "unknown") {
					t.Errorf("%d attempts, notices %v; want 1 attempt and a notice", len(got), kinds)
				}
			case c.resent:
				if last.ID == first.MessageID || last.Meta("resend_of") != string(first.MessageID) || time.Since(last.Time) > time.Minute {
					t.Errorf("sent again as %s", last.Tree.JSON())
				}
			default:
				if string(last.Tree.JSON()) != string(got[0].Tree.JSON()) {
					t.Errorf("other bytes were sent:\n%s\n%s", got[0].Tree.JSON(), last.Tree.JSON())
				}
			}
		})
	}
}

// makeOlder makes the outbox entry older, as if the node had been off.
func makeOlder(t *testing.T, s store.Store, by time.Duration) {
	t.Helper()
	page, err := s.Records().List(t.Context(), "outbox", "", "", 10, time.Now())
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("outbox: %v, %v", page, err)
	}
	r := page.Records[0]
	var body map[string]any
	if err := json.Unmarshal(r.Body, &body); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"created", "signed"} {
		body[field] = time.Now().Add(-by)
	}
	delete(body, "next_attempt")
	if r.Body, err = json.Marshal(body); err != nil {
		t.Fatal(err)
	}
	if err := s.Records().Apply(context.Background(), []store.Change{{Record: r, IfRev: r.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
}
