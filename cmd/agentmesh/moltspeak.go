package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The keys of the node as a MoltSpeak agent, never those of AgentMesh (MS-22).
const (
	fileMoltSpeakKey = "moltspeak.key"
	fileMoltSpeakBox = "moltspeak-box.key"
)

// secretTime and secretOutput bound the command that gets secrets.
const (
	secretTime   = 30 * time.Second
	secretOutput = 64 << 10
)

// moltspeakService is the bridge with what the owner sends through it.
type moltspeakService struct {
	*moltspeak.Bridge
	node *node.Node
}

// newMoltSpeak makes the node a MoltSpeak agent, where it serves as one or has links.
func newMoltSpeak(p *process, links []linkConfig) (bridgeService, error) {
	c := p.cfg.MoltSpeak
	if p.node == nil {
		return nil, nil
	}
	name, serve := p.cfg.moltspeakAgent(p.node.Card().ID)
	if !serve && len(links) == 0 && !c.Registry {
		return nil, nil
	}
	key, box, err := p.home.moltspeakKeys()
	if err != nil {
		return nil, err
	}
	cfg := moltspeak.Config{
		Agent: name, Key: key, Box: box, Serve: serve, Domains: c.Domains, PlainConf: c.PlainConf,
		Reveal: c.Reveal, Origins: c.Origins, Addresses: p.edge.Addresses(), Registry: c.Registry, NoAuth: c.RegistryAuth == "none", Local: !p.cfg.Public(),
		Tokens: map[string]client.Credential{}, Node: p.node, Asks: p.node.Asks(), Store: p.store,
		Rules: acl.NewRules(p.store.Records(), p.cfg.policy()), HTTP: p.http, Logger: p.log,
	}
	if serve {
		cfg.URL = p.base + "/moltspeak/v0.1"
	}
	for _, d := range p.joined {
		cfg.Directories = append(cfg.Directories, d)
	}
	cfg.Doubt = func(ctx context.Context, address bridge.Address) {
		p.tell(ctx, notify.Notice{
			Kind: "key-change", Title: "a MoltSpeak agent shows another key than the pinned one, and is refused", At: time.Now(),
			Text: address.String() + "; agentmesh moltspeak peers", Peer: address.Pseudonym(),
		})
	}
	cfg.RegistryToken = func(base string) client.Credential {
		return node.Credential(p.secrets.credential, &client.Directory{Base: base})
	}
	for _, t := range c.Tools {
		cfg.Tools = append(cfg.Tools, moltspeak.ToolInfo{Name: t.Name, Description: t.Description, Peers: t.Peers})
	}
	if len(c.SecretCommand) > 0 {
		cfg.Secret = secretCommand(subprocess.Command{Argv: p.app.argv(c.SecretCommand), MaxOutput: secretOutput})
	}
	for _, l := range links {
		cfg.Links, cfg.Tokens[l.Name] = append(cfg.Links, l.Link), l.Token
	}
	// A query commits the owner to nothing, and neither does its answer: like mesh.request_info it leaves at once.
	p.node.HoldRule(acl.HoldRule{Intent: string(moltspeak.IntentQuery), Direction: acl.Out, Hold: acl.Never})
	b, err := moltspeak.New(cfg)
	if err != nil {
		return nil, err
	}
	return &moltspeakService{b, p.node}, nil
}

// moltspeakAgent is who the node is to MoltSpeak agents, and whether they reach it. An agent id with a dot is no name
// there: then moltspeak.agent must name one (MS-22).
func (c Config) moltspeakAgent(id wire.AgentID) (agent moltspeak.Agent, serve bool) {
	name := c.MoltSpeak.Agent
	if name == "" {
		name = string(id)
	}
	agent, named := moltspeak.ParseName(name + "@" + c.MoltSpeak.Org)
	if !named {
		agent = moltspeak.Agent{Agent: name, Org: c.MoltSpeak.Org}
	}
	return agent, c.MoltSpeak.Serve == "on" || c.MoltSpeak.Serve == "auto" && !c.Public() && named
}

// tells says whether an address below base belongs on a card: one of this machine only where the agent itself is reached
// there, and there alone.
func (c Config) tells(base, endpoint string) bool {
	return !isLoopback(base) || !c.Public() && c.ViaRelay == "" && isLoopback(endpoint)
}

// withMoltSpeak tells MoltSpeak agents on the card where they reach the node, unless they cannot, and by which keys they
// know it, as flat strings (MS-22, AM-4).
func (p *process) withMoltSpeak(card wire.Card, base string) (wire.Card, error) {
	agent, serve := p.cfg.moltspeakAgent(card.ID)
	if !serve {
		return card, nil
	}
	key, box, err := p.home.moltspeakKeys()
	if err != nil {
		return card, err
	}
	meta, _ := card.Tree.Get("metadata")
	if p.cfg.tells(base, card.Endpoint) {
		meta = meta.With("moltspeak", wire.Text(base+"/moltspeak/v0.1"))
	}
	for _, m := range []struct{ key, value string }{
		{"moltspeak_agent", agent.Name()},
		{"moltspeak_key", "ed25519:" + key.Public().Text64()}, {"moltspeak_enc_key", "x25519:" + box.Public().String()},
	} {
		meta = meta.With(m.key, wire.Text(m.value))
	}
	return wire.ParseCard(card.Tree.With("metadata", meta), wire.CardRules{AllowHTTP: func(string) bool { return true }})
}

// secretCommand hands a secret to a command in memory. What the command wrote to standard error is dropped: it may
// hold the secret.
func secretCommand(cmd subprocess.Command) func(context.Context, string, wire.Value) (wire.Value, error) {
	return func(ctx context.Context, from string, p wire.Value) (wire.Value, error) {
		ctx, cancel := context.WithTimeout(ctx, secretTime)
		defer cancel()
		input := wire.Obj(wire.Member{Key: "from", Value: wire.Text(from)}, wire.Member{Key: "p", Value: p})
		out, err := cmd.Run(ctx, append(input.JSON(), '\n'))
		if err != nil {
			return wire.Value{}, errors.New("the secret command failed")
		}
		if len(out.Output) == 0 {
			return wire.Obj(), nil
		}
		return wire.Parse(out.Output)
	}
}

// moltspeakKeys reads the two keys, made where they are missing.
func (h home) moltspeakKeys() (*signing.PrivateKey, *signing.BoxKey, error) {
	if _, err := os.Lstat(h.path(fileMoltSpeakKey)); errors.Is(err, fs.ErrNotExist) {
		key, err := signing.GenerateEd25519()
		if err == nil {
			err = signing.WriteKeyFile(h.path(fileMoltSpeakKey), key, nil)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("make the MoltSpeak key: %w", err)
		}
	}
	if _, err := os.Lstat(h.path(fileMoltSpeakBox)); errors.Is(err, fs.ErrNotExist) {
		box, err := signing.GenerateBoxKey()
		if err == nil {
			err = signing.WriteBoxKeyFile(h.path(fileMoltSpeakBox), box)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("make the MoltSpeak key: %w", err)
		}
	}
	key, err := signing.ReadKeyFile(h.path(fileMoltSpeakKey), nil)
	if err != nil {
		return nil, nil, h.secretFault(fileMoltSpeakKey, err)
	}
	box, err := signing.ReadBoxKeyFile(h.path(fileMoltSpeakBox))
	if err != nil {
		return nil, nil, h.secretFault(fileMoltSpeakBox, err)
	}
	return key, box, nil
}

// Operations adds the sending to what the bridge offers the owner.
func (s *moltspeakService) Operations() []owner.Operation {
	return append(s.Bridge.Operations(), owner.Raw(http.MethodPost, "/moltspeak/send", owner.Send, s.send))
}

// send starts a conversation with an agent behind a link.
func (s *moltspeakService) send(c echo.Context) error {
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	req, err := wire.ParseObject(raw)
	if err != nil {
		return wire.ErrSyntax.Because(err)
	}
	address := bridge.Address{Kind: moltspeak.Kind, Link: req.GetStr("link"), Peer: req.GetStr("peer")}
	if _, ok := moltspeak.ParseName(address.Peer); !ok || address.Validate() != nil {
		return wire.ErrQuery.At("a MoltSpeak agent is named by link and agent@org")
	}
	payload, _ := req.Get("payload")
	wait := time.Duration(0)
	if w, ok := req.Get("wait"); ok {
		if b, _ := w.Boolean(); b {
			wait = sendWait * time.Second
			if err := httpapi.KeepOpen(c, wait+10*time.Second); err != nil {
				return err
			}
		}
	}
	out := node.Outgoing{
		To: address.Pseudonym(), Address: address.String(), Intent: wire.Intent(req.GetStr("intent")), Payload: payload, Via: "owner",
	}
	if ms, ok := payload.Get("deadline"); ok && out.Intent == moltspeak.IntentTask { // it ends our side of the task as well (MS-33)
		if token, isNumber := ms.Num(); isNumber {
			if n, err := strconv.ParseInt(token, 10, 64); err == nil && n > 0 {
				out.Deadline = time.UnixMilli(n)
			}
		}
	}
	sent, err := s.node.SendForAnswer(c.Request().Context(), out, wait)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, sent)
}
