package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
)

type statusCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// statusAnswer is what the commands read of GET /owner/status. Without a node AgentID is empty, and so is what belongs to
// it.
type statusAnswer struct {
	Roles   []string              `json:"roles"`
	Profile string                `json:"profile"`
	URL     string                `json:"url"`
	Parts   map[string]partStatus `json:"parts"`
	Clients *httpapi.ClientStatus `json:"clients"` // nil in the local profile

	AgentID     string    `json:"agent_id"`
	Name        string    `json:"name"`
	Endpoint    string    `json:"endpoint"`
	Fingerprint string    `json:"fingerprint"`
	Paused      bool      `json:"paused"`
	Started     time.Time `json:"started"`
	Mode        string    `json:"access_mode"`
	Outgoing    string    `json:"outgoing_mode"`
	Directories []struct {
		Directory string    `json:"directory"`
		State     string    `json:"state"`
		Expires   time.Time `json:"expires_at"`
		Error     string    `json:"error"`
		Hint      string    `json:"hint"`
	} `json:"directories"`
	Inbox     int            `json:"inbox_new"`
	Approvals int            `json:"approvals_pending"`
	Outbox    map[string]int `json:"outbox"`
	Store     string         `json:"store"`
	Notify    notify.Status  `json:"notify"`
}

// partStatus is the state of one part of the process.
type partStatus struct {
	Status    string `json:"status"`
	Agents    int    `json:"agents"`    // cards in the directory
	Connected int    `json:"connected"` // agents that wait for mail
}

func (c *statusCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	if o.here != nil {
		a.note("no serve runs on this data directory, so nobody can reach it")
	}
	raw, err := o.call(ctx, http.MethodGet, "status", nil, nil)
	s, err := present(a, c.JSON, raw, errors.Join(err, o.close()), a.showStatus)
	if err == nil && s.Store != "ok" {
		return quietly(exitTryAgain) // so that who asks for its health is told
	}
	return err
}

func (a *app) showStatus(s statusAnswer) {
	state := "takes messages"
	if s.Paused {
		state = "paused"
	}
	rows := [][]string{{"process", s.Profile + " profile, " + s.URL}, {"store", s.Store}}
	if s.AgentID != "" {
		rows = [][]string{
			{"agent", s.AgentID},
			{"name", s.Name},
			{"endpoint", s.Endpoint},
			{"key", s.Fingerprint},
			{"state", state + ", access mode " + s.Mode + ", outgoing " + s.Outgoing},
			{"store", s.Store},
			{"inbox", fmt.Sprintf("%d new", s.Inbox)},
			{"approvals", fmt.Sprintf("%d pending", s.Approvals)},
		}
	}
	rows = append(rows, partRows(s.Parts)...)
	if c := s.Clients; c != nil && c.Unknown > 0 {
		text := fmt.Sprintf("%d requests did not say who their client is, the last one %s: all such clients share one allowance", c.Unknown, when(c.LastUnknown))
		if c.Proxy {
			text += "; agentmesh doctor says what to do"
		}
		rows = append(rows, []string{"clients", text})
	}
	for _, k := range slices.Sorted(maps.Keys(s.Outbox)) {
		rows = append(rows, []string{"outbox", fmt.Sprintf("%d %s", s.Outbox[k], k)})
	}
	if n := s.Notify; n.Target != "" {
		text := n.Target
		switch {
		case n.Error != "":
			text += fmt.Sprintf(": fails since %s, %d notices wait, next attempt %s: %s", when(n.Since), n.Waiting, when(n.Next), n.Error)
		case n.Quiet:
			text += fmt.Sprintf(": quiet hours, %d notices wait", n.Waiting)
		case n.Waiting > 0:
			text += fmt.Sprintf(": %d notices wait", n.Waiting)
		}
		rows = append(rows, []string{"notify", text})
	}
	for _, d := range s.Directories {
		text := d.Directory + ": " + d.State
		if !d.Expires.IsZero() {
			text += ", expires " + when(d.Expires)
		}
		if d.Error != "" {
			text += ", last error: " + d.Error
			if d.Hint != "" {
				text += "; " + d.Hint
			}
		}
		rows = append(rows, []string{"directory", text})
	}
	a.table(rows)
}

// partRows shows the parts of a directory, and every other part that is not well.
func partRows(parts map[string]partStatus) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		switch part := parts[name]; {
		case name == "directory":
			rows = append(rows, []string{"hosts", fmt.Sprintf("a directory of %d cards, %s", part.Agents, part.Status)})
		case name == "relay":
			rows = append(rows, []string{"hosts", fmt.Sprintf("mailboxes, %d agents connected, %s", part.Connected, part.Status)})
		case part.Status != "ok" && name != "store":
			rows = append(rows, []string{name, part.Status})
		}
	}
	return rows
}

type pauseCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *pauseCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, post("pause", struct{}{}), a.showStatus)
}

type resumeCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *resumeCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, post("resume", struct{}{}), a.showStatus)
}
