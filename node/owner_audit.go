package node

import (
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// DoorHeader names the door through which the owner acts, for the audit log: "cli", "page". It proves nothing: whoever
// reaches the owner API is the owner.
const DoorHeader = "Agentmesh-Door"

var doorForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

func door(c echo.Context) string {
	if d := c.Request().Header.Get(DoorHeader); doorForm.MatchString(d) {
		return d
	}
	return "api"
}

// MountAudit adds the audit log to an owner API. A node does it itself.
func MountAudit(g *echo.Group, log *acl.Audit) {
	g.GET("/audit", func(c echo.Context) error { return ownerAudit(c, log) })
}

// ownerAudit lists the audit log, oldest first. What rules decided in the last minutes is not part of it yet and
// stands in recent.
func ownerAudit(c echo.Context, log *acl.Audit) error {
	p, err := readPage[string](c)
	if err != nil {
		return err
	}
	f := acl.AuditFilter{Kind: acl.AuditKind(c.QueryParam("kind")), Subject: c.QueryParam("peer")}
	if s := c.QueryParam("since"); s != "" {
		if f.Since, err = time.Parse(time.RFC3339, s); err != nil {
			return fault(http.StatusBadRequest, "since must be a time", "such as 2026-02-21T00:00:00Z")
		}
	}
	after := uint64(0)
	if p.After != "" {
		if after, err = strconv.ParseUint(p.After, 10, 64); err != nil {
			return fault(http.StatusBadRequest, "after must be the number of an entry", "")
		}
	}
	entries, next, err := log.List(c.Request().Context(), f, after, p.Limit, time.Now())
	if err != nil {
		return ownerError(err)
	}
	answer := struct {
		Items  []acl.AuditEntry `json:"items"`
		Next   string           `json:"next,omitempty"`
		Recent []acl.AuditEntry `json:"recent,omitempty"`
	}{Items: entries}
	if answer.Items == nil {
		answer.Items = []acl.AuditEntry{}
	}
	if next > 0 {
		answer.Next = strconv.FormatUint(next, 10)
	} else {
		answer.Recent = log.Recent(p.Limit)
	}
	return httpapi.JSON(c, http.StatusOK, answer)
}
