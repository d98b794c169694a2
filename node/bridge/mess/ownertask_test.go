package mess

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// open returns the inbox items about a thread that can still be answered.
func (p *meshNode) open(ref string) (items []node.Item) {
	p.t.Helper()
	for _, i := range p.items(ref) {
		if i.State == owner.ItemNew || i.State == owner.ItemRead {
			items = append(items, i)
		}
	}
	return items
}

func (p *meshNode) items(ref string) (items []node.Item) {
	p.t.Helper()
	all, _, err := p.node.Inbox(p.t.Context(), "", "", 1000)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, i := range all {
		if i.About == "mess/"+ref {
			items = append(items, i)
		}
	}
	return items
}

// task waits for the only open item about a thread for this turn.
func (p *meshNode) task(ref, turn string) (item node.Item) {
	p.t.Helper()
	eventually(p.t.(*testing.T), turn+" in the inbox", func() bool {
		items := p.open(ref)
		if len(items) != 1 || items[0].Turn != turn {
			return false
		}
		item = items[0]
		return true
	})
	return item
}

func (p *meshNode) waitItem(item node.Item, state owner.ItemState) {
	p.t.Helper()
	eventually(p.t.(*testing.T), item.ID+" "+string(state), func() bool {
		got, err := p.node.Item(p.t.Context(), item.ID)
		return err == nil && got.State == state
	})
}

func (p *meshNode) reply(item, payload string, status int) string {
	p.t.Helper()
	a := p.node.Ask("POST", "/reply", []byte(`{"item":"`+item+`","payload":`+payload+`}`))
	if a.Status != status {
		p.t.Errorf("reply %s: %d %s, want %d", payload, a.Status, a.Body, status)
	}
	return string(a.Body)
}

func text(s string) string { return `{"action":"deliver","message":{"body":"` + s + `"}}` }

// TestInboxWork: the owner claims, asks, and completes a stranger's request from the inbox alone (MESS section 12).
func TestInboxWork(t *testing.T) {
	const asked = "how many eggs"
	const answer = "the left one"
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: "+asked+" are there?, id: eggs}")
	item := home.task(ref, "work/0")
	if item.State != owner.ItemNew || item.Kind != "task" || item.PeerName != "claude" || item.Intent != Intent || item.Verified != "bearer" ||
		!strings.Contains(string(item.Payload), asked) || item.Conversation != "" || item.Digest == "" {
		t.Errorf("item = %+v", item)
	}
	home.reply(item.ID, `{"action":"accept","eta":"5m"}`, 200)
	home.want(ref, thread.Claimed)
	if th := home.thread(ref); th.Holder != thread.OwnerID {
		t.Errorf("holder = %s", th.Holder)
	}
	home.waitItem(item, owner.ItemRead) // it is not done yet
	body := home.reply(item.ID, `{"mess":[{"status":{"re":"`+ref+`","code":"needs_input","questions":[{"field":"door","question":"Which door?"}]}}]}`, 200)
	if !strings.Contains(body, `"ack"`) {
		t.Errorf("the reply shows %s", body)
	}
	home.waitItem(item, owner.ItemAnswered)
	home.want(ref, thread.NeedsInput)
	if open := home.open(ref); len(open) != 0 {
		t.Errorf("it is the requester's turn, and the inbox has %+v", open)
	}
	home.do("claude", "- answer: {re: "+ref+", value: "+answer+"}\n")
	again := home.task(ref, "work/1")
	if again.State != owner.ItemNew || !strings.Contains(string(again.Payload), answer) {
		t.Errorf("item = %+v", again)
	}
	home.reply(item.ID, text("seven"), 409) // answered already
	home.reply(again.ID, text("seven"), 200)
	home.want(ref, thread.Completed)
	home.waitItem(again, owner.ItemAnswered)
	home.reply(again.ID, text("eight"), 409)
	list, err := home.Messages(t.Context(), ref)
	if err != nil || !strings.Contains(string(list[len(list)-1].Mess.JSON()), "seven") {
		t.Errorf("messages end with %v, %v", list[len(list)-1], err)
	}
}

// TestInboxFollowsTheThread: an offer leaves the inbox when somebody else claims the thread, and returns when the claim
// is undone.
func TestInboxFollowsTheThread(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	take := func() (string, node.Item) {
		t.Helper()
		ref := home.request("claude", "{intent: look}")
		return ref, home.task(ref, "work/0")
	}
	ref, item := take()
	home.status("bob", ref, "claimed")
	home.waitItem(item, owner.ItemWithdrawn)
	home.reply(item.ID, text("I looked"), 409)
	home.want(ref, thread.Claimed)

	ref, item = take()
	home.do("claude", "- cancel: {re: "+ref+"}\n")
	home.waitItem(item, owner.ItemWithdrawn)

	ref, item = take() // by the owner, elsewhere
	home.status(thread.OwnerID, ref, "claimed")
	home.waitItem(item, owner.ItemRead)
	home.do(thread.OwnerID, "- response: {re: "+ref+", content: [seen]}\n")
	home.waitItem(item, owner.ItemAnswered)

	ref, item = take()
	home.reply(item.ID, `{"action":"decline","reason":"not today"}`, 200)
	if th := home.want(ref, thread.Declined); th.History[len(th.History)-1].By != thread.OwnerID {
		t.Errorf("history = %v", th.History)
	}

	ref, item = take()
	home.status(thread.OwnerID, ref, "held")
	home.waitItem(item, owner.ItemAnswered)
	home.status(thread.OwnerID, ref, "received")
	if next := home.task(ref, "work/0"); next.ID == item.ID {
		t.Error("an item that ended came back")
	}
}

// TestInboxAnswerTooLate: nobody can answer for the executor who was faster, even before the inbox knows of that.
func TestInboxAnswerTooLate(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	for range 20 {
		ref := home.request("claude", "{intent: look}")
		item := home.task(ref, "work/0")
		home.status("bob", ref, "claimed") // at once, before or after the item has gone
		home.reply(item.ID, text("I looked"), 409)
		if th := home.want(ref, thread.Claimed); th.Holder != "bob" || th.Serial != 2 {
			t.Fatalf("holder %s, %d messages", th.Holder, th.Serial)
		}
	}
}

// TestInboxAnsweredOnce: of many answers to one task, one is applied.
func TestInboxAnsweredOnce(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: look}")
	item := home.task(ref, "work/0")
	var group sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for range 16 {
		group.Go(func() {
			a := home.node.Ask("POST", "/reply", []byte(`{"item":"`+item.ID+`","payload":`+text("I looked")+`}`))
			mu.Lock()
			defer mu.Unlock()
			got[a.Status]++
		})
	}
	group.Wait()
	if got[http.StatusOK] != 1 || got[http.StatusConflict] != 15 {
		t.Errorf("answers = %v, want one 200 and 15 times 409", got)
	}
	if th := home.want(ref, thread.Completed); th.Serial != 2 {
		t.Errorf("%d messages, want the request and one response", th.Serial)
	}
}

// TestInboxQuestions: a question to the owner is in the inbox with its options, and the owner's answer is about what
// was asked.
func TestInboxQuestions(t *testing.T) {
	const second = "Is there light?"
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_input, questions: [{field: shelf, question: Which shelf?, options: [top, door]}, {field: light, question: "+second+"}]")
	item := home.task(ref, "answer/3")
	if s := string(item.Payload); !strings.Contains(s, `"options":["top","door"]`) || !strings.Contains(s, second) || item.PeerName != "bob" {
		t.Errorf("item of %s: %s", item.PeerName, s)
	}
	if body := home.reply(item.ID, text("top"), 409); !goldentest.Says(t, "text for two questions", body) {
		t.Errorf("refusal = %s", body)
	}
	for payload, want := range map[string]string{`{}`: `\"shelf\": …`, `{"action":"accept"}`: `\"light\": …`} {
		if body := home.reply(item.ID, payload, 400); !strings.Contains(body, want) {
			t.Errorf("%s: %s, want a word that has %s", payload, body, want)
		}
	}
	home.status("bob", ref, "needs_input, questions: [{field: price, question: For how much shall I sell it?}]")
	home.reply(item.ID, `{"answers":{"shelf":"top","light":"yes"}}`, 409)
	home.want(ref, thread.NeedsInput)
	next := home.task(ref, "answer/4")
	home.waitItem(item, owner.ItemWithdrawn)
	home.reply(next.ID, text("not at all"), 200)
	home.want(ref, thread.InProgress)
	home.waitItem(next, owner.ItemAnswered)
}

// TestInboxRefuses: answers that are not allowed are refused and change nothing.
func TestInboxRefuses(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: look, confirm_before: true}")
	home.request("claude", "{intent: wait, id: other}")
	item := home.task(ref, "work/0")
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for payload, status := range map[string]int{
		`{}`:                                    400,
		`{"action":"dance"}`:                    400,
		`{"message":"x"}`:                       400,
		`{"mess":"x"}`:                          400,
		`{"mess":[]}`:                           400,
		`{"mess":[{"a":1,"b":2}]}`:              400,
		`{"mess":[{"request":{"intent":"x"}}]}`: 400,
		`{"mess":[{"config":{"routing":{"rules":[]}}}]}`:                        400,
		`{"mess":[{"status":{"code":"nonsense"}}]}`:                             400,
		`{"mess":[{"status":{"re":"other","code":"claimed"}}]}`:                 400,
		`{"mess":[{"status":{"re":["` + ref + `","other"],"code":"claimed"}}]}`: 400,
		`{"mess":[{"cancel":{"re":"` + ref + `"}}]}`:                            400,
		`{"mess":[{"response":{"re":"nowhere","content":["x"]}}]}`:              400,
		`{"mess":[{"reply":{"re":"` + ref + `","confirm":true}}]}`:              400,
		`{"action":"accept","eta":7}`:                                           400,
		text("done"):                                                            409, // its requester confirms first
		`{"mess":[{"note":` + deep + `}]}`:                                      400,
	} {
		home.reply(item.ID, payload, status)
	}
	if a := home.node.Ask("POST", "/reply", []byte(`{"item":"`+item.ID+`","payload":{"action":"accept"},"seal":"seal"}`)); a.Status != 400 {
		t.Errorf("sealed: %d %s", a.Status, a.Body)
	}
	if th := home.want(ref, thread.Received); th.Serial != 1 {
		t.Errorf("%d messages", th.Serial)
	}
	if got := home.open(ref); len(got) != 1 || got[0].State != owner.ItemNew {
		t.Errorf("items = %+v", got)
	}
}

// TestInboxShortens: the inbox names a large request, which is read in its thread.
func TestInboxShortens(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: look, context: ["+strings.Repeat("'"+strings.Repeat("many words ", 900)+"', ", 9)+"the end]}")
	item := home.task(ref, "work/0")
	if len(item.Payload) > 2000 || !strings.Contains(string(item.Payload), `"shortened":true`) {
		t.Errorf("%d bytes: %.200s", len(item.Payload), item.Payload)
	}
	home.reply(item.ID, text("done"), 200)
	home.want(ref, thread.Completed)
}

// TestStaleQuestionsAreWithdrawn: a question whose thread has moved on is withdrawn.
func TestStaleQuestionsAreWithdrawn(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	pending := func(n int) (asks []acl.Ask) {
		t.Helper()
		eventually(t, "questions", func() bool {
			var err error
			asks, _, err = home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			return err == nil && len(asks) == n
		})
		return asks
	}
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_confirmation, action: sell the house")
	pending(1)
	home.status("bob", ref, "needs_confirmation, action: buy milk")
	eventually(t, "the newer question alone", func() bool {
		asks := pending(1)
		return strings.Contains(string(asks[0].Body), `"serial":4`)
	})
	home.do(thread.OwnerID, "- reply: {re: "+ref+", confirm: true}\n") // elsewhere
	pending(0)
	home.want(ref, thread.InProgress)

	home.status("bob", ref, "needs_confirmation, action: eat it")
	pending(1)
	home.do(thread.OwnerID, "- cancel: {re: "+ref+"}\n")
	pending(0)
}

// TestInboxAnswerWaitsForTheOwner: the rules for outgoing messages apply to answers from the inbox: the owner is asked,
// and exactly the shown answer is sent.
func TestInboxAnswerWaitsForTheOwner(t *testing.T) {
	home := newMeshNodeWith(t, meshtest.New(t), "home", nil, func(c *node.Config) { c.Outbound = node.OutboundPolicy{Mode: acl.Approval} })
	held := func(ref string) (node.Item, acl.Ask) {
		t.Helper()
		item := home.task(ref, "work/0")
		body := home.reply(item.ID, text("seven"), 200)
		if !strings.Contains(body, `"state":"held"`) {
			t.Fatalf("reply = %s", body)
		}
		home.waitItem(item, owner.ItemHeld)
		home.want(ref, thread.Received)
		if body := home.reply(item.ID, text("eight"), 409); !goldentest.Says(t, "a second answer", body) {
			t.Errorf("a second answer: %s", body)
		}
		asks, _, err := home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil || len(asks) != 1 || !strings.Contains(string(asks[0].Body), "seven") || asks[0].About != "mess/"+ref {
			t.Fatalf("asks = %+v, %v", asks, err)
		}
		return item, asks[0]
	}
	decide := func(a acl.Ask, choice string, status int) {
		t.Helper()
		if got := home.node.Ask("POST", "/approvals/"+a.ID, []byte(`{"choice":"`+choice+`","hash":"`+a.Hash+`"}`)); got.Status != status {
			t.Errorf("%s: %d %s, want %d", choice, got.Status, got.Body, status)
		}
	}
	ref := home.request("claude", "{intent: how many eggs?}")
	item, ask := held(ref)
	decide(ask, "reject", 200)
	home.waitItem(item, owner.ItemNew)
	home.want(ref, thread.Received)
	item, ask = held(ref)
	decide(ask, "approve", 200)
	home.waitItem(item, owner.ItemAnswered)
	home.want(ref, thread.Completed)

	ref = home.request("claude", "{intent: how many spoons?}")
	item, ask = held(ref)
	home.do("claude", "- cancel: {re: "+ref+"}\n")
	home.waitItem(item, owner.ItemWithdrawn)
	decide(ask, "approve", 409)
	home.want(ref, thread.Cancelled)

	ref = home.request("claude", "{intent: how many forks?}")
	_, ask = held(ref)
	home.executor("bob")
	home.status("bob", ref, "claimed")
	decide(ask, "approve", 409) // whether or not the inbox has changed yet
	home.want(ref, thread.Claimed)

	ref = home.request("claude", "{intent: how many plates?}")
	_, ask = held(ref)
	decide(ask, "always", 200)
	home.want(ref, thread.Completed)
	ref = home.request("claude", "{intent: how many cups?}")
	home.reply(home.task(ref, "work/0").ID, text("nine"), 200)
	home.want(ref, thread.Completed)
}

// TestInboxAnswerMayNotLeave: an answer that may not leave is not sent.
func TestInboxAnswerMayNotLeave(t *testing.T) {
	home := newMeshNodeWith(t, meshtest.New(t), "home", nil, func(c *node.Config) { c.Outbound = node.OutboundPolicy{Mode: acl.Allowlist, Allow: []string{"am_x"}} })
	ref := home.request("claude", "{intent: look}")
	home.reply(home.task(ref, "work/0").ID, text("done"), 403)
	home.want(ref, thread.Received)
}
