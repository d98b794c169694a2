package agentrelay

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	tunnelType      = "agentmesh"
	tunnelPatience  = 25 * time.Second
	tunnelPerMinute = 60 // of one peer: each costs us a signature
	maxWaiting      = 256
)

// waiting is who waits for frames with a ref: replies in the tunnel, and what the relay answers to commands.
type waiting map[string]chan wire.Value

func waitKey(from, ref string) string { return from + "\x00" + ref }

// await names a frame that is waited for; stop must follow.
func (l *link) await(from, ref string) (<-chan wire.Value, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := waitKey(from, ref)
	if len(l.waits) >= maxWaiting || l.waits[key] != nil {
		return nil, nil, errors.New("too much is waited for")
	}
	ch := make(chan wire.Value, 1)
	l.waits[key] = ch
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waits, key)
	}, nil
}

// arrived hands a payload to who waits for it.
func (l *link) arrived(from, ref string, payload wire.Value) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.waits[waitKey(from, ref)]
	if ch == nil {
		return false
	}
	select {
	case ch <- payload:
	default: // one answer counts
	}
	return true
}

// awaited hands over a frame that somebody waits for: a reply in the tunnel, or what the relay answers to a command.
func (l *link) awaited(frame wire.Value) bool {
	from, ref := frame.GetStr("from"), frame.GetStr("ref")
	if ref == "" || from != relayID && frame.GetStr("type") != tunnelType {
		return false
	}
	payload, _ := frame.Get("payload")
	return l.arrived(from, ref, payload)
}

// tunnelled takes a signed message through the whole receive path, as if it had been posted (AR-59). Who it is from its
// signature says, not the relay.
func (l *link) tunnelled(ctx context.Context, h *heard) {
	message := h.payload
	// An answer refers to another message than itself. One that nobody waits for is none of ours to answer: two nodes
	// would go on for ever.
	_, refusal := message.Get("error")
	answers := h.ref != "" && h.ref != message.GetStr("message_id")
	raw := message.JSON()
	if l.b.cfg.Tunnel == nil || refusal || answers || message.Kind() != wire.Object || len(raw) > maxPayload {
		return
	}
	if _, ok := l.tunnels.TakeOver(h.from, time.Now()); !ok {
		return
	}
	out, err := l.b.cfg.Tunnel(ctx, raw)
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
	ref := h.ref
	if ref == "" {
		ref = h.id
	}
	if frame, ok := tunnelFrame(h.from, ref, answer); ok {
		l.answer(h.from, frame)
	}
}

// tunnelFrame wraps a signed message; false where it is too large.
func tunnelFrame(to, ref string, message []byte) ([]byte, bool) {
	v, err := wire.ParseForeign(message, maxDepth, maxValues)
	if err != nil || len(message) > maxPayload {
		return nil, false
	}
	return wire.Obj(wire.Field("to", wire.Texts([]string{to})), text("type", tunnelType), text("ref", ref), wire.Field("payload", v)).JSON(), true
}

// Carry sends a signed message through the tunnel to the agent that the owner said is behind a relay, and returns what
// it answered. It is not carried where the owner said nothing of the agent. The answer is not verified yet.
func (b *Bridge) Carry(ctx context.Context, to wire.AgentID, message []byte) (answer []byte, carried bool, err error) {
	if len(b.links) == 0 {
		return nil, false, nil
	}
	page, err := b.cfg.Store.Records().List(ctx, nsPeers, "agent:"+string(to), "", 10, time.Now())
	if err != nil || len(page.Records) == 0 {
		return nil, false, err
	}
	for _, l := range b.links {
		for _, rec := range page.Records {
			var p Peer
			if json.Unmarshal(rec.Body, &p) == nil && rec.Key == l.peerKey(p.Peer) {
				answer, err := l.carry(ctx, p.Peer, message)
				return answer, true, err
			}
		}
	}
	return nil, false, nil // of a link that is no longer configured
}

func (l *link) carry(ctx context.Context, peer string, message []byte) ([]byte, error) {
	v, err := wire.ParseForeign(message, maxDepth, maxValues)
	if err != nil {
		return nil, carryError{"the message cannot be carried through a relay"}
	}
	ref := v.GetStr("message_id")
	frame, ok := tunnelFrame(peer, ref, message)
	if !ok {
		return nil, carryError{"the message has more than the 60 KB that the tunnel takes"}
	}
	if wait := l.budget.Take(time.Now()); wait > 0 {
		return nil, later(wait, overBudget)
	}
	answered, stop, err := l.await(peer, ref)
	if err != nil {
		return nil, later(time.Second, err.Error())
	}
	defer stop()
	if err := l.write(frame); err != nil {
		return nil, later(0, l.away())
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	select {
	case v := <-answered:
		return v.JSON(), nil
	case <-ctx.Done(): // the same bytes again find the stored answer (AM-21)
		return nil, later(0, "no answer came through the tunnel")
	}
}

func newTunnels() *rate.Buckets {
	return rate.NewBuckets(rate.PerMinute(tunnelPerMinute), tunnelPerMinute, maxPeersSeen)
}
