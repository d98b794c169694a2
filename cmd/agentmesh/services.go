package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
)

// What the configuration means to the packages below.

func (c Config) policy() acl.Policy {
	p := acl.Policy{Mode: acl.Mode(c.Access.Mode), Allow: c.Access.Allow, Block: c.Access.Block}
	for _, r := range c.Hold {
		p.Hold = append(p.Hold, acl.HoldRule{
			Intent: r.Intent, Actions: r.Actions, Direction: acl.Direction(r.Direction), Hold: acl.Hold(r.Hold),
		})
	}
	return p
}

func (c Config) outbound() node.OutboundPolicy {
	return node.OutboundPolicy{Mode: acl.Mode(c.Outgoing.Mode), Allow: c.Outgoing.Allow, Approve: c.Outgoing.Approve, Seal: node.Sealing(c.Outgoing.Seal)}
}

func (c Config) rates() acl.Rates {
	return acl.Rates{
		NewConversations: c.Limits.MessagesNewConversations,
		Conversation:     c.Limits.MessagesConversation,
		Total:            c.Limits.MessagesTotal,
	}
}

// exempt sorts who has no limits into agents and networks.
func (c Config) exempt() (agents []string, networks []netip.Prefix) {
	for _, e := range c.Limits.Exempt {
		if n, err := netip.ParsePrefix(e); err == nil {
			networks = append(networks, n)
		} else if a, err := netip.ParseAddr(e); err == nil {
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
		} else {
			agents = append(agents, e)
		}
	}
	return agents, networks
}

// routes makes the hooks.
func (p *process) routes() ([]node.Route, error) {
	var out []node.Route
	for i, h := range p.cfg.Hooks {
		handler, err := p.handler(h)
		if err != nil {
			return nil, fail(exitConfig, fmt.Errorf("hooks[%d]: %w", i, err))
		}
		out = append(out, node.Route{Pattern: h.Intent, Name: h.name(), Handler: handler, Repeatable: h.Repeatable})
	}
	return out, nil
}

func (h HookConfig) name() string {
	kind := "inbox"
	switch {
	case h.Name != "":
		return h.Name
	case len(h.Exec) > 0:
		kind = "exec"
	case h.Webhook != "":
		kind = "webhook"
	case h.OpenClaw != "":
		kind = "openclaw"
	}
	return kind + " " + h.Intent
}

// handler makes the agent behind a hook; nil is the inbox.
func (p *process) handler(h HookConfig) (hook.Handler, error) {
	switch {
	case len(h.Exec) > 0:
		return hook.Exec{Argv: p.app.argv(h.Exec), Logger: p.log}, nil
	case h.Webhook != "":
		lines, err := p.hookSecrets(h)
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
		lines, err := p.hookSecrets(h)
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

// argv resolves the program of a command: a bare name is left to PATH.
func (a *app) argv(command []string) []string {
	if len(command) == 0 || !strings.ContainsAny(command[0], `/\`) {
		return command
	}
	return append([]string{a.beside(command[0])}, command[1:]...)
}

// cannotRun names the programs of hooks that could not be started now. The configuration is right all the same: a
// program may come later, and a message that finds none is told to the owner.
func (a *app) cannotRun(cfg Config) []string {
	var out []string
	for i, h := range cfg.Hooks {
		if len(h.Exec) == 0 {
			continue
		}
		program := a.argv(h.Exec)[0]
		if _, err := exec.LookPath(program); errors.Is(err, fs.ErrPermission) {
			out = append(out, fmt.Sprintf("hooks[%d].exec: %s is not executable: chmod +x", i, program))
		} else if err != nil {
			out = append(out, fmt.Sprintf("hooks[%d].exec: there is no program %s", i, program))
		}
	}
	return out
}

// beside resolves a relative path against the folder of the configuration file.
func (a *app) beside(name string) string {
	file, _, err := a.configFile()
	if err != nil || filepath.IsAbs(name) {
		return name
	}
	abs, err := filepath.Abs(filepath.Join(filepath.Dir(file), name))
	if err != nil {
		return name
	}
	return abs
}

// hookSecrets reads the lines of a hook's secret, never empty.
func (p *process) hookSecrets(h HookConfig) ([]string, error) {
	return p.app.secretLines(h.SecretFile, h.SecretEnv)
}

// secretLines reads the lines of a secret from a file or from an environment variable, never none.
func (a *app) secretLines(file, env string) ([]string, error) {
	text := os.Getenv(env)
	if file != "" {
		data, err := os.ReadFile(a.beside(file))
		if err != nil {
			return nil, fmt.Errorf("read secret_file: %w", err)
		}
		text = string(data)
	}
	lines := strings.Fields(text)
	if len(lines) == 0 {
		return nil, errors.New("the secret is empty")
	}
	return lines, nil
}
