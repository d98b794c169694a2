package agentrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/websocket"
)

// talk reads a connection to its end.
func (r *Relay) talk(s *session) {
	defer r.leave(s)
	for {
		typ, data, err := s.conn.Read()
		if err != nil {
			r.log.Debug("an agent's connection ended", "agent", s.id, "why", err)
			return
		}
		if !r.within(s) {
			continue
		}
		f, fault := frame{}, invalid("frames are text")
		if typ == websocket.TextType {
			f, fault = parseFrame(data)
		}
		if fault == nil {
			fault = r.hear(s, f)
		}
		if fault != nil {
			r.refuse(s, f, fault)
		}
	}
}

// within holds an agent to its rate (AR-31). A frame over it is dropped and answered; who goes on is put out.
func (r *Relay) within(s *session) bool {
	now := time.Now()
	if s.trusted {
		return true
	}
	wait := s.spent.Take(now)
	if wait == 0 {
		return true
	}
	if now.Sub(s.droppedSince) >= time.Minute {
		s.dropped, s.droppedSince = 0, now
	}
	if s.dropped++; s.dropped > maxDropped {
		s.conn.Close(codeRateClosed, "rate limit")
		return false
	}
	r.refuse(s, frame{}, &refusal{codeRate, fmt.Sprintf("you have sent as many messages as you may; the next one in %v", wait.Round(time.Second))})
	return false
}

// hear takes a good frame (section 10).
func (r *Relay) hear(s *session, f frame) *refusal {
	if f.command() {
		return r.command(s, f)
	}
	s.note(f)
	d := delivery{id: newID(), from: s, frame: f}
	d.ts, d.seq = r.now()
	d.bytes = f.stamp(d.id, s.id, d.ts)
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if fault := r.extend(ctx, d); fault != nil {
		return fault
	}
	now := time.Now()
	r.agents.active(s.id, now) // after a proposal has fixed its quorum (AR-42)
	r.counting.Lock()
	r.recent.Add(now)
	r.counting.Unlock()
	r.deliver(d)
	return nil
}

// delivery is a frame on its way to its receivers.
type delivery struct {
	id    string
	from  *session
	frame frame
	ts    int64
	seq   uint64
	bytes []byte
}

// extend lets the extensions that are on see a message before it is delivered: what is stored is durable then.
func (r *Relay) extend(ctx context.Context, d delivery) *refusal {
	if r.votes != nil {
		if fault := r.observe(ctx, d); fault != nil {
			return fault
		}
	}
	if r.history != nil && d.kept() {
		if err := r.history.append(ctx, d.entry()); err != nil {
			r.log.Error("store a message of the relay", "err", err)
			return &refusal{codeUnavailable, "the relay cannot take messages now"}
		}
	}
	return nil
}

// deliver queues the frame for everybody it is for, once each (AR-20, AR-25). It is encoded once.
func (r *Relay) deliver(d delivery) {
	out := websocket.Text(d.bytes)
	if d.frame.broadcast() {
		for _, s := range r.audience(d) {
			_ = s.conn.Send(out) // who is gone or too slow misses it (AR-23)
		}
		return
	}
	for _, s := range r.named(d.frame.to) {
		_ = s.conn.Send(out)
	}
}

// named returns the connections of ids, each once. Who is absent is left out silently (AR-20).
func (r *Relay) named(to []string) []*session {
	out := make([]*session, 0, len(to))
	r.mu.Lock()
	defer r.mu.Unlock()
next:
	for i, id := range to {
		for _, before := range to[:i] {
			if before == id {
				continue next
			}
		}
		if s := r.sessions[id]; s != nil {
			out = append(out, s)
		}
	}
	return out
}

// audience returns who gets a broadcast: everybody but its sender, or those that a narrow one is for (AR-37).
func (r *Relay) audience(d delivery) []*session {
	words := d.frame.narrowTo(r.cfg.Extensions.Semantic)
	r.mu.Lock()
	out := make([]*session, 0, len(r.sessions))
	for id, s := range r.sessions {
		if id != d.from.id {
			out = append(out, s)
		}
	}
	r.mu.Unlock()
	if words == nil {
		return out
	}
	kept := out[:0]
	for _, s := range out {
		if s.wants(d.from.id, words) {
			kept = append(kept, s)
		}
	}
	return kept
}
