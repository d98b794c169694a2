package bridgetest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// toy is a bridge to a made-up network, the smallest one that uses everything bridges share. Its link is one
// principal.
type toy struct {
	node   bridge.Receiver
	down   atomic.Bool
	frames atomic.Int64 // frames that peers made with Mirror

	mu     sync.Mutex
	queues map[string]chan []byte // what each peer gets
}

// frame is a message of the toy network.
type frame struct {
	ID     string `json:"id"`
	Thread string `json:"thread"`
	Type   string `json:"type"` // "say", "ask"; "note" and "error" go to peers only
	Title  string `json:"title,omitempty"`
	Text   string `json:"text"`
}

const maxFrame = 64 << 10

func toyAddress(peer string) bridge.Address {
	return bridge.Address{Kind: "toy", Link: "home", Peer: peer}
}

func newToy(node bridge.Receiver) *toy {
	return &toy{node: node, queues: make(map[string]chan []byte)}
}

func (b *toy) queue(peer string) chan []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues[peer] == nil {
		b.queues[peer] = make(chan []byte, 100)
	}
	return b.queues[peer]
}

func (b *toy) tell(peer string, f frame) {
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err) // strings only
	}
	b.queue(peer) <- raw
}

func (b *toy) Disconnect() { b.down.Store(true) }
func (b *toy) Reconnect()  { b.down.Store(false) }

func (b *toy) Next(ctx context.Context, peer string) ([]byte, error) {
	select {
	case raw := <-b.queue(peer):
		return raw, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *toy) Mirror(raw []byte) []byte {
	var f frame
	if err := json.Unmarshal(raw, &f); err != nil {
		panic(err) // ours
	}
	f.ID = fmt.Sprintf("m%d", b.frames.Add(1))
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return raw
}

func (b *toy) Inject(ctx context.Context, peer string, raw []byte) {
	in, err := inbound(peer, raw, time.Now())
	if err != nil {
		b.tell(peer, frame{Type: "error", Text: err.Error()})
		return
	}
	out, err := b.node.Accept(ctx, in)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		b.tell(peer, frame{Type: "error", Text: string(e.Code)})
		return
	}
	answer := frame{Type: "note", Thread: string(in.ConvID)}
	if out.Reply != nil {
		answer.Text = out.Reply.Action()
	}
	b.tell(peer, answer)
}

// inbound parses a frame strictly and maps it.
func inbound(peer string, raw []byte, now time.Time) (bridge.Inbound, error) {
	address := toyAddress(peer)
	if err := address.Validate(); err != nil {
		return bridge.Inbound{}, err
	}
	if len(raw) > maxFrame {
		return bridge.Inbound{}, errors.New("the frame is too large")
	}
	v, err := wire.ParseObject(raw)
	if err != nil {
		return bridge.Inbound{}, errors.New("the frame is not one JSON object")
	}
	f := frame{ID: v.GetStr("id"), Thread: v.GetStr("thread"), Type: v.GetStr("type"), Title: v.GetStr("title"), Text: v.GetStr("text")}
	intent, payload, ok := f.payload()
	if !ok || f.ID == "" || f.Thread == "" {
		return bridge.Inbound{}, errors.New("the frame is of no known type")
	}
	return bridge.Inbound{
		Principal: "toy:home", Peer: address.Pseudonym(), Address: address.String(), Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + hashOf(peer, f.ID)), ConvID: wire.ConversationID("conv_" + hashOf(peer, f.Thread)),
		Intent: intent, Payload: address.Mark(payload, false), Time: now, Received: now, Raw: raw, Digest: sha256.Sum256(raw),
		Records: []store.Change{{Record: store.Record{NS: "toy/home", Key: hashOf(peer, f.ID)}}},
	}, nil
}

func hashOf(peer, id string) string {
	sum := sha256.Sum256([]byte(peer + "\x00" + id))
	return hex.EncodeToString(sum[:16])
}

func (f frame) payload() (wire.Intent, wire.Value, bool) {
	text := func(key, value string) wire.Member { return wire.Member{Key: key, Value: wire.Text(value)} }
	switch f.Type {
	case "say":
		message := wire.Obj(text("body", f.Text))
		if f.Title != "" {
			message = message.With("subject", wire.Text(f.Title))
		}
		return wire.Deliver, wire.Obj(text("action", "deliver"), wire.Member{Key: "message", Value: message}), true
	case "ask":
		return wire.RequestInfo, wire.Obj(text("action", "ask"), text("question", f.Text)), true
	}
	return "", wire.Value{}, false
}

// Deliver implements [bridge.Transport].
func (b *toy) Deliver(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	address, err := bridge.ParseAddress(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	if b.down.Load() {
		return bridge.Delivered{}, &client.SendError{Retry: true}
	}
	f := frame{ID: d.ID, Thread: string(d.Message.Conversation), Type: "note", Text: d.Message.Action()}
	switch d.Message.Action() {
	case "deliver":
		message, _ := d.Message.Payload.Get("message")
		f.Type, f.Title, f.Text = "say", message.GetStr("subject"), message.GetStr("body")
	case "ask":
		f.Type, f.Text = "ask", d.Message.Payload.GetStr("question")
	}
	b.tell(address.Peer, f)
	return bridge.Delivered{Queued: true}, nil
}

func toyMessage(n int) []byte {
	return fmt.Appendf(nil, `{"id":"%d","thread":"t%d","type":"say","text":"hello"}`, n, n)
}
