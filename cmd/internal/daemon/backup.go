package daemon

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

// backupTime is how long a client may take to read the archive.
const backupTime = 24 * time.Hour

func (p *Process) backupOperations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodPost, "/backup", owner.Decide, func(c echo.Context) error {
			if p.cfg.Store.Postgres != "" {
				return owner.Fault(http.StatusBadRequest, engine.BackupUnsupported(), "")
			}
			if err := p.store.Ping(c.Request().Context()); err != nil {
				return err
			}
			if err := httpapi.KeepOpen(c, backupTime); err != nil {
				return err
			}
			c.Response().Header().Set(echo.HeaderContentType, "application/zip")
			return p.dataDir.WriteArchive(c.Request().Context(), c.Response(), p.store, p.build.Version)
		}),
	}
}
