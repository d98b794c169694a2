package daemon

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/owner"
)

// The operations of the owner API for what the process serves to other networks.
var (
	ListBridges  = owner.Endpoint[owner.None, owner.List[BridgeState]]{Method: http.MethodGet, Path: "/bridges", Right: owner.Read}
	SwitchBridge = owner.Endpoint[BridgeSwitch, ConfigChange]{Method: http.MethodPut, Path: "/bridges/:kind", Right: owner.Decide}
)

// BridgeState is the setting that decides whether the process serves a protocol to others. Links do not depend on it.
type BridgeState struct {
	Kind  string `json:"kind"`
	Serve string `json:"serve"` // on, off or auto, as in the configuration
}

// BridgeSwitch switches serving a protocol on or off.
type BridgeSwitch struct {
	Serve bool `json:"serve"`
}

// switches has the settings that changed since the start, by kind of bridge.
type switches struct{ changed sync.Map }

// in returns c with the settings as they are now.
func (w *switches) in(c config.Config) config.Config {
	for _, s := range c.Switches() {
		if now, ok := w.changed.Load(s.Kind); ok {
			*s.Serve = now.(string)
		}
	}
	return c
}

func bridgeStates(c config.Config) (states []BridgeState) {
	for _, s := range c.Switches() {
		states = append(states, BridgeState{s.Kind, *s.Serve})
	}
	return states
}

func (c configChanger) bridgeOperations() []owner.Operation {
	return []owner.Operation{
		ListBridges.Serve(func(echo.Context, owner.None) (owner.List[BridgeState], error) {
			return owner.Page(bridgeStates(c.p.switches.in(c.p.cfg)), ""), nil
		}),
		SwitchBridge.Serve(func(ctx echo.Context, in BridgeSwitch) (ConfigChange, error) {
			kind := ctx.Param("kind")
			if !slices.ContainsFunc(bridgeStates(c.p.switches.in(c.p.cfg)), func(b BridgeState) bool { return b.Kind == kind }) {
				return ConfigChange{}, refuseChange(errors.New("the kinds are mess, agentrelay, moltspeak and a2a; a MEW space is configured under mew.spaces"))
			}
			edit := config.Edit{Key: kind + ".serve", Value: map[bool]string{true: "on", false: "off"}[in.Serve]}
			var live func() (*LinkTest, error)
			if c.p.rerun.stop != nil && c.p.findBridge(kind) != nil {
				live = func() (*LinkTest, error) { return nil, c.switchBridge(ctx.Request().Context(), kind, in.Serve) }
			}
			return c.apply(kind, live, func() error { return c.p.src.Rewrite([]config.Edit{edit}, LinkKinds()) })
		}),
	}
}

// switchBridge makes the bridge of a kind begin or stop serving others. No other bridge notices. The own link to what
// the bridge hosts starts and stops with it.
func (c configChanger) switchBridge(ctx context.Context, kind string, on bool) error {
	p := c.p
	b, own := p.findBridge(kind).(bridge.Switched), ownLinks(p, kind)
	before := p.switches.in(p.cfg)
	p.switches.changed.Store(kind, map[bool]string{true: "on", false: "off"}[on])
	if err := putServedMetadata(p); err != nil {
		for _, s := range before.Switches() {
			p.switches.changed.Store(s.Kind, *s.Serve)
		}
		return err
	}
	if b.Serving() == on {
		return nil
	}
	if !on {
		for _, l := range own {
			p.stopLink(ctx, kind, l.Name)
		}
	}
	b.Serve(on)
	showServing(p, kind)
	if on {
		for _, l := range ownLinks(p, kind) {
			if err := p.startLink(ctx, l); err != nil {
				return errors.Join(err, c.switchBridge(ctx, kind, false))
			}
		}
	}
	return nil
}

// showServing shows in /health whether the bridge of a kind serves others.
func showServing(p *Process, kind string) {
	switch b := p.findBridge(kind).(type) {
	case *mess.Bridge:
		p.server.Exchange(map[bool]string{true: p.cfg.MESS.Exchange}[b.Serving()])
	case *agentrelay.Bridge:
		p.server.Health(kind, b.Health())
	}
}
