package doctor

import (
	"cmp"
	"context"
	"errors"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
)

// reportHooks reports how often each hook has failed since the process started, and how many messages wait for a hook.
func (d *examination) reportHooks(s owner.Status) {
	const check = "hooks"
	for _, h := range s.Hooks {
		route := terminal.Clean(h.Route)
		if h.Failures == 0 {
			d.ok(check, "%s ran %d times without a failure", route, h.Runs)
			continue
		}
		d.warn(check, "list the messages with: agentmesh inbox --state failed; try the hook with: agentmesh hooks test INTENT", "%s failed %d of %d times, most recently %s: %s",
			route, h.Failures, h.Runs, terminal.FormatTime(h.LastFailure), cmp.Or(terminal.Clean(h.Fault), "its answer could not be sent"))
	}
	if s.Waiting > 0 {
		d.warn(check, "start the program or server of the hook; to run it now for one item: agentmesh inbox retry ITEM", "%d messages wait for a hook that could not be reached", s.Waiting)
	}
}

func (d *examination) checkHooks(ctx context.Context) {
	const check = "hooks"
	daemon.ProbeHooks(ctx, d.opts.Source, d.cfg, func(name string, err error) {
		name = terminal.Clean(name)
		if probeErr, ok := errors.AsType[*hook.ProbeError](err); ok {
			d.fail(check, terminal.Clean(probeErr.Fix), "%s: %s", name, terminal.Clean(probeErr.Why))
		} else if err != nil {
			d.fail(check, "correct the hook in the configuration", "%s: %s", name, terminal.Clean(err.Error()))
		} else {
			d.ok(check, "%s reaches its agent, which accepts the token", name)
		}
	})
}
