package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// secretTime and secretOutput bound the running time and the output of moltspeak.secret_command.
const (
	secretTime   = 30 * time.Second
	secretOutput = 64 << 10
)

// newMoltSpeak makes the MoltSpeak bridge. It returns nil without a node, and
// if the node has no name at MoltSpeak and needs none.
func newMoltSpeak(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	c := p.cfg.MoltSpeak
	if p.node == nil {
		return nil, nil
	}
	name, serve := p.switches.in(p.cfg).MoltSpeakAgent(p.node.Card().ID)
	if isNamed := message.ValidName(name.Agent) && message.ValidName(name.Org); !isNamed && !serve && len(links) == 0 && c.Registry != "on" {
		return nil, nil
	}
	key, box, err := keyring{p}.readMoltSpeak()
	if err != nil {
		return nil, err
	}
	cfg := moltspeak.Config{
		Agent: name, Key: key, Box: box, Serve: serve, URL: p.base + "/moltspeak/v0.1", Domains: c.Domains, PlainConf: c.PlainConf,
		Reveal: c.Reveal, Origins: c.Origins, Addresses: p.server.Addresses(), Registry: c.Registry == "on", NoAuth: c.RegistryAuth == "none", Local: !p.cfg.Public(),
		Mesh: mesh, Store: p.bridgeStore, HTTP: p.http, Logger: p.log,
	}
	for _, d := range p.directories {
		cfg.Directories = append(cfg.Directories, d)
	}
	cfg.OnOtherKey = func(ctx context.Context, address bridge.Address) {
		p.notifyOwner(ctx, notify.Notice{
			Kind: "key-change", Title: "a MoltSpeak agent shows a key other than the pinned one, and is refused", At: time.Now(),
			Text: address.String(), Peer: address.Pseudonym(),
		})
	}
	cfg.OnBlocked = func(ctx context.Context, address bridge.Address, cause error) {
		p.notifyOwner(ctx, notify.Notice{
			Kind: "undelivered", Title: "an answer could not be delivered", At: time.Now(),
			Text: wire.OneLine(cause.Error()+" (to "+address.String()+")", 300), Peer: address.Pseudonym(),
		})
	}
	cfg.RegistryToken = func(base string) client.Credential {
		return registration.Credential(p.secrets.Credential, &client.Directory{Base: base})
	}
	for _, t := range c.Tools {
		cfg.Tools = append(cfg.Tools, moltspeak.ToolInfo{Name: t.Name, Description: t.Description, Peers: t.Peers})
	}
	if len(c.SecretCommand) > 0 {
		cfg.Secret = newSecretHandler(subprocess.Command{Argv: p.src.ResolveCommand(c.SecretCommand), MaxOutput: secretOutput})
	}
	cfg.Links, cfg.Tokens = splitLinks(links)
	return moltspeak.New(cfg)
}

// addMoltSpeakMetadata adds the node's MoltSpeak name, its keys and, if isPublishable permits it, its MoltSpeak URL to
// the metadata of card, if the node serves MoltSpeak (MS-22, AM-4).
func (p *Process) addMoltSpeakMetadata(card wire.Card, metadata wire.Value) (wire.Value, error) {
	agent, serve := p.switches.in(p.cfg).MoltSpeakAgent(card.ID)
	if !serve {
		return metadata, nil
	}
	key, box, err := keyring{p}.readMoltSpeak()
	if err != nil {
		return metadata, err
	}
	if isPublishable(p.cfg, p.base, card.Endpoint) {
		metadata = metadata.With("moltspeak", wire.Text(p.base+"/moltspeak/v0.1"))
	}
	return metadata.With("moltspeak_agent", wire.Text(agent.Name())).
		With("moltspeak_key", wire.Text("ed25519:"+key.Public().Text64())).
		With("moltspeak_enc_key", wire.Text("x25519:"+box.Public().String())), nil
}

// newSecretHandler returns a function that passes a secret to a command on standard input. The function returns the
// value that the command prints, or an empty object if it prints nothing. It drops the command's standard error, which
// may contain the secret.
func newSecretHandler(cmd subprocess.Command) func(context.Context, string, wire.Value) (wire.Value, error) {
	return func(ctx context.Context, from string, p wire.Value) (wire.Value, error) {
		ctx, cancel := context.WithTimeout(ctx, secretTime)
		defer cancel()
		input := wire.Obj(wire.TextField("from", from), wire.Field("p", p))
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
