package daemon

import (
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
)

// routes makes the hooks.
func (p *Process) routes() ([]node.Route, error) {
	var out []node.Route
	for i, h := range p.cfg.Hooks {
		handler, err := p.handler(h)
		if err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("hooks[%d]: %w", i, err))
		}
		out = append(out, node.Route{Pattern: h.Intent, Name: h.Label(), Handler: handler, Repeatable: h.Repeatable})
	}
	return out, nil
}

// handler makes the agent behind a hook; nil is the inbox.
func (p *Process) handler(h config.Hook) (hook.Handler, error) {
	switch {
	case len(h.Exec) > 0:
		return hook.Exec{Argv: p.src.Argv(h.Exec), Logger: p.log}, nil
	case h.Webhook != "":
		lines, err := p.src.SecretLines(h.SecretFile, h.SecretEnv)
		if err != nil {
			return nil, err
		}
		webhook := hook.Webhook{URL: h.Webhook, HTTP: p.http, Logger: p.log}
		for _, line := range lines {
			secret, err := client.ParseWebhookSecret(line)
			if err != nil {
				return nil, err
			}
			webhook.Secrets = append(webhook.Secrets, secret)
		}
		return webhook, nil
	case h.OpenClaw != "":
		lines, err := p.src.SecretLines(h.SecretFile, h.SecretEnv)
		if err != nil {
			return nil, err
		}
		return hook.OpenClaw{
			URL: h.OpenClaw, Token: client.Credential(lines[0]), AgentID: h.OpenClawAgent, SessionKey: h.OpenClawSession,
			HTTP: p.http, Logger: p.log,
		}, nil
	}
	return nil, nil
}
