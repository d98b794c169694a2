//go:build slow

package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// killEnv names the environment variable with the path of the store that [TestKillChild] uses until it is killed.
const killEnv = "NODE_TEST_KILL"

// killable returns the node that is killed and later audited. A hook that is sometimes late gets its scheduling
// messages, requests for a person are held, and everything else goes to the inbox.
func killable(t *testing.T, path string) (*meshtest.Member, *meshtest.Stranger) {
	t.Helper()
	s, err := bolt.Open(t.Context(), path, bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris") // registered before the node looks it up
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Store, cfg.Policy.Mode, cfg.Rates = s, acl.Open, acl.Rates{}
		cfg.SyncDeadline = 5 * time.Millisecond
		cfg.Routes = []node.Route{{Pattern: "mesh.schedule", Name: "slow", Repeatable: true, Handler: handler(
			func(ctx context.Context, _ hook.Call) (hook.Answer, error) {
				select {
				case <-time.After(rand.N(10 * time.Millisecond)):
				case <-ctx.Done():
				}
				return says(t, `{"action":"counter","event":{"duration":"45m"}}`), ctx.Err()
			})}}
	})
	sarah.Start()
	return sarah, chris
}

// TestKillChild is the process that [TestKill] kills. It puts its own node under load, approves held messages, and
// prints what was acknowledged.
func TestKillChild(t *testing.T) {
	path := os.Getenv(killEnv)
	if path == "" {
		t.Skip("this is the child process of TestKill")
	}
	sarah, chris := killable(t, path)
	var mu sync.Mutex
	say := func(words ...string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(strings.Join(words, " "))
	}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for {
				intent, payload := wire.Deliver, hello
				switch rand.IntN(3) {
				case 0:
					intent, payload = wire.Schedule, propose
				case 1:
					intent, payload = wire.Handoff, talk
				}
				d := chris.Draft(sarah.ID(), intent, payload)
				if worker%2 == 0 { // else each message opens a conversation
					d.Conversation = wire.ConversationID(fmt.Sprintf("conv_%d_%d", os.Getpid(), rand.IntN(4)))
				}
				raw := chris.Sign(d)
				out, err := sarah.Receive(t.Context(), raw)
				if err != nil {
					continue // the conversation has the maximum number of holds
				}
				say("took", string(d.ID), fmt.Sprint(out.Status), encode(raw), encode(out.Raw))
				if out.Held {
					ask, err := sarah.Asks().Get(t.Context(), out.Ask, time.Now())
					if err == nil {
						_, err = sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
					}
					if err == nil {
						say("approved", ask.ID, string(d.ID))
					}
				}
			}
		})
	}
	group.Wait()
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// acknowledged is a message that was acknowledged before the kill.
type acknowledged struct {
	status      string
	raw, answer []byte
}

// TestKill kills a real process that receives messages and decides approvals, twice. Everything that it acknowledged
// must be stored (AM-21, AM-26, AM-75): once in the transcript, with the given answer, not answered twice, in intact
// chains.
func TestKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sarah.db")
	messages, approved := map[string]acknowledged{}, map[string]string{}
	for range 2 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKillChild$")
		child.Env = append(os.Environ(), killEnv+"="+path)
		stdout, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for in := bufio.NewReader(stdout); ; lines++ {
			line, err := in.ReadString('\n')
			if err != nil {
				break // the last line may be incomplete
			}
			if lines == 100 {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			switch f := strings.Fields(line); f[0] {
			case "took":
				raw, _ := base64.RawURLEncoding.DecodeString(f[3])
				answer, _ := base64.RawURLEncoding.DecodeString(f[4])
				messages[f[1]] = acknowledged{f[2], raw, answer}
			case "approved":
				approved[f[1]] = f[2]
			default:
				t.Fatalf("the child says %s", line)
			}
		}
		if err := child.Wait(); err == nil || lines < 100 {
			t.Fatalf("the child ended by itself after %d lines: %v", lines, err)
		}
	}
	sarah, _ := killable(t, path)
	awaitIdle(t, sarah)
	auditMessages(t, sarah, messages)
	for id, message := range approved {
		if ask, err := sarah.Asks().Get(t.Context(), id, time.Now()); err != nil || ask.State != acl.AskApproved {
			t.Errorf("ask %s about %s is %s, want approved (%v)", id, message, ask.State, err)
		}
	}
	if len(messages) == 0 || len(approved) == 0 {
		t.Errorf("%d messages and %d approvals were acknowledged: too few for the test", len(messages), len(approved))
	}
}

// awaitIdle waits until no hook is running.
func awaitIdle(t *testing.T, m *meshtest.Member) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		items, _, err := m.Inbox(t.Context(), owner.ItemRunning, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("still running: %+v", items)
		}
	}
}

func auditMessages(t *testing.T, sarah *meshtest.Member, messages map[string]acknowledged) {
	t.Helper()
	in, out, replies, items := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	book := conversations.Book{Steps: sarah.Store.Steps()}
	for before := uint64(0); ; {
		page, err := book.List(t.Context(), conversations.Filter{}, before, 100, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, conv := range page.Conversations {
			if err := book.Check(t.Context(), conv.Key, time.Now()); err != nil {
				t.Errorf("chain of %s: %v", conv.Key.ID, err)
			}
			entries, err := book.Transcript(t.Context(), conv.Key, 0, 10_000)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if !e.Out {
					in[e.MessageID]++
					continue
				}
				out[string(e.Raw)]++
				v, err := wire.ParseObject(e.Raw)
				if err != nil {
					t.Fatal(err)
				}
				payload, _ := v.Get("payload")
				meta, _ := payload.Get("metadata")
				replies[meta.GetStr("in_reply_to")]++
			}
		}
		if before = page.Next; before == 0 {
			break
		}
	}
	for after := ""; ; {
		page, next, err := sarah.Inbox(t.Context(), "", after, 500)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page {
			items[string(item.MessageID)]++
		}
		if after = next; after == "" {
			break
		}
	}
	for id, m := range messages {
		if in[id] != 1 || items[id] != 1 || out[string(m.answer)] != 1 || replies[id] > 1 {
			t.Errorf("message %s is %d times in the transcript and %d in the inbox, its answer %d times, with %d later replies",
				id, in[id], items[id], out[string(m.answer)], replies[id])
		}
		again := sarah.Post(m.raw)
		final := m.status == "202" && again.Status == 200 && replies[id] == 1 // AM-22
		if !final && !bytes.Equal(again.Body, m.answer) {
			t.Errorf("message %s again: %d %s, want %s", id, again.Status, again.Body, m.answer)
		}
	}
}
