//go:build slow

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	loadMessages      = 400
	loadConversations = 40
	loadEach          = loadMessages / loadConversations
	loadTime          = 6 * time.Minute // an idle machine needs less than one minute
)

// TestOutboxUnderLoad sends four hundred messages in forty conversations to a peer that fails, delays messages and
// resets connections, and kills one side twice meanwhile. Each message arrives once, in the order of its conversation,
// and gets its answer (AM-21, AM-46 to AM-48).
func TestOutboxUnderLoad(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	for _, victim := range []string{"sender", "receiver"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), loadTime)
			defer cancel()
			l := newOutboxLoad(t)
			begun := time.Now()
			l.start(ctx, &l.sender)
			l.start(ctx, &l.receiver)
			// The first kill happens while messages are still being put into the outbox, the second while the outbox delivers.
			for _, killNow := range []func() bool{
				func() bool { return l.queued.Load() >= loadMessages/2 && l.peer.accepted.Load() >= 10 },
				func() bool { return l.queued.Load() == loadMessages && l.peer.accepted.Load() >= loadMessages/2 },
			} {
				work, stop := context.WithCancel(ctx)
				var writers sync.WaitGroup
				l.write(work, &writers)
				l.await(ctx, "the moment of the kill", killNow)
				node := &l.sender
				if victim == "receiver" {
					node = &l.receiver
				}
				node.kill()
				stop()
				writers.Wait()
				l.start(ctx, node)
				l.recount(ctx)
			}
			l.await(ctx, "an empty outbox", func() bool { return l.waiting(ctx) == 0 })
			l.audit(ctx)
			t.Logf("%v; %d failed, %d were reset, %d found nobody", time.Since(begun).Round(time.Second), l.peer.failed, l.peer.resets, l.peer.refused)
		})
	}
}

// outboxLoad has the processes of a sender, a receiver behind a flaky proxy, and their directory.
type outboxLoad struct {
	t      *testing.T
	peer   *flaky
	sender loadNode
	// The receiver gets its messages through peer.
	receiver loadNode

	next   [loadConversations]int // number of messages that the sender has, by conversation; each writer owns its conversations
	queued atomic.Int64           // sum of next
}

// loadNode is a serve that the test kills and starts again on the same data.
type loadNode struct {
	data   string
	args   []string
	server *serveProcess
	owner  *daemon.Client
}

func (n *loadNode) kill() {
	if n.server == nil {
		return
	}
	n.owner.Close()
	n.server.Process.Kill()
	n.server.Wait()
	n.server = nil
}

func newOutboxLoad(t *testing.T) *outboxLoad {
	l := &outboxLoad{t: t, peer: newFlaky()}
	front := httptest.NewServer(l.peer)
	t.Cleanup(front.Close)
	directory := &loadNode{data: filepath.Join(t.TempDir(), "directory"), args: []string{"--roles=directory"}}
	l.launch(directory)
	args := []string{
		"--roles=node", "--directory=" + directory.server.info.Directory, "--set=access.mode=open", "--set=log.level=warn",
		"--set=limits.messages_new_conversations=0", "--set=limits.messages_conversation=0", "--set=limits.messages_total=0",
	}
	l.sender = loadNode{data: filepath.Join(t.TempDir(), "sender"), args: args}
	l.receiver = loadNode{
		data: filepath.Join(t.TempDir(), "receiver"),
		args: append(slices.Clone(args), "--set=card.endpoint="+front.URL+"/agentmesh"),
	}
	return l
}

func (l *outboxLoad) launch(n *loadNode) {
	l.t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	var err error
	if n.server, err = startServe(n.data, n.args, env); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(n.kill)
	if n.owner = daemon.Running(l.t.Context(), n.data); n.owner == nil {
		l.t.Fatal("the owner API does not answer")
	}
}

func (l *outboxLoad) start(ctx context.Context, n *loadNode) {
	l.t.Helper()
	l.launch(n)
	if n == &l.receiver {
		behind := n.server.info.URL + "/agentmesh"
		l.peer.endpoint.Store(&behind)
	}
	err := poll(ctx, filepath.Base(n.data)+" is not listed", func() (bool, error) {
		s, err := daemon.Fetch(ctx, n.owner, owner.ShowStatus.Call())
		isMissing := func(d owner.Listing) bool { return d.Expires.IsZero() }
		return len(s.Directories) > 0 && !slices.ContainsFunc(s.Directories, isMissing), err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func loadConversation(conv int) string { return fmt.Sprintf("conv_load_%02d", conv) }

// write sends the messages that the sender does not have yet, until ctx ends or the sender is killed.
func (l *outboxLoad) write(ctx context.Context, writers *sync.WaitGroup) {
	const workers = 4
	to, api := l.receiver.server.info.AgentID, l.sender.owner
	for worker := range workers {
		writers.Go(func() {
			for seq := range loadEach {
				for conv := worker; conv < loadConversations; conv += workers {
					if l.next[conv] > seq {
						continue
					}
					_, err := api.Call(ctx, "POST", "send", nil, map[string]any{
						"to": to, "conversation": loadConversation(conv), "intent": wire.Deliver,
						"payload": map[string]any{"action": "deliver", "message": map[string]string{"body": strconv.Itoa(seq)}},
					})
					if err != nil {
						if exit.Code(err) != exit.Unavailable && ctx.Err() == nil {
							l.t.Errorf("send: %v", err)
						}
						return
					}
					l.next[conv]++
					l.queued.Add(1)
				}
			}
		})
	}
}

// recount reads which messages the sender has after a kill. It must have every message that it acknowledged, and at
// most one more in each conversation: the message whose acknowledgement was lost.
func (l *outboxLoad) recount(ctx context.Context) {
	l.t.Helper()
	for conv := range loadConversations {
		has := len(l.bodies(ctx, &l.sender, conv, "out"))
		if has < l.next[conv] || has > l.next[conv]+1 {
			l.t.Fatalf("the sender has %d messages of conversation %d, %d were acknowledged", has, conv, l.next[conv])
		}
		l.queued.Add(int64(has - l.next[conv]))
		l.next[conv] = has
	}
}

// bodies returns the texts of the messages that a node sent or received in a conversation, in the order of the
// transcript. An answer without a text counts as "".
func (l *outboxLoad) bodies(ctx context.Context, n *loadNode, conv int, direction string) []string {
	l.t.Helper()
	var texts []string
	all, err := readConversation(ctx, n.owner, loadConversation(conv), "")
	if err != nil && exit.Code(err) != exit.No {
		l.t.Fatal(err)
	}
	for _, e := range all.Transcript {
		v, err := wire.ParseObject(e.Message)
		if err != nil {
			l.t.Fatal(err)
		}
		payload, _ := v.Get("payload")
		message, _ := payload.Get("message")
		if e.Direction == direction {
			texts = append(texts, message.GetStr("body"))
		}
	}
	return texts
}

func (l *outboxLoad) await(ctx context.Context, what string, done func() bool) {
	l.t.Helper()
	err := poll(ctx, what, func() (bool, error) {
		if l.t.Failed() {
			return false, errors.New("the test has already failed")
		}
		return done(), nil
	})
	if err != nil {
		l.t.Fatalf("%v; %d messages queued, %d accepted, %d wait", err, l.queued.Load(), l.peer.accepted.Load(), l.waiting(l.t.Context()))
	}
}

func (l *outboxLoad) waiting(ctx context.Context) int {
	raw, err := l.sender.owner.Call(ctx, "GET", "status", nil, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	s, err := daemon.Decode[owner.Status](raw)
	if err != nil {
		l.t.Fatal(err)
	}
	return s.Outbox["queued"] + s.Outbox["delivering"]
}

// audit checks that both sides have every message and every answer once and in order.
func (l *outboxLoad) audit(ctx context.Context) {
	var want []string
	for seq := range loadEach {
		want = append(want, strconv.Itoa(seq))
	}
	answers := make([]string, loadEach)
	for conv := range loadConversations {
		for _, side := range []struct {
			name, direction string
			node            *loadNode
			want            []string
		}{
			{"sent", "out", &l.sender, want}, {"answered to the sender", "in", &l.sender, answers},
			{"received", "in", &l.receiver, want}, {"answered by the receiver", "out", &l.receiver, answers},
		} {
			if got := l.bodies(ctx, side.node, conv, side.direction); !slices.Equal(got, side.want) {
				l.t.Errorf("conversation %d, %s: %q", conv, side.name, got)
			}
		}
	}
	outbox := l.count(ctx, &l.sender, "outbox")
	if len(outbox) != loadMessages {
		l.t.Errorf("%d entries in the outbox, want %d", len(outbox), loadMessages)
	}
	if delivered := l.count(ctx, &l.sender, "outbox", "state", "delivered"); len(delivered) != loadMessages {
		l.t.Errorf("%d outbox entries are delivered, want %d", len(delivered), loadMessages)
	}
	inbox := l.count(ctx, &l.receiver, "inbox")
	if len(inbox) != loadMessages {
		l.t.Errorf("%d messages in the receiver's inbox, want %d", len(inbox), loadMessages)
	}
	for id, n := range inbox {
		if n != 1 || outbox[id] != 1 {
			l.t.Errorf("%s is in the inbox %d times and in the outbox %d times", id, n, outbox[id])
		}
	}
}

// count reads all pages of a list of the owner API and counts the occurrences of each message.
func (l *outboxLoad) count(ctx context.Context, n *loadNode, list string, filter ...string) map[string]int {
	l.t.Helper()
	seen := map[string]int{}
	for after := ""; ; {
		raw, err := n.owner.Call(ctx, "GET", list, owner.Params(append(filter, "after", after, "limit", "1000")...), nil)
		if err != nil {
			l.t.Fatal(err)
		}
		page, err := daemon.Decode[struct {
			Items []struct {
				MessageID string `json:"message_id"`
			} `json:"items"`
			Next string `json:"next"`
		}](raw)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, i := range page.Items {
			seen[i.MessageID]++
		}
		if after = page.Next; after == "" {
			return seen
		}
	}
}
