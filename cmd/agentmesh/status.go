package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

type statusCmd struct{}

// partStatus is the status of one part of the process, such as the directory or its mailboxes.
type partStatus struct {
	Status    string `json:"status"`
	Agents    int    `json:"agents"`    // number of cards in the directory
	Connected int    `json:"connected"` // number of agents connected to their mailboxes
}

func (c *statusCmd) Run(ctx context.Context, a *app) error {
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	if o.Local != nil {
		a.Note("no agentmesh serve runs on this data directory, so nobody can reach it")
	}
	answer, err := daemon.Raw(ctx, o, owner.ShowStatus.Call())
	faults := o.LinkFaults(ctx)
	s, err := showAnswer(a, answer, errors.Join(err, o.Close()), a.showStatus)
	for _, text := range faults {
		a.Note("link %s", terminal.Clean(text))
	}
	return cmp.Or(err, exit.Unless(s.Store == "ok", exit.TryAgain)) // so that a health check fails
}

func (a *app) showStatus(s owner.Status) {
	state := "accepts messages"
	if s.Paused {
		state = "paused"
	}
	rows := [][]string{{"process", s.Profile + " profile, " + s.URL}, {"store", s.Store}}
	if s.AgentID != "" {
		rows = [][]string{
			{"agent", string(s.AgentID)},
			{"name", s.Name},
			{"endpoint", s.Endpoint},
			{"key", s.Fingerprint},
			{"state", state + ", access mode " + string(s.Mode) + ", outgoing " + string(s.Outgoing)},
			{"store", s.Store},
			{"inbox", fmt.Sprintf("%d new, %d for you to answer or read", s.Inbox, s.NeedsOwner)},
			{"approvals", fmt.Sprintf("%d pending", s.Approvals)},
		}
	}
	for _, b := range s.Autonomy {
		if b.Today != nil {
			rows = append(rows, []string{"turns", fmt.Sprintf("%s today without you (%s)", b.Today, b.Name)})
		}
	}
	for _, text := range engine.Describe(s.Database) {
		rows = append(rows, []string{"database", text})
	}
	if s.Waiting > 0 {
		rows = append(rows, []string{"inbox", fmt.Sprintf("%d wait for a hook that could not be reached; agentmesh inbox --state waiting", s.Waiting)})
	}
	for _, h := range s.Hooks {
		if h.Failures > 0 {
			rows = append(rows, []string{"hook", fmt.Sprintf("%s failed %d of %d times, last %s: %s", h.Route, h.Failures, h.Runs, terminal.FormatTime(h.LastFailure), cmp.Or(h.Fault, "its answer could not be sent"))})
		}
	}
	rows = append(rows, partRows(parseParts(s))...)
	if c := s.Clients; c != nil && c.Unknown > 0 {
		text := fmt.Sprintf("%d requests did not name their client, the last one %s: all such clients share one allowance", c.Unknown, terminal.FormatTime(c.LastUnknown))
		if c.Proxy {
			text += "; agentmesh doctor recommends a fix"
		}
		rows = append(rows, []string{"clients", text})
	}
	for _, k := range slices.Sorted(maps.Keys(s.Outbox)) {
		if s.Outbox[k] > 0 {
			rows = append(rows, []string{"outbox", fmt.Sprintf("%d %s", s.Outbox[k], k)})
		}
	}
	if e := s.Delayed; e != nil {
		text := fmt.Sprintf("to %s fails since %s, next attempt %s: %s", cmp.Or(e.Address, string(e.To)), terminal.FormatTime(e.Created), terminal.FormatTime(e.Due), e.Err)
		if e.Hint != "" {
			text += "; " + e.Hint
		}
		rows = append(rows, []string{"outbox", text})
	}
	for _, l := range s.Late {
		rows = append(rows, []string{"late", fmt.Sprintf("work of the queue %s waits since %s", l.Queue, terminal.FormatTime(l.Since))})
	}
	if n := s.Notify; n.Target != "" {
		text := n.Target
		switch {
		case n.Error != "":
			text += fmt.Sprintf(": fails since %s, %d notices wait, next attempt %s: %s", terminal.FormatTime(n.Since), n.Waiting, terminal.FormatTime(n.Next), n.Error)
		case n.Quiet:
			text += fmt.Sprintf(": quiet hours, %d notices wait", n.Waiting)
		case n.Waiting > 0:
			text += fmt.Sprintf(": %d notices wait", n.Waiting)
		}
		rows = append(rows, []string{"notify", text})
	}
	for _, d := range s.Directories {
		text := d.Describe(terminal.FormatTime)
		if d.Hint != "" {
			text += "; " + a.Command(d.Hint)
		}
		rows = append(rows, []string{"directory", text})
	}
	a.Table(rows)
}

func parseParts(s owner.Status) map[string]partStatus {
	parts := make(map[string]partStatus)
	if data, err := json.Marshal(s.Parts); err == nil {
		_ = json.Unmarshal(data, &parts) // a part with another format gets an empty status
	}
	return parts
}

// partRows returns rows for the directory and its mailboxes, and for every other part whose status is not ok.
func partRows(parts map[string]partStatus) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		switch part := parts[name]; {
		case name == "directory":
			rows = append(rows, []string{"hosts", "a directory of " + countText(part.Agents, "card") + ", " + part.Status})
		case name == "relay":
			rows = append(rows, []string{"hosts", "mailboxes, " + countText(part.Connected, "agent") + " connected, " + part.Status})
		case part.Status != "ok" && name != "store":
			rows = append(rows, []string{name, part.Status})
		}
	}
	return rows
}

type pauseCmd struct{}

func (c *pauseCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.Pause.Call(), a.showStatus)
}

type resumeCmd struct{}

func (c *resumeCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.Resume.Call(), a.showStatus)
}
