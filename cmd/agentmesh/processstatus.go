package main

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
)

// processStatus returns the part of the status that is about the process, whatever its roles are.
func (p *process) processStatus(ctx context.Context) httpapi.ProcessStatus {
	s := httpapi.ProcessStatus{Roles: p.cfg.Roles, Profile: "local", URL: p.base, Parts: p.edge.Parts(ctx)}
	if p.cfg.Public() {
		s.Profile = "public"
	}
	return s
}

// mountStatus serves the status of a process without a node. A node serves its own, with that of the process in it.
func (p *process) mountStatus(g *echo.Group) {
	started := time.Now()
	g.GET("/status", func(c echo.Context) error {
		ctx := c.Request().Context()
		told, err := p.notices.Status(ctx, time.Now())
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
		}{p.processStatus(ctx), started, store, told})
	})
}
