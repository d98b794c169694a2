package mess

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// TestRefusedDocumentLeavesTheTurn: a document that is refused does not change whose turn it is: the item and the
// question follow the thread.
func TestRefusedDocumentLeavesTheTurn(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	refuse := func(ref, said string) {
		t.Helper()
		m := thread.Message{From: "bob", At: time.Now(), Mess: mustParse(t, said).Tree()}
		mark := store.Change{Record: store.Record{NS: exchange.NSSeen, Key: "file/" + ref + "/" + said}}
		if err := home.StoreRefusal(t.Context(), ref, m, "not allowed", nil, mark); err != nil {
			t.Fatal(err)
		}
	}
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_input, questions: [{field: shelf, question: Which shelf?}]")
	home.task(ref, "answer/3")
	refuse(ref, "- response: {content: [nonsense]}\n")
	item := home.task(ref, "answer/4")
	if !strings.Contains(string(item.Payload), "Which shelf?") || strings.Contains(string(item.Payload), "nonsense") {
		t.Errorf("item = %s", item.Payload)
	}
	home.reply(item.ID, text("top"), 200)
	home.want(ref, thread.InProgress)

	home.status("bob", ref, "needs_confirmation, action: sell the house")
	home.waitQuestion("sell the house")
	refuse(ref, "- status: {code: needs_confirmation, action: buy milk}\n")
	home.waitQuestion("sell the house")
	ask := home.waitQuestion(fmt.Sprintf(`"serial":%d`, home.thread(ref).Serial))
	if strings.Contains(string(ask.Body), "buy milk") {
		t.Errorf("the owner is shown %s", ask.Body)
	}
}

// TestImportedThreadIsATask: a thread that is adopted from files becomes the owner's task like any other.
func TestImportedThreadIsATask(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	file := "ref: 2026-03-01-001\nrequestor: claude\nstatus: received\nintent: look\ncreated: 2026-03-01T10:00:00Z\nupdated: 2026-03-01T10:00:00Z\n" +
		"---\nfrom: claude\nreceived: 2026-03-01T10:00:00Z\nMESS:\n  - request: {intent: look}\n"
	parsed, err := thread.ParseFiles([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	list, err := home.Adopt(t.Context(), []thread.ParsedFile{parsed})
	if err != nil {
		t.Fatal(err)
	}
	item := home.task(list[0].Ref, "work/0")
	home.reply(item.ID, text("seen"), 200)
	home.want(list[0].Ref, thread.Completed)
	home.waitItem(item, owner.ItemAnswered)
}
