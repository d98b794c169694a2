package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxDropped       = 20 // dropped frames in a minute; one more closes the connection with 4029 (AR-31)
	maxSubscriptions = 1000
	storeTimeout     = 10 * time.Second
)

// session is one connection of an agent.
type session struct {
	id        string
	key       credential.Hash // of the token that the agent connected with
	trusted   bool            // no rate limit
	conn      *websocket.Conn
	frameRate *rate.Windows // shared by all connections of the agent

	// Only the reading goroutine uses these fields.
	dropped      int
	droppedSince time.Time

	mu       sync.Mutex
	subs     map[string]bool
	keywords []string  // from subscribe (AR-37)
	about    discovery // what the agent last said about itself
}

// tell queues a frame from the relay to the agent. A connection that is gone or too slow misses it.
func (s *session) tell(kind, ref string, payload wire.Value) {
	_ = s.conn.Send(websocket.Text(notice(s.id, kind, ref, payload)))
}

// notice returns the bytes of a frame from the relay.
func notice(to, kind, ref string, payload wire.Value) []byte {
	return frame.Notice{ID: frame.NewID(), Type: kind, To: to, Ref: ref, Payload: payload, TS: time.Now().UnixMilli()}.Encode()
}

// refuse answers a frame that the relay did not accept (AR-18). ref is that of the frame, if it is known.
func (s *session) refuse(ref string, r *frame.Refusal) {
	s.tell("error", ref, wire.Obj(wire.TextField("code", r.Code), wire.TextField("message", r.Message)))
}

// read handles the frames of a connection until the connection ends.
func (r *Relay) read(s *session) {
	defer r.conns.leave(s)
	for {
		typ, data, err := s.conn.Read()
		if err != nil {
			r.log.Debug("an agent's connection ended", "agent", s.id, "why", err)
			return
		}
		if !s.chargeFrame() {
			continue
		}
		f, fault := frame.Frame{}, frame.Invalid("frames are text")
		if typ == websocket.TextType {
			f, fault = frame.Parse(data)
		}
		switch {
		case fault != nil:
		case f.IsCommand():
			fault = r.handleCommand(s, f)
		default:
			fault = r.forward(s, f)
		}
		if fault != nil {
			s.refuse(f.Ref, fault)
		}
	}
}

// chargeFrame charges a frame to the agent's rate (AR-31). It returns false if the frame must be dropped because it is
// over the limit: the agent then gets an error, or is disconnected if it keeps sending.
func (s *session) chargeFrame() bool {
	now := time.Now()
	if s.trusted {
		return true
	}
	wait := s.frameRate.Take(now)
	if wait == 0 {
		return true
	}
	if now.Sub(s.droppedSince) >= time.Minute {
		s.dropped, s.droppedSince = 0, now
	}
	if s.dropped++; s.dropped > maxDropped {
		s.conn.Close(frame.CloseRate, "rate limit")
		return false
	}
	s.refuse("", frame.Refuse(frame.CodeRate, fmt.Sprintf("you sent as many messages as you may; send the next one in %v", time.Duration(wire.CeilSeconds(wait))*time.Second)))
	return false
}

// delivery is a frame on its way to its receivers.
type delivery struct {
	*entry
	frame   frame.Frame
	toStore *entry // the entry if the message goes into the history, or nil
}

// forward stamps a frame and delivers it. The extensions come first, so that what they store is durable before anybody
// receives the frame.
func (r *Relay) forward(s *session, f frame.Frame) *frame.Refusal {
	if r.cfg.Extensions.Semantic { // without it, nobody needs the payload (AR-22)
		s.noteDiscovery(f)
	}
	d := delivery{entry: &entry{id: frame.NewID(), from: s.id, kind: f.Type, to: f.To, broadcast: f.IsBroadcast()}, frame: f}
	d.ts, d.seq = r.stamps.next()
	d.raw = f.Stamp(d.id, s.id, d.ts)
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	noStore, _ := f.Tree.Get("agentmesh_nostore") // the sender may opt out of the history (AR-46)
	if optedOut, _ := noStore.Boolean(); r.history != nil && !optedOut {
		d.text, d.toStore = frame.SearchText(f.Type, f.Payload), d.entry
	}
	isStored := false
	if r.cfg.Extensions.Voting {
		var fault *frame.Refusal
		if isStored, fault = r.handleVoting(ctx, d); fault != nil {
			return fault
		}
	}
	if d.toStore != nil && !isStored {
		if err := r.history.append(ctx, d.toStore); err != nil {
			r.log.Error("cannot store a message of the relay", "err", err)
			return frame.Refuse(frame.CodeUnavailable, "the relay cannot take messages now")
		}
	}
	r.statistics.add(time.Now())
	r.deliver(d)
	// This comes after handleVoting, which counts the active agents for the quorum of a proposal (AR-42).
	r.markSeen(ctx, s.id)
	return nil
}

// deliver queues the encoded frame for all its receivers, once each (AR-20, AR-25). A receiver that is gone or too slow
// misses it (AR-23).
func (r *Relay) deliver(d delivery) {
	out := websocket.Text(d.raw)
	if !d.frame.IsBroadcast() {
		for _, s := range r.conns.ofAgents(d.frame.To) {
			_ = s.conn.Send(out)
		}
		return
	}
	words := narrowTo(d.frame, r.cfg.Extensions.Semantic)
	for _, s := range r.conns.all() {
		if s.id != d.from && (words == nil || s.wants(d.from, words)) {
			_ = s.conn.Send(out)
		}
	}
}

// subscribe adds subscriptions, and replaces the keywords unless words is nil. It returns the number of subscriptions.
func (s *session) subscribe(agents, words []string) (int, *frame.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := 0
	for _, id := range agents {
		if !s.subs[id] {
			added++
		}
	}
	if len(s.subs)+added > maxSubscriptions {
		return 0, frame.Invalid("at most 1000 subscriptions")
	}
	if s.subs == nil {
		s.subs = make(map[string]bool)
	}
	for _, id := range agents {
		s.subs[id] = true
	}
	if words != nil {
		s.keywords = words
	}
	return len(s.subs), nil
}

func (s *session) unsubscribe(agents []string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range agents {
		delete(s.subs, id)
	}
	return len(s.subs)
}

func (s *session) subscriptions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.subs))
}
