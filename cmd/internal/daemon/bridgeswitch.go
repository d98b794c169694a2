package daemon

import (
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
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

// bridgeStates returns the setting of each protocol that SwitchBridge can switch. MEW is not one of them, because a
// space needs configured participants.
func bridgeStates(c config.Config) []BridgeState {
	return []BridgeState{{"mess", c.MESS.Serve}, {"agentrelay", c.AgentRelay.Serve}, {"moltspeak", c.MoltSpeak.Serve}, {"a2a", c.A2A.Serve}}
}

func (c configChanger) bridgeOperations() []owner.Operation {
	return []owner.Operation{
		ListBridges.Serve(func(echo.Context, owner.None) (owner.List[BridgeState], error) {
			return owner.Page(bridgeStates(c.p.cfg), ""), nil
		}),
		SwitchBridge.Serve(func(ctx echo.Context, in BridgeSwitch) (ConfigChange, error) {
			kind := ctx.Param("kind")
			if !slices.ContainsFunc(bridgeStates(c.p.cfg), func(b BridgeState) bool { return b.Kind == kind }) {
				return ConfigChange{}, refuseChange(errors.New("the kinds are mess, agentrelay, moltspeak and a2a; a MEW space is configured under mew.spaces"))
			}
			edit := config.Edit{Key: kind + ".serve", Value: map[bool]string{true: "on", false: "off"}[in.Serve]}
			return c.apply(kind, nil, func() error { return c.p.src.Rewrite([]config.Edit{edit}, LinkKinds()) })
		}),
	}
}
