package daemon

import (
	"context"
	"fmt"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newRoutes makes the routes of the configured hooks, in the order of the configuration.
func (p *Process) newRoutes() ([]node.Route, error) {
	var out []node.Route
	for i, h := range p.cfg.Hooks {
		handler, err := p.newHandler(h)
		if err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("hooks[%d]: %w", i, err))
		}
		// A webhook and OpenClaw recognize a repeat by its id; a program or an A2A agent would do its work twice (AM-75).
		repeatable := h.Repeatable || h.Webhook != "" || h.OpenClaw != ""
		out = append(out, node.Route{Pattern: h.Intent, Name: h.Label(), Handler: handler, Repeatable: repeatable, Replies: h.Replies})
	}
	return out, nil
}

// newHandler makes the handler of a hook. A nil handler leaves the messages in the inbox.
func (p *Process) newHandler(h config.Hook) (hook.Handler, error) {
	secret, err := p.src.Secret(h.Label(), h.SecretFile)
	if err != nil {
		return nil, err
	}
	switch {
	case len(h.Exec) > 0:
		uid, err := subprocess.UserID(h.User)
		if err != nil {
			return nil, err
		}
		return hook.Exec{Argv: p.src.ResolveCommand(h.Exec), Env: hookEnvironment(h, p.owner.HookSocket(uid)), User: h.User, Logger: p.log}, nil
	case h.Webhook != "":
		secrets, err := client.ParseWebhookSecrets(secret)
		return hook.Webhook{URL: h.Webhook, Secrets: secrets, HTTP: p.http, Logger: p.log}, err
	case h.A2A != "":
		return hook.NewA2A(h.A2A, client.Credential(secret), p.http), nil
	case h.OpenClaw != "":
		return hook.OpenClaw{
			URL: h.OpenClaw, Token: client.Credential(secret), AgentID: h.OpenClawAgent, SessionKey: h.OpenClawSession,
			HTTP: p.http, Logger: p.log,
		}, nil
	}
	return nil, nil
}

// hookEnvironment returns the whole environment of an exec hook: PATH, the configured variables, and the socket through
// which the commands of the hook are those of the agent, not of the owner (AM-92). A command prefers the socket to any
// data directory.
func hookEnvironment(h config.Hook, socket string) []string {
	env := append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, h.Environment...) // a later entry replaces an earlier one
	return append(env, config.EnvAgentSocket+"="+socket)
}

// newHookProcess returns a process that can only make hooks. The caller must close its http.
func newHookProcess(src config.Source, cfg config.Config) *Process {
	return &Process{cfg: cfg, src: src, owner: httpapi.NewOwner(httpapi.OwnerConfig{}), http: client.NewHTTP(client.HTTPConfig{Local: !cfg.Public(), AllowPrivate: cfg.Network.AllowPrivate})}
}

// ProbeHooks checks whether the agents of the configured hooks would accept a message, but sends none. It calls report
// for each hook that can be probed, and for each hook that cannot be made from its configuration.
func ProbeHooks(ctx context.Context, src config.Source, cfg config.Config, report func(hook string, err error)) {
	p := newHookProcess(src, cfg)
	defer p.http.Close()
	for _, h := range cfg.Hooks {
		handler, err := p.newHandler(h)
		if prober, ok := handler.(hook.Prober); ok && err == nil {
			err = prober.Probe(ctx)
		} else if err == nil {
			continue
		}
		report(h.Label(), err)
	}
}

// TryHook runs the configured hook of an intent with a payload, without a store and without a peer. Its error has an
// exit code. If the hook fails, the error is nil, and OK of the [hook.Trial] is false.
func TryHook(ctx context.Context, src config.Source, intent wire.Intent, payload wire.Value) (route string, trial hook.Trial, err error) {
	cfg, err := src.LoadAndCheck(LinkKinds())
	if err != nil {
		return "", trial, err
	}
	p := newHookProcess(src, cfg)
	defer p.http.Close()
	routes, err := p.newRoutes()
	if err != nil {
		return "", trial, err
	}
	for _, r := range routes {
		if !acl.Match(r.Pattern, string(intent)) {
			continue
		}
		if r.Handler == nil {
			return "", trial, exit.Fail(exit.Config, fmt.Errorf("messages of the intent %s stay in the inbox: hook %s calls nothing", intent, r.Name))
		}
		call, err := hook.NewTrialCall("am_this-node", intent, payload)
		if err != nil {
			return "", trial, exit.Fail(exit.Input, err)
		}
		return r.Name, hook.Try(ctx, r.Handler, call), nil
	}
	return "", trial, exit.FailHint(exit.Config, fmt.Errorf("no hook handles the intent %s", intent), "add one under hooks in the configuration")
}
