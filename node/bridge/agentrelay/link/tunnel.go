package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	tunnelType      = "agentmesh"
	tunnelPatience  = 25 * time.Second
	tunnelPerMinute = 60 // of one peer: the node signs each answer
	maxWaiting      = 256
)

// waiters holds the goroutines that wait for frames with a ref: replies in the tunnel, and answers of the relay to
// commands.
type waiters struct {
	mu  sync.Mutex
	all map[string]chan wire.Value
}

func waitKey(from, ref string) string { return from + "\x00" + ref }

// add starts to wait for a frame from a peer with a ref. The caller must call stop.
func (w *waiters) add(from, ref string) (answers <-chan wire.Value, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := waitKey(from, ref)
	if len(w.all) >= maxWaiting || w.all[key] != nil {
		return nil, nil, errors.New("too many requests wait for an answer over this link; try again later")
	}
	ch := make(chan wire.Value, 1)
	w.all[key] = ch
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, key)
	}, nil
}

// handToWaiter hands a frame to the goroutine that waits for it and reports whether there is one: a reply in the
// tunnel, or the answer of the relay to a command.
func (l *Link) handToWaiter(tree wire.Value) bool {
	from, ref := tree.GetStr("from"), tree.GetStr("ref")
	if ref == "" || from != frame.RelayID && tree.GetStr("type") != tunnelType {
		return false
	}
	payload, _ := tree.Get("payload")
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	ch := l.waiters.all[waitKey(from, ref)]
	if ch == nil {
		return false
	}
	select {
	case ch <- payload:
	default: // only the first answer counts
	}
	return true
}

// handleTunnel gives a signed message to the node, which receives it as if it had been posted (AR-59). The signature,
// not the relay, proves who wrote it.
func (l *Link) handleTunnel(ctx context.Context, h *incoming) {
	message := h.payload
	// An answer has the ref of another message. An answer for which nobody waits gets no answer: otherwise two nodes
	// would answer each other forever.
	_, refusal := message.Get("error")
	answers := h.ref != "" && h.ref != message.GetStr("message_id")
	raw := message.JSON()
	if refusal || answers || message.Kind() != wire.Object || len(raw) > frame.MaxPayload {
		return
	}
	if _, ok := l.tunnels.TakeOver(h.from, time.Now()); !ok {
		return
	}
	out, err := l.cfg.Mesh.Receive(ctx, raw)
	answer := out.Raw
	if err != nil {
		told, ok := errors.AsType[*wire.Error](err)
		if !ok {
			told = wire.ErrUnavailable
		}
		answer = told.AppendJSON(nil)
		l.log.Info("a tunnelled message was refused", "peer", h.from, "err", err)
	}
	if len(answer) == 0 {
		return
	}
	if data, ok := tunnelFrame(h.from, cmp.Or(h.ref, h.id), answer); ok {
		l.sender.answer(h.from, data)
	}
}

// tunnelFrame wraps a signed message. It reports false if the message is too large.
func tunnelFrame(to, ref string, message []byte) (data []byte, ok bool) {
	v, err := wire.ParseForeign(message, frame.MaxDepth, frame.MaxValues)
	if err != nil || len(message) > frame.MaxPayload {
		return nil, false
	}
	return frame.Request(to, tunnelType, ref, v).JSON(), true
}

// Carry sends a signed message through a tunnel to the agent to, if the owner said behind which peer of the links that
// agent is. It returns the agent's answer, which is not verified yet. carried is false if the owner said nothing about
// to.
func Carry(ctx context.Context, links []*Link, to wire.AgentID, message []byte) (answer []byte, carried bool, err error) {
	if len(links) == 0 {
		return nil, false, nil
	}
	page, err := links[0].convStore.records.List(ctx, nsPeers, "agent:"+string(to), "", 10, time.Now())
	if err != nil {
		return nil, false, err
	}
	for _, l := range links {
		for _, rec := range page.Records {
			var p Peer
			if json.Unmarshal(rec.Body, &p) == nil && rec.Key == l.peers.key(p.Peer) {
				answer, err := l.sendTunnel(ctx, p.Peer, message)
				return answer, true, err
			}
		}
	}
	return nil, false, nil // the link is no longer configured
}

// sendTunnel sends a signed message to a peer and waits for its answer.
func (l *Link) sendTunnel(ctx context.Context, peer string, message []byte) ([]byte, error) {
	v, err := wire.ParseForeign(message, frame.MaxDepth, frame.MaxValues)
	if err != nil {
		return nil, undeliverableError{"the message is not valid JSON for a relay"}
	}
	ref := v.GetStr("message_id")
	data, ok := tunnelFrame(peer, ref, message)
	if !ok {
		return nil, undeliverableError{"the message has more than the 60 KB that the tunnel takes"}
	}
	if wait := l.sender.budget.Take(time.Now()); wait > 0 {
		return nil, retryLater(wait, overBudget)
	}
	answers, stop, err := l.waiters.add(peer, ref)
	if err != nil {
		return nil, retryLater(time.Second, err.Error())
	}
	defer stop()
	if err := l.sender.write(data); err != nil {
		return nil, retryLater(0, l.offlineReason())
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	select {
	case v := <-answers:
		return v.JSON(), nil
	case <-ctx.Done(): // the same bytes again find the stored answer (AM-21)
		return nil, retryLater(0, "no answer came through the tunnel")
	}
}
