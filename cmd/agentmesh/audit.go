package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
)

// auditCmd prints the audit log, oldest entry first. With --json and without --since, --kind and --peer, its output is
// the export that agentmesh verify checks.
type auditCmd struct {
	Since  string `placeholder:"TIME" help:"List only entries since this time: 2026-02-21, an RFC 3339 time, or a duration back from now (36h, 7d)."`
	Kind   string `placeholder:"KIND" default:"" enum:",admitted,refused,held,decided,withdrawn,expired,sent,rule,key,registration,token,operator,pause,resume,policy,mew" help:"List only entries of this kind: admitted, refused, held, decided, withdrawn, expired, sent, rule, key, registration, token, operator, pause, resume, policy, mew."`
	Peer   string `placeholder:"AGENT" help:"List only entries about this agent or address."`
	Follow bool   `help:"Keep printing new entries until interrupted."`
}

// pollInterval is the pause between two reads of the database by a command that waits.
const pollInterval = 2 * time.Second

func (c *auditCmd) Run(ctx context.Context, a *app) error {
	since, err := parseSince(c.Since, time.Now())
	if err != nil {
		return exit.Fail(exit.Usage, err)
	}
	last, err := c.print(ctx, a, since, "")
	if err == nil && last == "" && !c.Follow && !a.globals.JSON {
		a.Note("no entries match")
	}
	for c.Follow && err == nil && ctx.Err() == nil {
		waiting.Pause(ctx, pollInterval)
		last, err = c.print(ctx, a, since, last)
	}
	if ctx.Err() != nil && c.Follow {
		err = nil
	}
	return err
}

// auditPage has what audit prints of an [owner.AuditPage]. The entries stay JSON, so that --json prints every member.
type auditPage struct {
	owner.List[json.RawMessage]
	PeerNames map[string]owner.PeerNames `json:"peer_names"`
}

// print prints the entries after the one with the number last, or all entries if last is empty. It returns the number
// of the last printed entry, or last if it printed none. It opens the database only for this call if serve is not
// running, so that serve can start between two calls.
func (c *auditCmd) print(ctx context.Context, a *app, since, last string) (newLast string, err error) {
	o, err := a.connect(ctx)
	if err != nil {
		return last, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	for {
		query := owner.Params("kind", c.Kind, "peer", c.Peer, "since", since, "after", last, "limit", "500")
		page, err := daemon.Fetch(ctx, o, getCall[auditPage]("audit", query))
		if err != nil {
			return last, err
		}
		for _, line := range page.Items {
			e, err := daemon.Decode[acl.AuditEntry](line)
			if err != nil {
				return last, err
			}
			last = fmt.Sprint(e.N)
			if a.globals.JSON {
				a.Print("%s", terminal.EscapeUnsafe(line))
			} else {
				a.showEntry(e, owner.ShowSubject(e, page.PeerNames[e.Subject]).String())
			}
		}
		if page.Next == "" {
			return last, a.WriteError()
		}
	}
}

// showEntry prints an entry as one line for people. subject is the name to show for the entry's subject.
func (a *app) showEntry(e acl.AuditEntry, subject string) {
	parts := []string{fmt.Sprint(e.N), terminal.FormatTime(e.At), string(e.Kind)}
	if e.Count > 1 {
		parts = append(parts, fmt.Sprintf("%d times until %s", e.Count, terminal.FormatTime(e.Until)))
	}
	for _, p := range []struct{ label, value string }{
		{"", string(e.Choice)}, {"", e.AskKind}, {"about ", subject}, {"by ", e.By}, {"because ", e.Rule}, {"", e.Ask}, {"in ", e.Conversation}, {"(", e.Note},
	} {
		if p.value == "" {
			continue
		}
		text := p.label + terminal.Clean(p.value)
		if p.label == "(" {
			text += ")"
		}
		parts = append(parts, text)
	}
	a.Print("%s", strings.Join(parts, " "))
}

// parseSince converts the value of --since into the time format of the owner API.
func parseSince(text string, now time.Time) (string, error) {
	if text == "" {
		return "", nil
	}
	if d, err := config.ParseDuration(text); err == nil {
		return now.Add(-d).UTC().Format(time.RFC3339), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t.UTC().Format(time.RFC3339), nil
		}
	}
	return "", errors.New("--since must be a date, a time such as 2026-02-21T10:00:00Z, or a duration such as 36h")
}
