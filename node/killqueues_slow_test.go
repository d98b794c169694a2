//go:build slow && !race

package node_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// killDir is the variable with the directory of the process that TestKillOfQueues kills.
const killDir = "NODE_TEST_KILL_QUEUES"

// killed is a node with work in each of its queues: peers on a toy network write to its hook, and it proposes meetings to
// them. What reaches the outside is a line of the journal.
type killed struct {
	*lone
	mesh    bridge.Mesh
	journal *os.File
	failed  sync.Map // calls that failed once, by their word and message
}

// fails reports whether a call to the outside fails. Only some do, and each only once, so that no pause is long.
func (k *killed) fails(word string, id wire.MessageID) bool {
	if rand.IntN(3) > 0 {
		return false
	}
	if _, again := k.failed.LoadOrStore(word+string(id), true); again {
		return false
	}
	k.note("fail", word+string(id))
	return true
}

// note adds a line to the journal, which survives the process.
func (k *killed) note(words ...any) {
	if _, err := k.journal.WriteString(fmt.Sprintln(words...)); err != nil {
		panic(err)
	}
}

func startKilled(t *testing.T, dir string) *killed {
	t.Helper()
	journal, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { journal.Close() })
	k := &killed{journal: journal}
	earlier, err := os.ReadFile(journal.Name())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(earlier)) {
		if call, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "fail "); ok {
			k.failed.Store(call, true)
		}
	}
	ready := make(chan struct{})
	hooked := configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		<-ready
		k.note("run", c.Message.ID)
		switch {
		case k.fails("run", c.Message.ID):
			return hook.Answer{}, &hook.Error{Fault: hook.Unreachable, Route: "test"}
		case bytes.Contains(c.Payload, []byte(`"ask"`)):
			answer := says(t, hello)
			answer.Hold = "the owner decides this"
			return answer, nil
		}
		return says(t, hello), nil
	}, unlimited, func(c *node.Config) { c.Routes[0].Repeatable = true })
	k.lone = runLoneNode(t, dir, &wireTransport{deliver: func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
		<-ready
		if k.fails("deliver", d.Message.ID) {
			return bridge.Delivered{}, &client.SendError{Retry: true, Status: http.StatusServiceUnavailable, After: time.Millisecond}
		}
		k.note("got", d.Message.ID, d.Message.Action(), d.Message.Conversation, d.Message.Meta("in_reply_to"))
		if d.Message.Action() == "propose" {
			accept := inReplyTo(parsed(`{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00"}`), d.Message.ID)
			if err := k.receive(ctx, d.Address, d.Message.Conversation, wire.MessageID("msg_"+wire.HashOf(string(d.Message.ID))), wire.Schedule, accept); err != nil {
				return bridge.Delivered{}, &client.SendError{Retry: true, Cause: err}
			}
		}
		return bridge.Delivered{}, nil
	}}, func(n *node.Node, ctx context.Context) { _ = n.Run(ctx) }, hooked, func(c *node.Config) {
		c.HoldFor, c.Autonomy = 300*time.Millisecond, &rules.Autonomy{Conversation: -1, Door: -1, Peer: -1, Strangers: -1, Token: -1, Total: -1}
		c.Notices = notify.New(notify.Config{Records: c.Store.Records(), Target: killTarget{k}, Batch: time.Millisecond})
		c.Agreed = calendar.NewBook(calendar.BookConfig{Records: c.Store.Records(), Writer: killWriter{k}})
	})
	if k.mesh, err = k.Attach(bridge.Kind{Name: "wire"}, nil); err != nil {
		t.Fatal(err)
	}
	close(ready)
	return k
}

// receive is the arrival of a message from a peer of the toy network, which sends it until it is acknowledged.
func (k *killed) receive(ctx context.Context, address string, conv wire.ConversationID, id wire.MessageID, intent wire.Intent, payload wire.Value) error {
	a, err := bridge.ParseAddress(address)
	if err != nil {
		return err
	}
	_, err = k.mesh.Accept(ctx, bridge.Inbound{
		Principal: address, Peer: a.Pseudonym(), Address: address, Verified: bridge.VerifiedNone, MessageID: id, ConvID: conv, Intent: intent,
		Payload: payload, Raw: payload.JSON(), Digest: signing.Digest(payload), Time: time.Now(), Received: time.Now(), Unattended: true,
	})
	return err
}

type killTarget struct{ k *killed }

func (killTarget) Name() string { return "journal" }

func (t killTarget) Send(_ context.Context, b notify.Batch) error {
	for _, n := range b.Notices {
		t.k.note("told", n.ID)
	}
	t.k.note("more", b.More)
	return nil
}

type killWriter struct{ k *killed }

func (w killWriter) Put(_ context.Context, e calendar.Event) error {
	w.k.note("met", e.Conversation)
	return nil
}

func (w killWriter) Remove(context.Context, string) error { return nil }

// makeWork gives the node work until the process is killed, and notes what the node has acknowledged.
func (k *killed) makeWork(t *testing.T) {
	var peers sync.WaitGroup
	for i := range 4 {
		peers.Go(func() {
			a := bridge.Address{Kind: "wire", Link: "net", Peer: fmt.Sprint("peer", i)}
			address := a.String()
			for range 200 {
				id := wire.NewMessageID()
				body := []string{"hello", "ask"}[rand.IntN(2)]
				if err := k.receive(t.Context(), address, wire.NewConversationID(), id, wire.Deliver, parsed(`{"action":"deliver","message":{"body":"`+body+`"}}`)); err != nil {
					panic(err)
				}
				k.note("sent", id)
				out := node.Outgoing{To: a.Pseudonym(), Address: address, Intent: wire.Schedule, Payload: parsed(proposeCoffee), Via: "owner"}
				sent, err := k.Send(t.Context(), out, 0)
				if err != nil {
					panic(err)
				}
				k.note("proposed", sent.MessageID, sent.Conversation)
			}
		})
	}
	peers.Wait()
}

// TestKillOfQueues: whenever the process is killed, nothing of any queue is lost: each message is answered, each question ends,
// each meeting is agreed, written and closed, each notice is told. Only calls to the outside are made again.
func TestKillOfQueues(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		k := startKilled(t, dir)
		fmt.Println("ready")
		k.makeWork(t)
		select {} // until the process is killed
	}
	dir, began := t.TempDir(), time.Now()
	const rounds = 500
	for range rounds {
		child := exec.Command(os.Args[0], "-test.run=^TestKillOfQueues$")
		child.Env = append(os.Environ(), killDir+"="+dir)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		time.Sleep(rand.N(30 * time.Millisecond))
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	t.Logf("%d rounds in %v", rounds, time.Since(began))
	k := startKilled(t, dir)
	queues := []string{"outbox", "inbox", acl.AskNamespace, "closing", calendar.Namespace, notify.Namespace}
	waiting := func() (list []string) {
		for _, ns := range queues {
			rows, _, err := k.store.Records().Due(t.Context(), ns, time.Now().Add(1000*time.Hour), nil, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) > 0 {
				list = append(list, fmt.Sprint(ns, " ", rows[0].Key, " due ", rows[0].Due))
			}
		}
		return list
	}
	for deadline := time.Now().Add(2 * time.Minute); len(waiting()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("work is left: %v", waiting())
		}
	}
	k.audit(t, dir)
}

func (k *killed) audit(t *testing.T, dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	var sent, proposed [][]string
	answers, closes := make(map[string]map[string]bool), make(map[string]map[string]bool) // ids of ours, by what they answer or close
	met, told, delivered := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	notices, more := 0, 0
	add := func(m map[string]map[string]bool, key, id string) {
		if m[key] == nil {
			m[key] = make(map[string]bool)
		}
		m[key][id] = true
	}
	for line := range strings.Lines(string(data)) {
		switch f := strings.Split(strings.TrimSuffix(line, "\n"), " "); f[0] {
		case "sent":
			sent = append(sent, f)
		case "proposed":
			proposed = append(proposed, f)
		case "met":
			met[f[1]] = true
		case "told":
			told[f[1]] = true
		case "more": // a large batch only counts those after the first
			n, _ := strconv.Atoi(f[1])
			more += n
		case "got":
			delivered[f[1]] = true
			if f[2] == wire.ActionClose {
				add(closes, f[3], f[1])
			} else if f[4] != "" {
				add(answers, f[4], f[1])
			}
		}
	}
	states := make(map[string][]owner.ItemState)
	for rec, err := range store.AllRecords(t.Context(), k.store.Records(), "inbox", "", time.Now()) {
		if err != nil {
			t.Fatal(err)
		}
		item, err := k.Item(t.Context(), rec.Key)
		if err != nil {
			t.Fatal(err)
		}
		states[string(item.MessageID)] = append(states[string(item.MessageID)], item.State)
	}
	count := make(map[owner.ItemState]int)
	for _, f := range sent {
		if len(states[f[1]]) != 1 {
			t.Errorf("message %s is in the inbox as %v", f[1], states[f[1]])
			continue
		}
		state := states[f[1]][0]
		count[state]++
		if n := len(answers[f[1]]); n != 1 && state != owner.ItemExpired || n != 0 && state == owner.ItemExpired {
			t.Errorf("message %s (%s) has %d answers", f[1], state, n)
		}
	}
	for _, f := range proposed {
		if !delivered[f[1]] || !met[f[2]] || len(closes[f[2]]) != 1 {
			t.Errorf("proposal %s: delivered %v, written %v, closes %v", f[1], delivered[f[1]], met[f[2]], closes[f[2]])
		}
	}
	for _, err := range store.AllRecords(t.Context(), k.store.Records(), notify.Namespace, "", time.Now()) {
		if err != nil {
			t.Fatal(err)
		}
		notices++
	}
	if len(told)+more < notices {
		t.Errorf("of %d notices, %d were told, and %d counted", notices, len(told), more)
	}
	asks := make(map[acl.AskState]int)
	for rec, err := range store.AllRecords(t.Context(), k.store.Records(), acl.AskNamespace, "", time.Now()) {
		if err != nil {
			t.Fatal(err)
		}
		ask, err := k.Asks().Get(t.Context(), rec.Key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		asks[ask.State]++
	}
	if len(count) != 2 || count[owner.ItemAnswered] == 0 || count[owner.ItemExpired] == 0 {
		t.Errorf("the messages are %v", count)
	}
	if len(asks) != 1 || asks[acl.AskExpired] == 0 {
		t.Errorf("the questions are %v", asks)
	}
	t.Logf("%d messages, %d questions, %d proposals, %d notices", len(sent), asks[acl.AskExpired], len(proposed), notices)
}

func parsed(payload string) wire.Value {
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		panic(err)
	}
	return v
}
