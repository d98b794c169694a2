package mess

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// storingMesh is a mesh that stores the changes of a message in one unit, as the node does.
type storingMesh struct {
	*refusingMesh
	records store.Records
}

func (s storingMesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	if err := s.records.Apply(ctx, in.Records, time.Now()); err != nil {
		return bridge.Outcome{}, err
	}
	return s.refusingMesh.Accept(ctx, in)
}

// TestForeignThreadsAreBounded: the number of remembered foreign threads is bounded. A new one beyond the bound waits,
// and nothing of it is received; known ones go on. The bound of one part does not affect the others.
func TestForeignThreadsAreBounded(t *testing.T) {
	l, remote, desk := newListRemote(t)
	records := l.records
	l.cfg.Mesh = bridgetest.NewMesh(storingMesh{desk, records}, meshtest.Store(t))
	digit := func(ref string) string { return wire.HashOf(l.cfg.Name, ref)[:1] }
	var part []string // refs of one part
	other := ""
	for i := 0; len(part) < maxKnown+1; i++ {
		ref := fmt.Sprintf("2026-01-31-%06d", i)
		if digit(ref) == "a" {
			part = append(part, ref)
		} else {
			other = ref
		}
	}
	for batch := range slices.Chunk(part[:maxKnown-1], 200) {
		var changes []store.Change
		for _, ref := range batch {
			changes = append(changes, l.change(knownRow(l, ref, "from-"+ref)))
		}
		if err := records.Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	old, last, over := part[0], part[maxKnown-1], part[maxKnown]
	remote.listed = []remoteThread{{last, last, "1"}, {over, over, "1"}, {other, other, "1"}, {old, old, "2"}}
	if err := l.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"from-" + last, "from-" + other}; !slices.Equal(desk.took, want) {
		t.Errorf("taken in: %v, want %v", desk.took, want)
	}
	for ref, want := range map[string]string{last: "1", other: "1", over: "", old: "2"} {
		if k, _, err := l.load(t.Context(), ref); err != nil || k.Updated != want {
			t.Errorf("%s is remembered as of %q, %v; want %q", ref, k.Updated, err, want)
		}
	}
	if l.looks[over].pause == 0 {
		t.Error("the thread that is one too many does not wait")
	}
	if err := l.save(t.Context(), knownRow(l, over, "eve")); !errors.Is(err, store.ErrQuota) {
		t.Errorf("one too many: %v", err)
	}
}

// TestOwnThreadsAreAlwaysRemembered: our own requests there are remembered however many threads the other side lists,
// so they are not created again and again.
func TestOwnThreadsAreAlwaysRemembered(t *testing.T) {
	l, remote, _ := newListRemote(t)
	maker := &createRemote{listRemote: remote}
	l.remote = maker
	records := l.records
	var part []string
	for i := 0; len(part) < maxKnown+1; i++ {
		if ref := fmt.Sprintf("2026-01-31-%06d", i); wire.HashOf(l.cfg.Name, ref)[:1] == "a" {
			part = append(part, ref)
		}
	}
	for batch := range slices.Chunk(part[:maxKnown], 200) {
		var changes []store.Change
		for _, ref := range batch {
			changes = append(changes, l.change(knownRow(l, ref, "eve")))
		}
		if err := records.Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	maker.next = part[maxKnown]
	request := thread.Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", "look"))}}
	m := wire.Message{Conversation: "conv_ours", Payload: wire.Obj(wire.Field("mess", request.Tree()))}
	for range 2 { // the second time it is about the existing thread
		if err := l.Deliver(t.Context(), bridge.Delivery{ID: "a", Address: l.Address().String(), Message: m}); err != nil {
			t.Errorf("it cannot be remembered: %v", err)
		}
	}
	if maker.made != 1 {
		t.Errorf("it was made %d times", maker.made)
	}
	if k, _, err := l.load(t.Context(), maker.next); err != nil || !k.Mine {
		t.Errorf("remembered: %+v, %v", k, err)
	}
}

// ourRow returns the record of a thread that we opened behind the link.
func ourRow(l *link, ref string) shared {
	return shared{Key: exchange.SharedKey(l.pseudonym(thread.ExchangeID), "conv_1"), Conv: "conv_1", There: ref, Mine: true}
}

// knownRow returns the record of a thread that somebody opened behind the link, as received so far.
func knownRow(l *link, ref, peer string) shared {
	k := shared{Conv: l.convOf(ref), There: ref, Seen: 1, Updated: "1", Peer: peer}
	k.Key = exchange.SharedKey(l.pseudonym(peer), k.Conv)
	return k
}

// createRemote is a remote that creates the requested threads.
type createRemote struct {
	*listRemote
	next string
	made int
}

func (b *createRemote) create(context.Context, string, wire.Value) (string, error) {
	b.made++
	return b.next, nil
}

func newBlock(n int) thread.Block {
	b := thread.Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", "look"), wire.TextField("x", ""))}}
	b[0].Body = b[0].Body.With("x", wire.Text(strings.Repeat("x", n-len(b.Tree().JSON()))))
	return b
}

const largestInbound = wire.MaxMessage - 8<<10

// TestLargeForeignBlock: a block that is too large for a mesh message is left out with a note, and the next messages
// are received.
func TestLargeForeignBlock(t *testing.T) {
	l, remote, desk := newListRemote(t)
	if _, err := l.newBlockInbound("bob", "1", newBlock(largestInbound)); err != nil {
		t.Errorf("the largest that fits: %v", err)
	}
	if _, err := l.newBlockInbound("bob", "2", newBlock(largestInbound+1)); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("one byte more: %v", err)
	}
	large := &oneThreadRemote{listRemote: remote}
	for _, b := range []thread.Block{newBlock(100), newBlock(largestInbound + 1), newBlock(200)} {
		large.says = append(large.says, thread.Message{Serial: len(large.says) + 1, From: "bob", Mess: b.Tree()})
	}
	l.remote = large
	remote.listed = []remoteThread{{"2026-01-31-001", "bob", "1"}}
	if err := l.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(desk.took) != 2 {
		t.Errorf("%d messages were taken in, want the two that fit", len(desk.took))
	}
	if k, _, err := l.load(t.Context(), "2026-01-31-001"); err != nil || k.Seen != 3 || k.Updated != "1" {
		t.Errorf("remembered: %+v, %v", k, err)
	}
}

type oneThreadRemote struct {
	*listRemote
	says []thread.Message
}

func (b *oneThreadRemote) view(context.Context, string) (remoteView, error) {
	return remoteView{requester: "bob", messages: b.says}, nil
}

// TestLargestForeignBlockComesIn: the node accepts the largest block that a link passes on, because the bound leaves
// room for the envelope.
func TestLargestForeignBlockComesIn(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: "http://127.0.0.1:9", Policy: bridge.LinkPolicy{Access: "open"}}}
	})
	l := home.bridge.links.All()[0]
	bob := strings.Repeat("b", 64)
	if err := l.accept(t.Context(), bob, "2026-01-31-001", "1", newBlock(largestInbound), shared{Conv: l.convOf("2026-01-31-001"), Key: "k"}); err != nil {
		t.Fatal(err)
	}
	th := home.thread(home.waitMeshThread())
	messages, err := home.Messages(t.Context(), th.Ref)
	if err != nil || len(messages) == 0 || len(messages[0].Mess.JSON()) < largestInbound {
		t.Errorf("it came in with %d messages, %v", len(messages), err)
	}
}
