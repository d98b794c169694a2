package config

// Guard is a program, a URL or an A2A agent that judges texts (AM-95).
type Guard struct {
	// A program and its arguments, as in hooks[].exec. It reads the question on standard input and writes its verdict to
	// standard output.
	Exec []string `key:"exec"`
	// The user that the exec runs as, as in hooks[].user.
	User string `key:"user"`
	// Variables of the exec's environment, as NAME=VALUE. Beside them it has only PATH and
	// AGENTMESH_AGENT_SOCKET.
	Environment []string `key:"environment"`
	// A URL that gets the question as a signed POST (Standard Webhooks).
	Webhook string `key:"webhook"`
	// The URL of the JSON-RPC interface of an A2A agent.
	A2A string `key:"a2a"`
	// File with the secrets of the webhook (whsec_…, one per line, the first one signs) or with the bearer token of the A2A
	// agent.
	SecretFile string `key:"secret_file"`
	// Judge what arrives, before your agent gets it.
	In bool `key:"in"`
	// Judge what your agent writes, before it leaves.
	Out bool `key:"out"`
	// With out, also judge what you write yourself.
	Owner bool `key:"owner"`
}

// IsSet reports whether the configuration has a guard.
func (g Guard) IsSet() bool { return len(g.Exec) > 0 || g.Webhook != "" || g.A2A != "" }

// Hook returns the hook that judges. It answers questions, not messages.
func (g Guard) Hook() Hook {
	return Hook{Name: "guard", Exec: g.Exec, User: g.User, Environment: g.Environment, Webhook: g.Webhook, A2A: g.A2A, SecretFile: g.SecretFile}
}

func (g Guard) check(p *problems) {
	h := g.Hook()
	if !g.IsSet() {
		if g.In || g.Out || g.Owner || g.SecretFile != "" || g.User != "" || len(g.Environment) > 0 {
			p.add("guard", "needs exec, webhook or a2a")
		}
		return
	}
	if h.targets() != 1 {
		p.add("guard", "needs only one of exec, webhook and a2a")
	}
	if !g.In && !g.Out {
		p.add("guard", "judges nothing: set in, out or both")
	}
	if g.Owner && !g.Out {
		p.add("guard.owner", "needs guard.out")
	}
	h.checkTarget(p, "guard")
}
