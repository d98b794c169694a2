package main

import (
	"context"
	"net"
	"net/url"
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// newMewLinks makes the participant's side of MEW: the node in the spaces of others.
func (p *process) newMewLinks(links []linkConfig) (*mew.Bridge, error) {
	cfg := mew.Config{
		Tokens: map[string]client.Credential{}, Records: p.store.Records(), Steps: p.store.Steps(), Logger: p.log,
		Dial: func(ctx context.Context, u *url.URL) (net.Conn, error) { return p.http.Connect(ctx, client.Owner, u) },
	}
	exempt, _ := p.cfg.exempt()
	for _, l := range links {
		if slices.Contains(exempt, mew.Principal(l.Name)) {
			l.Policy.Limits = bridge.NoLinkLimits()
		}
		cfg.Links, cfg.Tokens[l.Name] = append(cfg.Links, l.Link), l.Token
	}
	if p.node != nil {
		cfg.Node, cfg.Mesh = p.node, mewMesh{p}
	}
	b, err := mew.New(cfg)
	if err != nil || p.node == nil {
		return b, err
	}
	if len(links) > 0 {
		p.node.Route(node.Route{Pattern: mew.Intents, Name: mew.Kind, Handler: mewHandler{b}, Foreign: true})
	}
	return b, nil
}

// mewHandler hands what a space asks of the node to the bridge.
type mewHandler struct{ b *mew.Bridge }

// Handle implements [hook.Handler].
func (h mewHandler) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) {
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		return hook.Answer{}, err
	}
	answer, err := h.b.Handle(ctx, mew.Call{
		Conv: c.Message.Conversation, Address: c.Conversation.Address, Intent: c.Message.Intent, Payload: payload, Approved: c.Approved,
	})
	return hook.Answer{Payload: answer.Payload, Hold: answer.Hold}, err
}

// mewMesh is the node as the bridge uses it.
type mewMesh struct{ p *process }

// ID implements [mew.Mesh].
func (m mewMesh) ID() wire.AgentID { return m.p.node.ID() }

// Send implements [mew.Mesh].
func (m mewMesh) Send(ctx context.Context, l mew.Letter) (mew.Posted, error) {
	sent, err := m.p.node.Send(ctx, node.Outgoing{
		To: l.To, Address: l.Address, Conv: l.Conv, Intent: l.Intent, Payload: l.Payload, Via: "bridge",
	}, 0)
	return mew.Posted{Conv: sent.Conversation, State: string(sent.State)}, err
}

// Decide implements [mew.Mesh].
func (m mewMesh) Decide(ctx context.Context, conv store.ConvKey, approve bool) error {
	choice := acl.Reject
	if approve {
		choice = acl.Approve
	}
	return m.p.node.DecideHeld(ctx, conv, choice, mew.Kind)
}

// Find implements [mew.Mesh].
func (m mewMesh) Find(ctx context.Context, words string, limit int) ([]mew.Agent, error) {
	var out []mew.Agent
	var last error
	for _, d := range m.p.joined {
		page, err := d.Search(ctx, client.Query{Text: words, Limit: limit})
		if err != nil {
			last = err
			continue
		}
		for _, v := range page.Agents {
			card, err := wire.ParseCard(v, wire.CardRules{AllowHTTP: func(string) bool { return true }})
			if err != nil {
				continue
			}
			agent := mew.Agent{ID: card.ID, Name: card.Name, Description: card.Description}
			for _, intent := range card.Intents {
				agent.Intents = append(agent.Intents, string(intent))
			}
			out = append(out, agent)
		}
	}
	if len(out) > 0 {
		last = nil
	}
	return out[:min(len(out), limit)], last
}

// Follow implements [mew.Mesh].
func (m mewMesh) Follow(ctx context.Context, seen func(mew.Change)) {
	events, stop := m.p.node.Watch()
	defer stop()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				<-ctx.Done()
				return
			}
			if c, ok := m.change(ctx, ev); ok {
				seen(c)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (m mewMesh) change(ctx context.Context, ev node.Event) (mew.Change, bool) {
	switch ev.Topic {
	case node.TopicReset:
		return mew.Change{Missing: true}, true
	case node.TopicConversations:
		return mew.Change{Key: store.ConvKey{Peer: ev.Peer, ID: ev.Conversation}}, true
	case node.TopicInbox:
		item, err := m.p.node.Item(ctx, ev.ID)
		if err != nil || item.Address == "" {
			return mew.Change{}, false
		}
		return mew.Change{Item: &mew.Item{
			Address: item.Address, MessageID: item.MessageID, Conversation: item.Conversation, Intent: item.Intent, State: string(item.State),
		}}, true
	}
	return mew.Change{}, false
}

var _ bridge.Transport = (*mew.Bridge)(nil)
