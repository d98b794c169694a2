package daemon

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
)

// processStatus returns the part of the status that every process has, whatever its roles are.
func (p *Process) processStatus(ctx context.Context) httpapi.ProcessStatus {
	return httpapi.ProcessStatus{Roles: p.cfg.Roles, Profile: p.cfg.Profile(), URL: p.base, Parts: p.server.Parts(ctx), Clients: p.server.Clients(), Database: engine.Status(ctx, p.db)}
}

// statusOperations returns the status operation of a process without a node. A node has its own status operation, which
// includes the status of the process.
func (p *Process) statusOperations() []owner.Operation {
	started := time.Now()
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/status", owner.Read, func(c echo.Context) error {
			ctx := c.Request().Context()
			notices, err := p.notices.Status(ctx, time.Now())
			if err != nil {
				return err
			}
			store := "ok"
			if err := p.store.Ping(ctx); err != nil {
				store = err.Error()
			}
			return httpapi.JSON(c, http.StatusOK, struct {
				httpapi.ProcessStatus
				Started time.Time     `json:"started"`
				Store   string        `json:"store"`
				Notify  notify.Status `json:"notify"`
			}{p.processStatus(ctx), started, store, notices})
		}),
	}
}

// ClientProbe is the secret with which doctor marks its request to the public URL.
type ClientProbe struct {
	Probe string `json:"probe"`
}

// The operations that show which client address the process sees through the public URL.
var (
	ExpectProbe = owner.Endpoint[owner.None, ClientProbe]{Method: http.MethodPost, Path: "/clients/probes", Right: owner.Decide}
	ShowProbe   = owner.Endpoint[owner.None, SeenClient]{Method: http.MethodGet, Path: "/clients/probes/:probe", Right: owner.Read}
)

func (p *Process) probeOperations() []owner.Operation {
	return []owner.Operation{
		ExpectProbe.Serve(func(echo.Context, owner.None) (ClientProbe, error) { return ClientProbe{p.server.ExpectProbe()}, nil }),
		ShowProbe.Serve(func(c echo.Context, _ owner.None) (SeenClient, error) {
			addr, seen := p.server.ProbeClient(c.Param("probe"))
			if addr == rate.Unknown {
				return SeenClient{Seen: seen, Unknown: true}, nil
			}
			return SeenClient{Seen: seen, Client: addr}, nil
		}),
	}
}

// SeenClient is the client address that the process saw for a request with a [ClientProbe].
type SeenClient struct {
	Seen    bool       `json:"seen"`    // such a request has arrived
	Unknown bool       `json:"unknown"` // it came from a client whose address the process cannot know
	Client  netip.Addr `json:"client,omitzero"`
}
