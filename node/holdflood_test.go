package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHoldsOfManyStrangers: many strangers that all want to be held cause at most two hundred questions and a bounded
// number of notices and audit lines, and the next known peer is served. Only the holds limit them in this test: there
// are neither allowances nor signatures.
func TestHoldsOfManyStrangers(t *testing.T) {
	const many = 4000
	mesh := meshtest.InMemory(t)
	friend := mesh.Stranger("friend")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Approval
		cfg.Policy.Allow = []string{string(friend.ID)}
		cfg.Rates = acl.Rates{}
	})
	payload := parsePayload(t, hello)
	from := make(chan int)
	var group sync.WaitGroup
	var mu sync.Mutex
	var held, refused int
	for range 8 {
		group.Go(func() {
			for i := range from {
				address := bridge.Address{Kind: "test", Link: "net", Peer: fmt.Sprint("stranger-", i)}
				out, err := sarah.Accept(context.Background(), bridge.Inbound{
					Principal: address.String(), Peer: address.Pseudonym(), Address: address.String(), Verified: bridge.VerifiedNone,
					MessageID: wire.NewMessageID(), ConvID: "conv_one", Intent: wire.Deliver, Payload: payload,
					Raw: []byte("{}"), Digest: sha256.Sum256(fmt.Append(nil, i)), Received: time.Now(),
				})
				mu.Lock()
				switch {
				case err == nil && out.Held:
					held++
				case errors.Is(err, wire.ErrHoldsFull):
					refused++
				default:
					t.Errorf("stranger %d: %+v, %v", i, out, err)
				}
				mu.Unlock()
			}
		})
	}
	began := time.Now()
	for i := range many {
		from <- i
	}
	close(from)
	group.Wait()
	t.Logf("%d tries in %s", many, time.Since(began).Round(time.Millisecond))
	if held != 200 || refused != many-200 {
		t.Errorf("%d held, %d refused, want 200 and the rest", held, refused)
	}
	if n := len(pendingAsks(t, sarah)); n != 200 {
		t.Errorf("%d questions wait, want 200", n)
	}
	if n := len(noticesOf(t, sarah, "approval")); n > 61 {
		t.Errorf("%d notices, want at most 61", n)
	}
	if page, err := sarah.Store.Steps().Conversations(t.Context(), "", 0, 1000, time.Now()); err != nil || len(page.Conversations) != 200 {
		t.Errorf("%d conversations, %v, want those of the holds", len(page.Conversations), err)
	}
	if n := len(sarah.Audit().Recent(5000)); n > 1001 {
		t.Errorf("%d sums are kept, want at most 1001", n)
	}
	must(t, sarah.Post(friend.Sign(friend.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
}

// TestHoldsComeAndGo: a stranger who cancels and asks again many times causes no more notices than others.
func TestHoldsComeAndGo(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Approval
		cfg.Rates = acl.Rates{}
	})
	for range 100 {
		d := chris.Draft(sarah.ID(), wire.Schedule, propose)
		must(t, sarah.Post(chris.Sign(d)), http.StatusAccepted)
		back := chris.Draft(sarah.ID(), wire.Schedule, `{"action":"cancel"}`)
		must(t, sarah.Post(chris.Sign(in(d.Conversation, back))), http.StatusOK)
	}
	if n := len(noticesOf(t, sarah, "approval")); n > 61 {
		t.Errorf("%d notices, want at most 61", n)
	}
}

// TestTwoDoorsDecide: if two doors decide about the same question at once, one succeeds. The other gets the decision
// that was made and by whom; the audit log has one line.
func TestTwoDoorsDecide(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	for i := range 10 {
		chris := mesh.Stranger(fmt.Sprint("chris-", i))
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		ask := theAsk(t, sarah)
		var shown acl.Ask
		if sarah.Call("GET", "/approvals/"+ask.ID, nil, &shown); shown.Hash == "" {
			t.Fatal("the question shows no hash")
		}
		doors := []struct {
			by     string
			choice acl.Choice
		}{{"cli", acl.Approve}, {"page", acl.Reject}, {"page", acl.Block}, {"cli", acl.Approve}}
		var group sync.WaitGroup
		answers := make([]meshtest.Answer, len(doors))
		for j, d := range doors {
			group.Go(func() {
				body := fmt.Sprintf(`{"choice":%q,"hash":%q,"by":%q}`, d.choice, shown.Hash, d.by)
				answers[j] = sarah.Ask("POST", "/approvals/"+ask.ID, []byte(body))
			})
		}
		group.Wait()
		won := -1
		for j, a := range answers {
			switch {
			case a.Status == http.StatusOK && won < 0:
				won = j
			case a.Status == http.StatusOK:
				t.Errorf("two decisions succeeded: %v and %v", doors[won], doors[j])
			case a.Status != http.StatusConflict:
				t.Errorf("%v: %d %s", doors[j], a.Status, a.Body)
			}
		}
		if won < 0 {
			t.Fatalf("nobody decided: %s", answers[0].Body)
		}
		lines, _, err := sarah.Audit().List(t.Context(), acl.AuditFilter{Kind: acl.AuditDecided, Subject: string(chris.ID)}, 0, 10, time.Now())
		if err != nil || len(lines) != 1 || lines[0].By != doors[won].by || lines[0].Choice != doors[won].choice || lines[0].Digest != shown.Hash {
			t.Errorf("log = %+v, %v, want the one of %v", lines, err, doors[won])
		}
		late := sarah.Ask("POST", "/approvals/"+ask.ID, fmt.Appendf(nil, `{"choice":"approve","hash":%q}`, shown.Hash))
		want := fmt.Sprintf("it was decided (%s) by %s at", doors[won].choice, doors[won].by)
		if late.Status != http.StatusConflict || !bytes.Contains(late.Body, []byte(want)) {
			t.Errorf("too late: %d %s", late.Status, late.Body)
		}
	}
}
