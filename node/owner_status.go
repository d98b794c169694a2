package node

import (
	"context"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
)

// statusCap bounds what status counts; beyond it the owner sees "1000".
const statusCap = 1000

// ownerStatus shows in one document how the process and its node are doing.
func (n *Node) ownerStatus(c echo.Context) error {
	ctx, now := c.Request().Context(), time.Now()
	items, err := count(func(after string, limit int) (int, string, error) {
		page, next, err := n.Inbox(ctx, ItemNew, after, limit)
		return len(page), next, err
	})
	if err != nil {
		return ownerError(err)
	}
	asks, err := count(func(after string, limit int) (int, string, error) {
		page, next, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, limit, now)
		return len(page), next, err
	})
	if err != nil {
		return ownerError(err)
	}
	outbox := n.outbox.Counts()
	if outbox["queued"] == 0 { // what waits in the store where nothing delivers
		outbox["queued"], err = count(func(after string, limit int) (int, string, error) {
			page, next, err := n.Outbox(ctx, SendQueued, after, limit)
			return len(page), next, err
		})
		if err != nil {
			return ownerError(err)
		}
	}
	told, err := n.notices.Status(ctx, now)
	if err != nil {
		return ownerError(err)
	}
	id := n.identity.Load()
	var process httpapi.ProcessStatus
	if n.cfg.Process != nil {
		process = n.cfg.Process(ctx)
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		httpapi.ProcessStatus
		AgentID     wire.AgentID   `json:"agent_id"`
		Name        string         `json:"name"`
		Endpoint    string         `json:"endpoint"`
		Fingerprint string         `json:"fingerprint"`
		Paused      bool           `json:"paused"`
		Started     time.Time      `json:"started"`
		Mode        acl.Mode       `json:"access_mode"`
		Outgoing    acl.Mode       `json:"outgoing_mode"`
		Directories []Listing      `json:"directories"`
		Inbox       int            `json:"inbox_new"`
		Approvals   int            `json:"approvals_pending"`
		Outbox      map[string]int `json:"outbox"`
		Store       string         `json:"store"`
		Notify      notify.Status  `json:"notify"` // how telling the owner goes
	}{
		ProcessStatus: process, AgentID: id.Card.ID, Name: id.Card.Name, Endpoint: id.Card.Endpoint, Fingerprint: id.Key.Public().Fingerprint(),
		Paused: n.Paused(), Started: n.started, Mode: n.mode(), Outgoing: n.cfg.Outbound.mode(), Directories: n.Listings(),
		Inbox: items, Approvals: asks, Outbox: outbox, Store: n.storeState(ctx), Notify: told,
	})
}

// count counts what a list holds, up to statusCap, a few at a time: each may be as large as a message.
func count(list func(after string, limit int) (n int, next string, err error)) (total int, err error) {
	const page = 50
	for after := ""; total < statusCap; {
		n, next, err := list(after, page)
		if err != nil {
			return 0, err
		}
		total += n
		if after = next; after == "" {
			break
		}
	}
	return min(total, statusCap), nil
}

func (n *Node) mode() acl.Mode {
	if n.cfg.Policy.Mode == "" {
		return acl.Approval
	}
	return n.cfg.Policy.Mode
}

func (n *Node) storeState(ctx context.Context) string {
	if err := n.store.Ping(ctx); err != nil {
		return err.Error()
	}
	return "ok"
}

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }
