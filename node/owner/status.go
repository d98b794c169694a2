package owner

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Status is the state of a process and its node.
type Status struct {
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
	NeedsOwner  int            `json:"inbox_needs_owner"` // items that wait for a person, see [Item.NeedsOwner]
	Approvals   int            `json:"approvals_pending"`
	Outbox      map[string]int `json:"outbox"`                   // "queued": all entries that wait; "delivering": those of them in an attempt now
	Delayed     *OutboxEntry   `json:"outbox_delayed,omitempty"` // the oldest entry that waits after a failed attempt
	Hooks       []HookStatus   `json:"hooks,omitempty"`          // the hooks that ran since the start
	Waiting     int            `json:"inbox_waiting,omitempty"`  // items whose hook could not be reached
	Autonomy    []Bound        `json:"autonomy,omitempty"`
	Late        []LateWork     `json:"late,omitempty"` // queues whose work waits for more than a minute beyond its time
	Store       string         `json:"store"`
	Notify      notify.Status  `json:"notify"` // whether notices reach the owner
}

// LateWork is a queue of work that is late.
type LateWork struct {
	Queue string    `json:"queue"`
	Since time.Time `json:"since"` // when its oldest work was due
}

// Bound is a bound on what the owner's agent does without the owner.
type Bound struct {
	Name  string `json:"bound"`           // its key in autonomy
	Most  *int   `json:"most"`            // null: any number
	Today *Turns `json:"today,omitempty"` // if the bound counts the day as a whole
}

// Turns counts what the owner's agent did without the owner (AM-92).
type Turns struct {
	Used int  `json:"used"`
	Left *int `json:"left"` // null: any number
}

// String returns a text such as "7 of 12 times".
func (t Turns) String() string {
	switch {
	case t.Left != nil:
		return fmt.Sprintf("%d of %d times", t.Used, t.Used+*t.Left)
	case t.Used == 1:
		return "once"
	}
	return fmt.Sprintf("%d times", t.Used)
}

// HookStatus counts the runs of the hooks of one route since the process started.
type HookStatus struct {
	Route       string    `json:"route"`
	Runs        int       `json:"runs"`
	Failures    int       `json:"failures"`
	LastFailure time.Time `json:"last_failure,omitzero"`
	Fault       string    `json:"fault,omitempty"` // of the last failure
}

// Control controls the node as a whole.
type Control interface {
	Status(ctx context.Context) (Status, error)
	// SetPaused makes the node stop or resume accepting messages. The parameter by is as in [Peers].AddPeer.
	SetPaused(ctx context.Context, paused bool, by string) error
	ListNotices(ctx context.Context, q Query) (List[notify.Notice], error)
}

// The operations of a node as a whole.
var (
	ShowStatus  = Endpoint[None, Status]{http.MethodGet, "/status", Read}
	Pause       = Endpoint[None, Status]{http.MethodPost, "/pause", Decide}
	Resume      = Endpoint[None, Status]{http.MethodPost, "/resume", Decide}
	ListNotices = Endpoint[None, List[Notice]]{http.MethodGet, "/notices", Decide}
)

func controlOperations(n Node) []Operation {
	pause := func(paused bool) func(echo.Context, None) (Status, error) {
		return func(c echo.Context, _ None) (Status, error) {
			if err := n.SetPaused(c.Request().Context(), paused, Door(c)); err != nil {
				return Status{}, err
			}
			return n.Status(c.Request().Context())
		}
	}
	return []Operation{
		ShowStatus.Serve(func(c echo.Context, _ None) (Status, error) { return n.Status(c.Request().Context()) }),
		Pause.Serve(pause(true)),
		Resume.Serve(pause(false)),
		serveList[string](ListNotices, func(ctx context.Context, q Query) (List[Notice], error) {
			return NamedNotices(ctx, n, q)
		}),
	}
}
