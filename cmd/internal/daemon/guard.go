package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
)

// newGuard makes the configured guard, without a pool, or returns nil.
func (p *Process) newGuard() (*guard.Guard, error) {
	if !p.cfg.Guard.IsSet() {
		return nil, nil
	}
	h := p.cfg.Guard.Hook()
	settings, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	handler, err := p.newHandler(h)
	if err != nil {
		return nil, exit.Fail(exit.Config, fmt.Errorf("guard: %w", err))
	}
	return &guard.Guard{
		Hook: handler.(hook.Asker), Settings: string(settings), In: p.cfg.Guard.In, Out: p.cfg.Guard.Out, Owner: p.cfg.Guard.Owner,
	}, nil
}

// TryGuard asks the configured guard about a text, without a store and without a peer. Its error has an exit code. If
// the guard fails, the error is nil, and OK of the [guard.Trial] is false.
func TryGuard(ctx context.Context, src config.Source, t guard.Text) (guard.Trial, error) {
	cfg, err := src.LoadAndCheck(LinkKinds())
	if err != nil {
		return guard.Trial{}, err
	}
	if !cfg.Guard.IsSet() {
		return guard.Trial{}, exit.FailHint(exit.Config, errors.New("there is no guard"), "add one under guard in the configuration")
	}
	p := newHookProcess(src, cfg)
	defer p.http.Close()
	g, err := p.newGuard()
	if err != nil {
		return guard.Trial{}, err
	}
	g.Pool = hook.NewPool(1, 1)
	return g.Try(ctx, t), nil
}
