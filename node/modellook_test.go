package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// look compares what the owner and the agent see with the spec, while nothing happens.
func (w *world) look() {
	for _, s := range w.sides {
		w.mu.Lock()
		isBusy := s.judging != nil
		w.mu.Unlock()
		if isBusy { // its hook is slow
			continue
		}
		w.lookAtConversations(s)
		w.lookAtInbox(s)
	}
}

func (w *world) lookAtConversations(s *side) {
	var list owner.ConversationList
	s.ask("GET", "/conversations?limit=100", nil, &list)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, v := range list.Items {
		t := s.spec.talks[talkKey{wire.AgentID(v.Peer), wire.ConversationID(v.ID)}]
		if t == nil {
			w.t.fault(fmt.Sprintf("conversation: %s has %s with %s, which nobody began", s.name, v.ID, v.Peer))
			continue
		}
		ended := s.spec.hasEnded(t, now)
		switch isOpen := v.State == conversations.Open; {
		case isOpen && ended == yes, !isOpen && ended == no, t.state != conversations.Open && v.State != t.state:
			w.t.fault(fmt.Sprintf("conversation: %s of %s is %s, the spec says %s (ended: %d)", v.ID, s.name, v.State, t.state, ended))
		case !isOpen:
			t.state = v.State
		}
		for _, a := range v.Agreements {
			w.checkAgreement(s, v, a)
		}
	}
}

// checkAgreement: an agreement is contained in a proposal of one side, which the other side accepted.
func (w *world) checkAgreement(s *side, v owner.Conversation, a owner.Agreement) {
	accept, ok := w.sent[a.Message]
	if !ok {
		for _, c := range w.calls {
			if c.m.ID == a.Message {
				accept, ok = c.m, true
			}
		}
	}
	proposer := accept.To
	var near []string
	said := w.said(v.ID)
	// A counter inherits what it leaves out (AM-88).
	inherits := func(has func(event wire.Value) bool) bool {
		return slices.ContainsFunc(said, func(m wire.Message) bool {
			event, _ := m.Payload.Get("event")
			return has(event)
		})
	}
	for _, p := range said {
		if p.From != proposer && p.To != proposer {
			continue
		}
		terms, _ := p.Payload.Get("terms")
		event, _ := p.Payload.Get("event")
		isOffer := p.From == proposer && p.To == accept.From && (p.Action() == "propose" || p.Action() == "counter" || p.Action() == "accept")
		if !isOffer || p.Intent != a.Intent {
			continue
		}
		near = append(near, string(p.Payload.JSON()))
		times, _ := event.Get("proposed_times")
		hasTime := a.Time == "" || slices.Contains(event.GetTexts("proposed_times"), a.Time) || times.Len() == 0 && inherits(func(event wire.Value) bool {
			return slices.Contains(event.GetTexts("proposed_times"), a.Time)
		})
		hasTitle := a.Title == event.GetStr("title") || event.GetStr("title") == "" && inherits(func(event wire.Value) bool { return a.Title == event.GetStr("title") })
		if hasTime && hasTitle && a.Description == terms.GetStr("description") && a.Price == terms.GetStr("price") {
			return
		}
	}
	w.t.fault(fmt.Sprintf("agreement: %s has %+v by %s in %s, proposals %v", s.name, a.Agreement, accept.Payload.JSON(), v.ID, near))
}

// said returns every message of a conversation id that was on the wire.
func (w *world) said(conv string) (list []wire.Message) {
	for _, m := range w.sent {
		if string(m.Conversation) == conv {
			list = append(list, m)
		}
	}
	for _, c := range w.calls {
		if string(c.m.Conversation) == conv {
			list = append(list, c.m)
		}
	}
	return list
}

func (w *world) lookAtInbox(s *side) {
	seen, waits := make(map[heardKey]bool), false
	items := s.items()
	w.mu.Lock()
	for _, item := range items {
		key := heardKey{item.Peer, item.MessageID}
		if seen[key] {
			w.t.fault(fmt.Sprintf("twice: %s has two items of %s", s.name, item.MessageID))
		}
		seen[key] = true
		h := s.spec.heard[key]
		if h == nil || !h.waits {
			continue
		}
		switch item.State {
		case owner.ItemHeld:
			waits = true
		case owner.ItemWithdrawn, owner.ItemExpired, owner.ItemRejected:
			h.waits, h.dropped = false, true
		case owner.ItemAnswered: // by the owner's hand
			h.waits, h.dropped = false, true
		default:
			w.t.fault(fmt.Sprintf("held leaves: the item of %s is %s without a decision", item.MessageID, item.State))
		}
	}
	w.mu.Unlock()
	if !waits {
		return
	}
	var shown strings.Builder
	show := func(path string, dst any) {
		var raw json.RawMessage
		s.call(s.at(0).Agent, "GET", path, nil, &raw)
		shown.Write(raw)
		if dst != nil {
			_ = json.Unmarshal(raw, dst)
		}
	}
	var list owner.ConversationList
	show("/inbox?limit=1000", nil)
	show("/conversations?limit=100", &list)
	for _, v := range list.Items {
		show("/conversations/"+v.ID+"?peer="+v.Peer, nil)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range s.spec.heard {
		if h.waits && strings.Contains(shown.String(), markIn(h.m.Payload)) {
			w.t.fault(fmt.Sprintf("held leaves: the agent of %s sees %s", s.name, h.m.Payload.JSON()))
		}
	}
}

// markIn returns the mark of a payload, or a text that occurs nowhere.
func markIn(payload wire.Value) string {
	text := string(payload.JSON())
	i := strings.Index(text, "mark-")
	if i < 0 {
		return "no mark"
	}
	end := strings.IndexByte(text[i+5:], '-')
	return text[i : i+5+end+1]
}

// end lets the nodes exchange what they still have for each other, and compares their transcripts.
func (w *world) end() {
	for _, s := range w.sides {
		w.mu.Lock()
		s.isDown, s.lost, s.hook = false, 0, 0 // two slow hooks would talk for ever
		w.mu.Unlock()
		if s.spec.paused {
			w.pause(step{a: slices.Index(w.sides, s)})
		}
	}
	for range 60 {
		time.Sleep(5 * time.Minute)
		queued := 0
		for _, s := range w.sides {
			var list owner.List[owner.OutboxEntry]
			s.ask("GET", "/outbox?state=queued&limit=100", nil, &list)
			queued += len(list.Items)
		}
		if queued == 0 {
			break
		}
	}
	w.settle()
	w.look()
	ann, bob := w.sides[0], w.sides[1]
	w.compare(ann, bob)
	w.compare(bob, ann)
}

// transcript returns what s stored of its conversations with a peer, by conversation.
func (s *side) transcript(peer wire.AgentID) map[string][]store.Entry {
	all := make(map[string][]store.Entry)
	var list owner.ConversationList
	s.ask("GET", "/conversations?limit=100", nil, &list)
	for _, v := range list.Items {
		if v.Peer != string(peer) {
			continue
		}
		entries, err := s.db.Steps().Transcript(context.Background(), store.ConvKey{Peer: v.Peer, ID: v.ID}, 0, 1000)
		if err != nil {
			s.w.t.Fatalf("transcript: %v", err)
		}
		all[v.ID] = entries
	}
	return all
}

// compare: what to received from from is what from sent, once and in the same order, and nothing that from delivered is
// missing.
func (w *world) compare(from, to *side) {
	undelivered := make(map[wire.MessageID]bool)
	for _, s := range w.sides {
		var outbox owner.List[owner.OutboxEntry]
		s.ask("GET", "/outbox?limit=1000", nil, &outbox)
		for _, e := range outbox.Items {
			if e.State != owner.SendDelivered {
				undelivered[e.MessageID], undelivered[e.First] = true, true
			}
		}
	}
	sent, received := from.transcript(to.id), to.transcript(from.id)
	for conv, entries := range received {
		var in, out []string
		raw := make(map[string][]byte)
		for _, e := range sent[conv] {
			if e.Out {
				out, raw[e.MessageID] = append(out, e.MessageID), e.Raw
			}
		}
		for _, e := range entries {
			if e.Out {
				continue
			}
			if m, _ := w.parse(e.Raw); m.Meta("resend_of") != "" { // signed again; the sender stored the first bytes (AM-48)
				in = append(in, m.Meta("resend_of"))
				continue
			}
			if slices.Contains(in, e.MessageID) {
				w.t.fault(fmt.Sprintf("twice: %s has %s twice in %s", to.name, e.MessageID, conv))
			}
			in = append(in, e.MessageID)
			if m, _ := w.parse(e.Raw); raw[e.MessageID] == nil && m.Action() == wire.ActionReceived {
				continue // of an answer that came twice, as one and by itself, only the first receipt is stored
			}
			if known, ok := raw[e.MessageID]; !ok || !bytes.Equal(known, e.Raw) {
				w.t.fault(fmt.Sprintf("transcript: %s received %s in %s, which %s has not sent: %s", to.name, e.MessageID, conv, from.name, e.Raw))
			}
		}
		for id := range raw {
			m, _ := w.parse(raw[id])
			switch _, left := w.sent[m.ID]; {
			case m.Action() == wire.ActionPending: // its place may have been taken by the final answer before it arrived
				continue
			case m.Action() == wire.ActionClose: // it may have found the conversation closed already (AM-38)
				continue
			case !left && conversations.AnswersIn(m.Payload) != "": // the answer to a repeat that never came (AM-22)
				continue
			}
			if !slices.Contains(in, id) && !undelivered[m.ID] && !undelivered[w.sync[m.ID]] {
				w.t.fault(fmt.Sprintf("transcript: %s sent %s in %s, which %s has not: %s", from.name, id, conv, to.name, raw[id]))
			}
		}
		common := slices.DeleteFunc(out, func(id string) bool { return w.sync[wire.MessageID(id)] != "" || !slices.Contains(in, id) }) // AM-46
		in = slices.DeleteFunc(in, func(id string) bool { return !slices.Contains(common, id) })
		if !slices.Equal(common, in) {
			w.t.fault(fmt.Sprintf("order: in %s, %s sent %v, and %s received %v", conv, from.name, common, to.name, in))
		}
	}
}
