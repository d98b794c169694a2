package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// newMESS makes the MESS exchange of this process and its links, once the node stands.
func newMESS(p *process, links []linkConfig) (bridgeService, error) {
	if p.node == nil {
		return nil, nil
	}
	c := p.cfg.MESS
	invite := ""
	if c.InviteFile != "" {
		data, err := os.ReadFile(p.app.beside(c.InviteFile))
		if err != nil {
			return nil, fmt.Errorf("read mess.invite_file: %w", err)
		}
		invite = strings.TrimSpace(string(data))
	}
	registration := c.Registration
	if registration == "" && !p.cfg.Public() {
		registration = "open"
	}
	files := c.Attachments
	if files != "" {
		files = p.app.beside(files)
	}
	cfg := mess.Config{
		Exchange: mess.NewExchange(mess.ExchangeConfig{
			ID: c.Exchange, Store: p.store, Files: files, Registration: registration, Invite: invite, Logger: p.log,
			CallsPerMinute: offBelowOne(c.CallsPerMinute), ThreadsPerHour: offBelowOne(c.ThreadsPerHour),
			RegistrationsPerHour: offBelowOne(c.RegistrationsPerHour),
		}),
		Serve: c.Serve == "on" || c.Serve == "auto" && !p.cfg.Public(), Local: !p.cfg.Public(), URL: p.base, Route: c.Route, Notify: c.Notify,
		Tokens: map[string]client.Credential{}, Node: p.node, Self: p.node.ID, Sender: messSender{p.node, p.store.Records()},
		Directory: p.messAgents, Asks: p.node.Asks(), Desk: p.node, Notices: p.notices, Store: p.store, HTTP: p.http, Logger: p.log,
	}
	if c.Directory != "" {
		cfg.Mirror = p.app.beside(c.Directory)
	}
	for _, l := range links {
		link := l.Link
		if link.Dir != "" {
			link.Dir = p.app.beside(link.Dir)
		}
		cfg.Links, cfg.Tokens[l.Name] = append(cfg.Links, link), l.Token
	}
	b, err := mess.New(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Serve {
		p.edge.Exchange(c.Exchange)
	}
	p.node.Route(node.Route{Pattern: string(mess.Intent), Name: "mess", Handler: messHandler{b}, Repeatable: true, Foreign: true, Receipts: "ack"})
	p.node.KeepOpen(mess.Intent, 90*day) // the thread's own timing ends it (MESS section 12)
	p.node.Follow(b)
	p.node.Answers(mess.Kind, b)
	return b, nil
}

// messHandler hands messages of the mesh to the exchange.
type messHandler struct{ b *mess.Bridge }

// Handle implements [hook.Handler].
func (h messHandler) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) {
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		return hook.Answer{}, err
	}
	answer, err := h.b.Receive(ctx, mess.Incoming{
		From: c.Message.From, Address: c.Conversation.Address, Conv: c.Message.Conversation, ID: c.Message.ID, Payload: payload,
	})
	if err == nil {
		return hook.Answer{Payload: &answer}, nil
	}
	refused := mess.Refusal(err)
	if refused.Retry {
		return hook.Answer{}, err
	}
	return hook.Answer{Err: refused}, nil
}

// messSender sends what the exchange says into the mesh.
type messSender struct {
	node    *node.Node
	records store.Records
}

// SendLetter implements [mess.Sender].
func (s messSender) SendLetter(ctx context.Context, l mess.Letter) (wire.MessageID, error) {
	sent, err := s.node.Send(ctx, node.Outgoing{
		To: l.To, Address: l.Address, Conv: l.Conv, Intent: l.Intent, Payload: l.Payload, Via: "bridge", Records: l.Records,
	}, 0)
	if err == nil && sent.State == node.SendHeld { // the owner was asked, and decides about it from now on
		err = s.records.Apply(ctx, l.Records, time.Now())
	}
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Code == wire.ConversationClosed { // nobody is there any more
		return "", s.records.Apply(ctx, l.Records, time.Now())
	}
	return sent.MessageID, err
}

// messAgents lists agents that take MESS requests and have all of the capabilities.
func (p *process) messAgents(ctx context.Context, capabilities []string) ([]mess.Agent, error) {
	var out []mess.Agent
	var last error
	for _, d := range p.joined {
		page, err := d.Search(ctx, client.Query{Capabilities: capabilities, Intents: []wire.Intent{mess.Intent}, Limit: 20})
		if err != nil {
			last = err
			continue
		}
		for _, card := range page.Agents {
			out = append(out, mess.Agent{ID: wire.AgentID(card.GetStr("agent_id")), Name: card.GetStr("name")})
		}
	}
	if len(out) > 0 {
		last = nil
	}
	return out, last
}

var _ bridge.Transport = (*mess.Bridge)(nil)
