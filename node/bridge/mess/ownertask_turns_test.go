package mess

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/store"
)

// waitQuestion waits for the only question to the owner whose body contains this text.
func (p *meshNode) waitQuestion(text string) (ask acl.Ask) {
	p.t.Helper()
	eventually(p.t.(*testing.T), "a question with "+text, func() bool {
		asks, _, err := p.node.Asks().List(p.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil || len(asks) != 1 || !strings.Contains(string(asks[0].Body), text) {
			return false
		}
		ask = asks[0]
		return true
	})
	return ask
}

// fill opens as many questions of a kind as may be open, and returns one of them.
func (p *meshNode) fill(kind string) store.Record {
	p.t.Helper()
	var changes []store.Change
	for i := range 200 {
		changes = append(changes, store.Change{Record: store.Record{NS: "asks-open", Key: fmt.Sprintf("%s/%d", kind, i), Terms: []string{kind}, Body: []byte("x")}})
	}
	if err := p.store.Records().Apply(p.t.Context(), changes, time.Now()); err != nil {
		p.t.Fatal(err)
	}
	return changes[0].Record
}

// TestAnswerGoesToTheRequester: an answer goes to the requester, even if the owner wrote last: the rules for outgoing
// messages depend on it.
func TestAnswerGoesToTheRequester(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_input, questions: [{field: shelf, question: Which shelf?}, {field: light, question: Is there light?}]")
	first := home.task(ref, "answer/3")
	home.reply(first.ID, `{"mess":[{"answer":{"id":"shelf","value":"top"}}]}`, 200)
	home.want(ref, thread.NeedsInput)
	next := home.task(ref, "answer/4")
	if s := string(next.Payload); next.PeerName != "bob" || next.Peer != first.Peer || !strings.Contains(s, "needs_input") || strings.Contains(s, "top") {
		t.Errorf("item of %s: %s", next.PeerName, s)
	}
}

// TestTaskAcceptsOnlyWork: an agent that may answer cannot cancel a request or end it in the name of the exchange.
func TestTaskAcceptsOnlyWork(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: look}")
	item := home.task(ref, "work/0")
	for _, code := range []string{"cancelled", "expired", "superseded", "received"} {
		home.reply(item.ID, `{"mess":[{"status":{"code":"`+code+`","reason":"x"}}]}`, 400)
	}
	home.want(ref, thread.Received)
	home.reply(item.ID, `{"mess":[{"status":{"code":"in_progress"}}]}`, 200)
	home.want(ref, thread.InProgress)
}

// TestConfirmationIsNotBuried: a later message of an executor does not replace its question.
func TestConfirmationIsNotBuried(t *testing.T) {
	const step = "sell the house"
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_confirmation, action: "+step)
	var much strings.Builder
	for range 60 {
		fmt.Fprintf(&much, "- remark: {re: %s, text: buy milk}\n", ref)
	}
	home.do("bob", much.String())
	if ask := home.waitQuestion(`"serial":63`); !strings.Contains(string(ask.Body), step) {
		t.Errorf("the owner is shown %s", ask.Body)
	}
}

// TestHeldIsAskedWhenThereIsRoom: the owner is asked about a held request as soon as there is room for the question.
func TestHeldIsAskedWhenThereIsRoom(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	slot := home.fill(askHeld)
	res, err := home.Do(t.Context(), actor("claude"), mustParse(t, "- request: {intent: look into the cellar}\n"), exchange.Options{Hold: true})
	if err != nil {
		t.Fatal(err)
	}
	home.want(res.Created[0], thread.Held)
	free := store.Change{Record: slot, IfRev: store.Any, Delete: true}
	if err := home.store.Records().Apply(t.Context(), []store.Change{free}, time.Now()); err != nil {
		t.Fatal(err)
	}
	home.waitQuestion("the cellar")
}

// TestFullQueueAsksNoDirectory: if enough questions wait for the owner, requests of strangers do not make the directory
// work again and again: the inbox has the request.
func TestFullQueueAsksNoDirectory(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.Mesh = listAgents(c.Mesh, "am_x")
	})
	home.fill(askRoute)
	home.task(home.request("claude", "{intent: look}"), "work/0")
	eventually(t, "an end of what is to be told", func() bool {
		page, err := home.store.Records().List(t.Context(), exchange.NSNotices, "", "", 10, time.Now())
		return err == nil && len(page.Records) == 0
	})
}
