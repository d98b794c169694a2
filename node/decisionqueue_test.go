package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// stranger is a stranger that writes to one member.
type stranger struct {
	*meshtest.Stranger
	t  *testing.T
	to *meshtest.Member
}

func (s stranger) sign(conv wire.ConversationID, text string) []byte {
	return s.Sign(in(conv, s.Draft(s.to.ID(), wire.Deliver, fmt.Sprintf(`{"action":"deliver","message":{"body":%q}}`, text))))
}

// says posts texts, each in the conversation named after its first letter, and returns the posted bytes.
func (s stranger) says(texts ...string) (raws [][]byte) {
	s.t.Helper()
	for _, text := range texts {
		raw := s.sign(wire.ConversationID("conv_"+text[:1]), text)
		a := s.to.Post(raw)
		must(s.t, a, http.StatusAccepted)
		if m := a.Message(s.t, s.to); m.Action() != wire.ActionPending {
			s.t.Errorf("%s is answered with %s, want a pending approval", text, m.Action())
		}
		raws = append(raws, raw)
	}
	return raws
}

func newHeldStranger(t *testing.T, configure func(*node.Config)) (stranger, *meshtest.Member, *meshtest.Mesh) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", configure)
	return stranger{mesh.Stranger("chris"), t, sarah}, sarah, mesh
}

// texts returns the bodies of the items in a state, in the order of the inbox.
func texts(t *testing.T, m *meshtest.Member, state owner.ItemState) (out []string) {
	t.Helper()
	items, _, err := m.Inbox(t.Context(), state, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		out = append(out, bodyOf(t, item.Payload))
	}
	return out
}

func bodyOf(t *testing.T, payload []byte) string {
	t.Helper()
	v, err := wire.ParseObject(payload)
	if err != nil {
		t.Error(err)
	}
	message, _ := v.Get("message")
	return message.GetStr("body")
}

func wantTexts(t *testing.T, m *meshtest.Member, state owner.ItemState, want ...string) {
	t.Helper()
	if got := texts(t, m, state); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", state, got, want)
	}
}

// TestTailIsReleased (AM-33, AM-34): all messages of a stranger while the owner decides belong to one question, one
// notice and one decision, whatever their conversation.
func TestTailIsReleased(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Approve, acl.ApproveOnce, acl.ApproveConversation} {
		chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
		raws := chris.says("a1", "b1", "a2", "c1")
		if n := len(notices(t, sarah)); n != 1 {
			t.Errorf("%s: the owner got %d notices, want 1", choice, n)
		}
		ask := theAsk(t, sarah)
		decide(t, sarah, ask, choice)
		wantTexts(t, sarah, owner.ItemNew, "a1", "b1", "a2", "c1")
		wantTexts(t, sarah, owner.ItemHeld)
		for i, raw := range raws { // AM-22: a repeat gets the final answer
			a := sarah.Post(raw)
			must(t, a, http.StatusOK)
			if m := a.Message(t, sarah); m.Action() != wire.ActionReceived {
				t.Errorf("%s: repeat of message %d: %s", choice, i, a.Body)
			}
		}
		if asks := pendingAsks(t, sarah); len(asks) != 0 {
			t.Errorf("%s: %d questions are still open", choice, len(asks))
		}
	}
}

// TestTailIsRefused (AM-35): no message of a rejected sender gets in, every conversation is closed once, and a repeat
// of each message gets the close. Messages that arrived after the owner saw the question are refused too.
func TestTailIsRefused(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Reject, acl.Block} {
		chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
		raws := chris.says("a1", "b1")
		ask := theAsk(t, sarah)
		raws = append(raws, chris.says("a2")...)
		decide(t, sarah, ask, choice)
		wantTexts(t, sarah, owner.ItemRejected, "a1", "b1", "a2")
		closes := 0
		for _, id := range []string{"conv_a", "conv_b"} {
			entries, err := sarah.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(chris.ID), ID: id}, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Out && strings.Contains(string(e.Raw), "OWNER_REJECTED") {
					closes++
				}
			}
		}
		if closes != 3 { // the second close in conv_a is only the answer to a repeat
			t.Errorf("%s: %d closes are in the transcripts, want 3", choice, closes)
		}
		if sent := outboxEntries(t, sarah); len(sent) != 2 {
			t.Errorf("%s: %d messages leave, want one close for each conversation", choice, len(sent))
		}
		if choice == acl.Block {
			continue // repeats of a blocked sender are refused before they are read
		}
		for i, raw := range raws {
			if m := sarah.Post(raw).Message(t, sarah); m.Action() != wire.ActionClose || m.Meta("in_reply_to") == "" {
				t.Errorf("repeat of message %d: %s", i, m.Payload.JSON())
			}
		}
	}
}

func notices(t *testing.T, m *meshtest.Member) []json.RawMessage {
	t.Helper()
	var page struct {
		Items []json.RawMessage `json:"items"`
	}
	m.Call("GET", "/notices", nil, &page)
	return page.Items
}

func outboxEntries(t *testing.T, m *meshtest.Member) []node.OutboxEntry {
	t.Helper()
	var page struct {
		Items []node.OutboxEntry `json:"items"`
	}
	m.Call("GET", "/outbox", nil, &page)
	return page.Items
}

// TestTailIsBounded (AM-33): at most 16 messages and 64 KiB wait behind one question. A further message is refused for
// now and leaves no trace.
func TestTailIsBounded(t *testing.T) {
	chris, sarah, mesh := newHeldStranger(t, mode(acl.Approval))
	for i := range 16 {
		chris.says(fmt.Sprintf("a%d", i))
	}
	refused := func(who stranger, text string) {
		t.Helper()
		before := state(t, sarah)
		if a := sarah.Post(who.sign("conv_new", text)); a.Code() != wire.RateLimited || !strings.Contains(string(a.Body), `"retry":true`) {
			t.Errorf("beyond the bound: %d %s, want %s", a.Status, a.Body, wire.RateLimited)
		}
		if after := state(t, sarah); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
	}
	refused(chris, "one more")
	bob := stranger{mesh.Stranger("bob"), t, sarah}
	bob.says("a" + strings.Repeat("x", 40<<10))
	refused(bob, strings.Repeat("x", 30<<10))
	bob.says("a small one fits")
}

// TestTailShownIsDecided (AM-34): messages that arrived after the owner saw the question form the next question.
func TestTailShownIsDecided(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	chris.says("a1", "b1")
	ask := theAsk(t, sarah)
	chris.says("a2", "c1")
	decide(t, sarah, ask, acl.ApproveOnce)
	wantTexts(t, sarah, owner.ItemNew, "a1", "b1")
	wantTexts(t, sarah, owner.ItemHeld, "a2", "c1")
	chris.says("d1")
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	wantTexts(t, sarah, owner.ItemNew, "a1", "b1", "a2", "c1", "d1")
}

// TestTailReachesHookInOrder: the agent gets the released messages one after the other, even if it is slow.
func TestTailReachesHookInOrder(t *testing.T) {
	t.Parallel() // it mostly waits
	var working atomic.Int32
	got := make(chan string, 16)
	chris, sarah, _ := newHeldStranger(t, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		if working.Add(1) != 1 {
			t.Error("two hooks run at once for messages of one decision")
		}
		defer working.Add(-1)
		got <- bodyOf(t, c.Payload)
		<-time.After(20 * time.Millisecond) // long enough to overlap with the next run if the node does not wait
		return hook.Answer{}, nil
	}, mode(acl.Approval)))
	want := []string{"a1", "b1", "c1", "d1", "e1", "f1"}
	chris.says(want...)
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	for _, text := range want {
		select {
		case next := <-got:
			if next != text {
				t.Errorf("the agent gets %s, want %s", next, text)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the agent does not get %s", text)
		}
	}
}

// TestThisConversation (AM-34): after an approval of the conversation, later messages in it are accepted without a
// question. Other conversations and sensitive intents are not, and a block takes precedence.
func TestThisConversation(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	chris.says("a1")
	decide(t, sarah, theAsk(t, sarah), acl.ApproveConversation)
	must(t, sarah.Post(chris.sign("conv_a", "a2")), http.StatusOK)
	chris.says("b1")
	if conv := theAsk(t, sarah).Conv.ID; conv != "conv_b" {
		t.Errorf("the owner is asked about %s, want the other conversation", conv)
	}
	must(t, sarah.Post(chris.sign("conv_a", "a3")), http.StatusOK)
	deal := in("conv_a", chris.Draft(sarah.ID(), wire.Negotiate, `{"action":"propose","terms":{"description":"a deal"}}`))
	must(t, sarah.Post(chris.Sign(deal)), http.StatusAccepted) // commits the owner (AM-31)
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	if a := sarah.Post(chris.sign("conv_a", "a4")); a.Code() != wire.Unauthorized {
		t.Errorf("a blocked sender in its conversation: %d %s", a.Status, a.Body)
	}
}

// TestThisConversationOfAnIntent: the owner can approve a sensitive intent for a conversation.
func TestThisConversationOfAnIntent(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, open)
	talk := func(conv wire.ConversationID) int {
		return sarah.Post(chris.Sign(in(conv, chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`)))).Status
	}
	if status := talk("conv_a"); status != http.StatusAccepted {
		t.Fatalf("first: %d", status)
	}
	decide(t, sarah, theAsk(t, sarah), acl.ApproveConversation)
	if here, elsewhere := talk("conv_a"), talk("conv_b"); here != http.StatusOK || elsewhere != http.StatusAccepted {
		t.Errorf("in the conversation %d, in another %d", here, elsewhere)
	}
}

// TestThisConversationUnderAllowlist: an approval does not count in allowlist mode (AM-29).
func TestThisConversationUnderAllowlist(t *testing.T) {
	chris, sarah, mesh := newHeldStranger(t, mode(acl.Approval))
	chris.says("a1")
	decide(t, sarah, theAsk(t, sarah), acl.ApproveConversation)
	chris.to = mesh.Restart(sarah, mode(acl.Allowlist))
	if a := chris.to.Post(chris.sign("conv_a", "a2")); a.Code() != wire.Unauthorized {
		t.Errorf("%d %s, want %s", a.Status, a.Body, wire.Unauthorized)
	}
}

// TestTailIsTakenBack (AM-36): a sender can cancel a message that waits behind another one, and also the first one.
func TestTailIsTakenBack(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	chris.says("a1", "b1", "c1")
	ask := theAsk(t, sarah)
	must(t, sarah.Post(chris.Sign(in("conv_b", chris.Draft(sarah.ID(), wire.Schedule, `{"action":"cancel"}`)))), http.StatusOK)
	if _, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, acl.ErrHashMismatch) {
		t.Errorf("approve a question from which a message was withdrawn: %v", err)
	}
	must(t, sarah.Post(chris.Sign(in("conv_a", chris.Draft(sarah.ID(), wire.Deliver, `{"action":"close","status":"failed"}`)))), http.StatusOK)
	wantTexts(t, sarah, owner.ItemWithdrawn, "a1", "b1")
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	wantTexts(t, sarah, owner.ItemNew, "c1")
}

// TestTailAfterBlock (THREATS 30): a release checks the block list again.
func TestTailAfterBlock(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	chris.says("a1", "b1")
	ask := theAsk(t, sarah)
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	if _, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("approve a blocked sender: %v, want %v", err, wire.ErrNotAllowed)
	}
	wantTexts(t, sarah, owner.ItemHeld, "a1", "b1")
}

// TestTailAfterBlockMeanwhile: a message that waits for the hook while the owner blocks its sender is rejected, and no
// longer keeps its conversation open.
func TestTailAfterBlockMeanwhile(t *testing.T) {
	started, done := make(chan struct{}), make(chan struct{})
	chris, sarah, _ := newHeldStranger(t, configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		close(started)
		<-done
		return hook.Answer{}, nil
	}, mode(acl.Approval)))
	chris.says("a1", "b1")
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	<-started
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	close(done)
	waitFor(t, "the second message is rejected", func() bool { return len(texts(t, sarah, owner.ItemRejected)) == 1 })
	row, err := sarah.Store.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(chris.ID), ID: "conv_b"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if conv, err := conversations.Decode(row); err != nil || len(conv.Held) != 0 {
		t.Errorf("the conversation waits until %v (%v)", conv.Held, err)
	}
}

// TestTailExpires (AM-33): all messages of a question expire together with the first one.
func TestTailExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", holdShortly(mode(acl.Approval)))
		stop := run(t, sarah)
		chris := stranger{mesh.Stranger("chris"), t, sarah}
		chris.says("a1")
		time.Sleep(time.Hour)
		chris.says("b1")
		time.Sleep(shortHold - time.Hour)
		synctest.Wait()
		wantTexts(t, sarah, owner.ItemExpired, "a1", "b1")
		if asks := pendingAsks(t, sarah); len(asks) != 0 {
			t.Errorf("%d questions are still open", len(asks))
		}
		stop()
	})
}

func run(t *testing.T, m *meshtest.Member) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// failingStore is a store that accepts a number of steps and then fails, like that of a killed process.
type failingStore struct {
	store.Store
	left *atomic.Int32
}

func (d failingStore) Steps() store.Steps { return failingSteps{d.Store.Steps(), d.left} }

type failingSteps struct {
	store.Steps
	left *atomic.Int32
}

func (d failingSteps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if d.left.Add(-1) < 0 {
		return store.Applied{}, store.ErrUnavailable
	}
	return d.Steps.Apply(ctx, step)
}

// TestDecisionSurvivesACrash: wherever a process dies after it stored a decision, the next one completes the decision,
// once and in order.
func TestDecisionSurvivesACrash(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
		for steps := range 4 {
			mesh := meshtest.New(t)
			left := new(atomic.Int32)
			left.Store(1000)
			s := meshtest.Store(t)
			dead := mesh.Node("sarah", func(cfg *node.Config) {
				cfg.Policy.Mode, cfg.Store = acl.Approval, failingStore{s, left}
			})
			stranger{mesh.Stranger("chris"), t, dead}.says("a1", "b1", "a2")
			ask := theAsk(t, dead)
			left.Store(int32(steps))
			_, err := dead.Asks().Decide(t.Context(), ask.ID, ask.Hash, choice, "test", time.Now())
			if stored := err == nil; stored != (steps > 0) {
				t.Fatalf("%s, killed after %d steps: %v", choice, steps, err)
			}
			dead.Stop()
			sarah := mesh.Copy(dead, func(cfg *node.Config) { cfg.Policy.Mode, cfg.Store = acl.Approval, s })
			state := map[acl.Choice]owner.ItemState{acl.Approve: owner.ItemNew, acl.Reject: owner.ItemRejected}[choice]
			if steps == 0 {
				state = owner.ItemHeld
			}
			sarah.Start()
			awaitTrue(t, func() bool { return len(texts(t, sarah, state)) == 3 })
			wantTexts(t, sarah, state, "a1", "b1", "a2")
		}
	}
}

func awaitTrue(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("timed out")
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestTailIsShown: the owner sees the sender and every message of a question, in the API and on the page.
func TestTailIsShown(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	chris.says("a words", "b <script>more", "c and more")
	ask := theAsk(t, sarah)
	var view owner.Approval
	var page struct {
		Items []owner.Approval `json:"items"`
	}
	sarah.Call("GET", "/approvals/"+ask.ID, nil, &view)
	sarah.Call("GET", "/approvals", nil, &page)
	if len(page.Items) != 1 {
		t.Fatalf("%d questions are listed, want 1", len(page.Items))
	}
	for _, v := range []owner.Approval{view, page.Items[0]} {
		if v.Name == "" || bridge.Party(v.Name, v.Address(), v.Subject) != v.Name || v.Says() != "a words" || v.Hash != ask.Hash {
			t.Errorf("who %q, says %q, hash %s", bridge.Party(v.Name, v.Address(), v.Subject), v.Says(), v.Hash)
		}
		var hashes, said []string
		for _, m := range v.Messages {
			hashes, said = append(hashes, m.Hash), append(said, m.Summary)
		}
		if !slices.Equal(said, []string{"a words", "b <script>more", "c and more"}) || acl.Chain(hashes...) != ask.Hash {
			t.Errorf("messages %q with hashes %v", said, hashes)
		}
	}
	// The id of a later message finds the same question.
	sarah.Call("GET", "/approvals/"+view.Messages[2].Ask, nil, &view)
	if view.ID != ask.ID {
		t.Errorf("the last message is shown as %s, want %s", view.ID, ask.ID)
	}
	for _, path := range []string{"approvals", "approvals/" + ask.ID} {
		body := ownerPage(t, sarah, path)
		for _, want := range []string{"a words", "b &lt;script&gt;more", "c and more", ask.Hash, `value="conversation"`} {
			if !strings.Contains(body, want) {
				t.Errorf("page %s lacks %q", path, want)
			}
		}
		if strings.Contains(body, "<script>more") {
			t.Errorf("page %s has markup of a peer", path)
		}
	}
	decide(t, sarah, ask, acl.Approve)
	sarah.Call("GET", "/approvals/"+ask.ID, nil, &view)
	if len(view.Messages) != 3 || view.State != acl.AskApproved {
		t.Errorf("decided: %s with %d messages", view.State, len(view.Messages))
	}
}

// TestSummary: the summary of a question is its subject or body, on one line.
func TestSummary(t *testing.T) {
	chris, sarah, _ := newHeldStranger(t, mode(acl.Approval))
	for _, tt := range []struct {
		intent        wire.Intent
		payload, want string
	}{
		{wire.Deliver, `{"action":"deliver","message":{"subject":"the subject","body":"the words"}}`, "the subject"},
		{wire.RequestInfo, `{"action":"ask","question":"when\u001b[31m?\nnow"}`, "when"},
		{wire.Schedule, propose, "Coffee"},
		{wire.Handoff, `{"action":"request_human","reason":"talk"}`, "talk"},
	} {
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), tt.intent, tt.payload))), http.StatusAccepted)
		var view owner.Approval
		ask := theAsk(t, sarah)
		sarah.Call("GET", "/approvals/"+ask.ID, nil, &view)
		if !strings.HasPrefix(view.Says(), tt.want) || strings.ContainsAny(view.Says(), "\x1b\n") {
			t.Errorf("%s says %q, want %q", tt.intent, view.Says(), tt.want)
		}
		decide(t, sarah, ask, acl.ApproveOnce)
	}
}

// TestReleasedOnceIfItsAnswerWaits (AM-33, AM-34): the hook's answer to the first message of a stranger waits for the
// owner, too. That does not release the message a second time, and the other messages follow.
func TestReleasedOnceIfItsAnswerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		var mu sync.Mutex
		var runs []wire.MessageID
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			cfg.Policy.Mode = acl.Approval
			cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "agent", Repeatable: true, Handler: handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
				mu.Lock()
				defer mu.Unlock()
				runs = append(runs, c.Message.ID)
				counter := c.Message.Payload.With("action", wire.Text("counter"))
				return hook.Answer{Payload: &counter}, nil
			})}}
		})
		sarah.Start()
		offer := in("conv_a", chris.Draft(sarah.ID(), wire.Negotiate, proposeBoat))
		must(t, sarah.Post(chris.Sign(offer)), http.StatusAccepted)
		second := in("conv_b", chris.Draft(sarah.ID(), wire.Deliver, hello))
		must(t, sarah.Post(chris.Sign(second)), http.StatusAccepted)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		time.Sleep(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []wire.MessageID{offer.ID, second.ID}; !slices.Equal(runs, want) {
			t.Errorf("the hook ran for %v, want %v", runs, want)
		}
		if ask := theAsk(t, sarah); ask.Kind != owner.AskOutgoing {
			t.Errorf("the owner is asked about %s", ask.Kind)
		}
	})
}
