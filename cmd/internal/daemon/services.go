package daemon

import (
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
)

// newRoutes makes the routes to the hooks in the configuration.
func (p *Process) newRoutes() ([]node.Route, error) {
	var out []node.Route
	for i, h := range p.cfg.Hooks {
		handler, err := p.newHandler(h)
		if err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("hooks[%d]: %w", i, err))
		}
		out = append(out, node.Route{Pattern: h.Intent, Name: h.Label(), Handler: handler, Repeatable: h.Repeatable})
	}
	return out, nil
}

// newHandler makes the handler of a hook. A nil handler means the inbox.
func (p *Process) newHandler(h config.Hook) (hook.Handler, error) {
	switch {
	case len(h.Exec) > 0:
		return hook.Exec{Argv: p.src.ResolveCommand(h.Exec), Logger: p.log}, nil
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
