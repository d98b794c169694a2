package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

const proposalText = `{"id":"%s","kind":"mcp/proposal","to":["node"%s],"payload":{"method":"tools/call","params":{"name":"%s","arguments":{"query":"far"}}}}`

// TestLinkProposalApproved: a proposal waits for the owner. When approved, it becomes a request that names it, and the
// answer to the request closes the conversation.
func TestLinkProposalApproved(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "write_file"))
	ask := l.ask()
	l.decide(acl.Approve)
	request := dog.FromNode("mcp/request")
	to, _ := request.Get("to")
	if mewtest.About(request) != "p1" || string(to.JSON()) != `["dog"]` || mewtest.Text(mewtest.Payload(request, "method")) != "tools/call" || mewtest.Text(mewtest.Payload(request, "jsonrpc")) != "2.0" {
		t.Errorf("the request is %s", request.JSON())
	}
	// An answer from a participant that was not asked does not count.
	cat.Send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"result":{"forged":true}}}`)
	cat.Fence()
	dog.Send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"jsonrpc":"2.0","id":1,"result":{"ok":true}}}`)
	l.await("closed", func() bool {
		entries, err := l.home.Store.Steps().Transcript(t.Context(), ask.Conv, 0, 50)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, e := range entries {
			all.Write(e.Raw)
		}
		if strings.Contains(all.String(), "forged") {
			t.Fatal("an answer of somebody who was not asked came in")
		}
		return strings.Contains(all.String(), `"ok":true`)
	})
}

// TestLinkAnswerThatCannotBeStored: an answer that no message can hold ends the conversation about the proposal, too.
func TestLinkAnswerThatCannotBeStored(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	for i, result := range append(cannotStore, `"`+strings.Repeat("x", wire.MaxMessage)+`"`) {
		l.peers["cat"].Send(fmt.Sprintf(proposalText, fmt.Sprint("p", i), `,"dog"`, "read_file"))
		ask := l.ask()
		l.decide(acl.Approve)
		request := l.peers["dog"].FromNode("mcp/request")
		l.peers["dog"].Send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"result":` + result + `}}`)
		l.await("closed", func() bool {
			entries, err := l.home.Store.Steps().Transcript(t.Context(), ask.Conv, 0, 50)
			return err == nil && strings.Contains(string(entries[len(entries)-1].Raw), `"status":"completed"`) && strings.Contains(string(entries[len(entries)-2].Raw), "cannot be stored")
		})
	}
}

// TestLinkProposalEnds checks the ends of a proposal: the owner rejects it, its proposer withdraws it, another
// participant fulfills it, or the owner decides it in the space (MEW-L3).
func TestLinkProposalEnds(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	l.decide(acl.Reject)
	if no := cat.FromNode("mcp/reject"); mewtest.About(no) != "p1" || mewtest.Text(mewtest.Payload(no, "reason")) != "disagree" {
		t.Errorf("rejected with %s", no.JSON())
	}
	gone := func(why string) {
		t.Helper()
		l.await(why, func() bool {
			asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			return err == nil && len(asks) == 0
		})
	}
	cat.Send(fmt.Sprintf(proposalText, "p2", `,"dog"`, "x"))
	l.ask()
	dog.Send(`{"kind":"mcp/withdraw","correlation_id":["p2"],"payload":{}}`) // the gateway refuses it, and so does the link
	l.Inject(t.Context(), "dog", []byte(`{"id":"w","kind":"mcp/withdraw","correlation_id":["p2"],"payload":{}}`))
	l.ask()
	cat.Send(`{"kind":"mcp/withdraw","correlation_id":["p2"],"payload":{"reason":"no_longer_needed"}}`)
	gone("withdrawn")
	cat.Send(fmt.Sprintf(proposalText, "p3", `,"dog"`, "x"))
	l.ask()
	dog.Send(`{"kind":"mcp/request","to":["cat"],"correlation_id":["p3"],"payload":{"jsonrpc":"2.0","id":1,"method":"tools/call"}}`)
	gone("fulfilled")
	cat.Send(fmt.Sprintf(proposalText, "p4", `,"dog"`, "x"))
	l.ask()
	if _, err := l.l.Decide(t.Context(), mewtest.Key(t, l.l.View(), "p4"), true, ""); err != nil {
		t.Fatal(err)
	}
	request := dog.FromNode("mcp/request")
	if to, _ := request.Get("to"); mewtest.About(request) != "p4" || string(to.JSON()) != `["dog"]` {
		t.Errorf("the request is %s", request.JSON())
	}
	gone("decided in the space")
}

// TestLinkProposalFulfilledAtOnce: if another participant fulfills a proposal before the node has stored it, no question
// to the owner remains.
func TestLinkProposalFulfilledAtOnce(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	for i := range 20 {
		id := fmt.Sprintf("p%d", i)
		cat.Send(fmt.Sprintf(proposalText, id, `,"dog"`, "x"))
		dog.Until("mcp/proposal")
		dog.Send(`{"kind":"mcp/request","to":["cat"],"correlation_id":["` + id + `"],"payload":{"method":"tools/call"}}`)
		cat.Until("mcp/request")
	}
	cat.Send(`{"id":"last","kind":"chat","to":["node"],"payload":{"text":"done"}}`)
	for mewtest.About(cat.FromNode("chat/acknowledge")) != "last" {
	}
	if asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 100, time.Now()); err != nil || len(asks) != 0 {
		t.Errorf("the owner is still asked about %d fulfilled proposals, %v", len(asks), err)
	}
}

// TestLinkRequestMayHaveArrived: if the connection breaks before the echo of an approved request, the owner does not read
// that the request was not sent. The answer to the request ends the question.
func TestLinkRequestMayHaveArrived(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat", "dog"))
	deafen := makeDeaf(r)
	l := newLabOn(t, r, meshtest.New(t), linkOf(r, bridge.LinkPolicy{Access: "open"}))
	l.peers["cat"].Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	l.ask()
	deafen()
	l.decide(acl.Approve)
	request := l.peers["dog"].FromNode("mcp/request")
	l.Disconnect()
	l.Reconnect()
	if ask := l.ask(); !strings.Contains(string(ask.Body), "may have reached the space") {
		t.Errorf("the owner is asked %s", ask.Body)
	}
	l.peers["dog"].Send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"result":{}}}`)
	l.await("settled", func() bool {
		asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		return err == nil && len(asks) == 0
	})
}

// TestLinkProposalDecidedOnce: a proposal to this node has one record. A decision in the approvals, by command, on the
// page or over the API counts everywhere (THREATS 39).
func TestLinkProposalDecidedOnce(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	link := l.l // the command, the page and the API use it
	propose := func(id string) string {
		t.Helper()
		cat.Send(fmt.Sprintf(proposalText, id, `,"dog"`, "write_file"))
		l.ask()
		return mewtest.Key(t, l.l.View(), id)
	}
	again := func(key string) {
		t.Helper()
		l.await("off the list", func() bool { return len(l.l.View().Proposals) == 0 })
		for _, approve := range []bool{true, false} {
			if _, err := link.Decide(t.Context(), key, approve, ""); err == nil {
				t.Errorf("a decided proposal is decided again (approve: %v)", approve)
			}
		}
	}
	undone := func(id string) {
		t.Helper()
		if _, err := link.Say(t.Context(), []byte(`{"kind":"mcp/request","to":["dog"],"correlation_id":["`+id+`"],"payload":{"method":"tools/call"}}`)); err == nil {
			t.Error("a rejected proposal is carried out by an envelope of the owner")
		}
		for _, s := range dog.Fence() {
			if v := mewtest.Parse(t, s); v.GetStr("from") == "node" && v.GetStr("kind") == "mcp/request" {
				t.Errorf("a rejected proposal is carried out: %s", s)
			}
		}
	}

	key := propose("p1")
	l.decide(acl.Reject)
	cat.FromNode("mcp/reject")
	again(key)
	undone("p1")

	key = propose("p2")
	first := l.ask()
	if _, err := link.Decide(t.Context(), key, false, "unsafe"); err != nil {
		t.Fatal(err)
	}
	if no := cat.FromNode("mcp/reject"); mewtest.About(no) != "p2" || mewtest.Text(mewtest.Payload(no, "reason")) != "unsafe" {
		t.Errorf("rejected with %s", no.JSON())
	}
	again(key)
	undone("p2")
	if _, err := l.home.Asks().Decide(t.Context(), first.ID, first.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, acl.ErrAskGone) {
		t.Errorf("approved under approvals after the rejection: %v", err)
	}
	if ended, err := l.home.Asks().Get(t.Context(), first.ID, time.Now()); err != nil || ended.State != acl.AskRejected || ended.By != "mew" {
		t.Errorf("the question ended as %+v, %v", ended, err)
	}

	key = propose("p3")
	first = l.ask()
	if _, err := link.Decide(t.Context(), key, true, ""); err != nil {
		t.Fatal(err)
	}
	if request := dog.FromNode("mcp/request"); mewtest.About(request) != "p3" {
		t.Errorf("the request is %s", request.JSON())
	}
	again(key)
	if _, err := l.home.Asks().Decide(t.Context(), first.ID, first.Hash, acl.Reject, "test", time.Now()); !errors.Is(err, acl.ErrAskGone) {
		t.Errorf("rejected under approvals after the approval: %v", err)
	}
}

// TestLinkProposalToUsByCommand: this node carries out a proposal to it alone, wherever the owner approves it. The
// space sees the request and then its answer.
func TestLinkProposalToUsByCommand(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Send(fmt.Sprintf(proposalText, "p1", "", bridge.ToolDiscover))
	l.ask()
	if _, err := l.l.Decide(t.Context(), mewtest.Key(t, l.l.View(), "p1"), true, ""); err != nil {
		t.Fatal(err)
	}
	request, answer := cat.FromNode("mcp/request"), cat.FromNode("mcp/response")
	if mewtest.About(request) != "p1" || mewtest.About(answer) != request.GetStr("id") || !strings.Contains(string(mewtest.Payload(answer, "result").JSON()), string(l.far.ID())) {
		t.Errorf("request %s, answer %s", request.JSON(), answer.JSON())
	}
}

// TestLinkProposalByCommandRefused: a command decides about a proposal and not about a space. While the space itself
// waits for approval, the command refuses and says where to decide. A proposal is not decided if its result cannot be
// sent.
func TestLinkProposalByCommandRefused(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"})
	l.peers["cat"].Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	ask := l.ask()
	key := mewtest.Key(t, l.l.View(), "p1")
	for _, approve := range []bool{true, false} {
		if _, err := l.l.Decide(t.Context(), key, approve, ""); !goldentest.Refuses(t, "while the space waits", err) {
			t.Errorf("while the space waits (approve: %v): %v", approve, err)
		}
	}
	l.peers["cat"].Send(`{"kind":"participant/pause","to":["node"],"payload":{}}`)
	l.await("paused", func() bool { return l.l.View().Participants[0].Paused })
	if _, err := l.l.Decide(t.Context(), key, true, ""); !goldentest.Refuses(t, "during a pause", err) {
		t.Errorf("during a pause: %v", err)
	}
	if still := l.ask(); still.ID != ask.ID {
		t.Errorf("the question is %s, want %s", still.ID, ask.ID)
	}
}

// TestLinkProposalsOfOneID: two proposals with the same id are distinct: what the owner approved goes where that
// proposal said (MEW-L3).
func TestLinkProposalsOfOneID(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.Send(fmt.Sprintf(proposalText, "p1", `,"cat"`, "honest"))
	first := l.ask()
	dog.Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "evil"))
	pending := func() (asks []acl.Ask) {
		asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return asks
	}
	l.await("asked twice", func() bool { return len(pending()) == 2 })
	if _, err := l.home.Asks().Decide(t.Context(), first.ID, first.Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	request := dog.FromNode("mcp/request")
	if to, _ := request.Get("to"); string(to.JSON()) != `["cat"]` || mewtest.Text(mewtest.Payload(request, "params", "name")) != "honest" {
		t.Errorf("the owner approved cat's proposal, and the request is %s", request.JSON())
	}
	cat.Send(fmt.Sprintf(proposalText, "p1", `,"cat"`, "again"))
	l.await("asked again", func() bool { return len(pending()) == 2 })
	dog.Send(`{"kind":"mcp/withdraw","correlation_id":["p1"],"payload":{}}`)
	l.await("withdrawn", func() bool { return len(pending()) == 1 })
	if left := pending()[0]; !strings.Contains(string(left.Body), "again") {
		t.Errorf("dog withdrew its own proposal, and the other one is %s", left.Body)
	}
}

// TestLinkProposalWithoutCapability: without the capability, an approval fails visibly for the owner, and does not
// become a proposal (MEW-L4).
func TestLinkProposalWithoutCapability(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"}, "chat", "mcp/proposal", "mcp/response")
	l.peers["cat"].Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	first := l.ask()
	l.decide(acl.Approve)
	var again acl.Ask
	l.await("asked again", func() bool {
		asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err == nil && len(asks) == 1 {
			again = asks[0]
		}
		return again.ID != "" && again.ID != first.ID
	})
	if !strings.Contains(string(again.Body), "capabilities") {
		t.Errorf("the question does not give the reason: %s", again.Body)
	}
}

// TestLinkProposalToUsAlone: this node carries out a proposal that names nobody else, after the owner approved it.
func TestLinkProposalToUsAlone(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Send(fmt.Sprintf(proposalText, "p1", "", bridge.ToolDiscover))
	l.decide(acl.Approve)
	request := cat.FromNode("mcp/request")
	answer := cat.FromNode("mcp/response")
	if mewtest.About(request) != "p1" || mewtest.About(answer) != request.GetStr("id") || !strings.Contains(string(mewtest.Payload(answer, "result").JSON()), string(l.far.ID())) {
		t.Errorf("request %s, answer %s", request.JSON(), answer.JSON())
	}
}

// leavingMesh is a mesh that calls leave during a search.
type leavingMesh struct {
	bridge.Mesh
	leave func()
}

func (m leavingMesh) Find(ctx context.Context, q client.Query) ([]wire.Card, error) {
	m.leave()
	return m.Mesh.Find(ctx, q)
}

// TestLinkProposalResultIsKept: the result of a proposal that this node carries out reaches the space although the link
// breaks while the tool runs.
func TestLinkProposalResultIsKept(t *testing.T) {
	t.Parallel()
	r, m := start(t, newClubConfig(t, allKinds, "cat")), meshtest.New(t)
	home, links := m.Node("home", nil), []bridge.Link{linkOf(r, bridge.LinkPolicy{Access: "open"})}
	mesh, err := home.Attach(LinkKind(), links)
	if err != nil {
		t.Fatal(err)
	}
	var k *testLink
	k = newTestLinkWith(t, r, Config{
		Links: links, Mesh: leavingMesh{mesh, func() { k.Disconnect() }}, Records: home.Store.Records(), Steps: home.Store.Steps(),
	}, func(made *Bridge) { home.Connect(LinkKind(), made) }, "cat")
	l := &testLab{testLink: k, t: t, home: home, far: m.Node("far", nil)}
	cat := l.peers["cat"]
	cat.Send(fmt.Sprintf(proposalText, "p1", "", bridge.ToolDiscover))
	l.decide(acl.Approve)
	request := cat.FromNode("mcp/request")
	l.inbox(l.home, owner.ItemAnswered)
	l.Reconnect()
	if answer := cat.FromNode("mcp/response"); mewtest.About(answer) != request.GetStr("id") || mewtest.Payload(answer, "id").JSON() == nil ||
		!strings.Contains(string(mewtest.Payload(answer, "result").JSON()), string(l.far.ID())) {
		t.Errorf("the answer is %s", answer.JSON())
	}
}

// TestLinkProposalRefused: a proposal to this node about which the owner is never asked is not on the list of pending
// proposals, where nobody could decide it.
func TestLinkProposalRefused(t *testing.T) {
	proposal := []byte(`{"id":"p1","from":"cat","kind":"mcp/proposal","to":["node","dog"],"payload":{"method":"tools/call"}}`)
	for name, policy := range map[string]bridge.LinkPolicy{
		"filtered": {Access: "open", Filter: bridge.LinkFilter{Types: []string{"chat"}}},
		"refused":  {Access: "allowlist"},
		"dropped":  {Access: "open"},
	} {
		l := newLab(t, policy)
		handle := func(j job) { l.l.handleJob(t.Context(), j) }
		if name == "dropped" {
			handle = (&Link{cfg: l.l.cfg, log: l.l.log, space: l.l.space, seed: l.l.seed}).queue // its queues take nothing
		}
		l.l.space.mu.Lock()
		conn := l.l.space.conn
		l.l.space.mu.Unlock()
		j, ok := l.l.space.handle(t.Context(), conn, proposal)
		if !ok {
			t.Fatalf("%s: the proposal is not for the node", name)
		}
		handle(j)
		if list := l.l.View().Proposals; len(list) != 0 || !l.l.space.isToNode([]string{"p1"}) {
			t.Errorf("%s: %d proposals are pending", name, len(list))
		}
	}
}

// TestLinkProposalDecidedTwiceAtOnce: a second decision about a proposal to others fails while the first one waits for
// the gateway, so that a tool does not run twice. If the gateway refuses the first decision, another one is possible.
func TestLinkProposalDecidedTwiceAtOnce(t *testing.T) {
	conns, requests := make(chan *websocket.Conn, 1), make(chan wire.Value, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, websocket.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Drain()
		for _, s := range []string{
			`{"id":"1","from":"system:gateway","kind":"system/welcome","payload":{"you":{"id":"node","capabilities":["mcp/*"]},"participants":[{"id":"cat"},{"id":"dog"}]}}`,
			`{"id":"p1","from":"cat","to":["dog"],"kind":"mcp/proposal","payload":{"method":"tools/call"}}`,
		} {
			if err := conn.Send(websocket.Text([]byte(s))); err != nil {
				t.Error(err)
			}
		}
		conns <- conn
		for {
			_, data, err := conn.Read()
			if err != nil {
				return
			}
			requests <- mewtest.Parse(t, string(data))
		}
	}))
	t.Cleanup(srv.Close)
	link := bridge.Link{Name: "home", Kind: Kind, URL: "ws" + strings.TrimPrefix(srv.URL, "http"), Space: "lab"}
	r := start(t)
	k := newTestLink(t, r, Config{Links: []bridge.Link{link}, Mesh: bridgetest.Mesh{Receiver: blockedNode{}}, Records: r.Store.Records()})
	k.await("told", func() bool { return len(k.l.View().Proposals) == 1 })
	key, conn := mewtest.Key(t, k.l.View(), "p1"), <-conns
	for _, tt := range []struct {
		answer  func(wire.Value) string
		succeed bool
	}{
		{func(v wire.Value) string {
			return `{"id":"2","from":"system:gateway","kind":"system/error","correlation_id":["` + v.GetStr("id") + `"],"payload":{"error":"rate_limited"}}`
		}, false},
		{func(v wire.Value) string { return string(v.With("from", wire.Text("node")).JSON()) }, true},
	} {
		decided := make(chan error, 1)
		go func() {
			_, err := k.l.Decide(t.Context(), key, true, "")
			decided <- err
		}()
		request := <-requests
		if _, err := k.l.Decide(t.Context(), key, true, ""); err == nil || len(requests) != 0 {
			t.Fatalf("the second decision at the same time: %v", err)
		}
		if err := conn.Send(websocket.Text([]byte(tt.answer(request)))); err != nil {
			t.Fatal(err)
		}
		if err := <-decided; (err == nil) != tt.succeed {
			t.Errorf("the first decision about %s: %v", request.JSON(), err)
		}
	}
	if n := len(k.l.View().Proposals); n != 0 {
		t.Errorf("%d proposals are left", n)
	}
}
