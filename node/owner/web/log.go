package web

import (
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type logView struct {
	Entries []acl.AuditEntry // newest first
	Recent  []acl.AuditEntry // on the first page: sums of rule decisions that are not stored yet
	Names   map[string]owner.PeerNames
	Older   uint64 // number of the oldest entry shown; 0 if the log has no older entries
}

type entryView struct {
	acl.AuditEntry
	Shown owner.ShownName
}

func (v logView) Entry(e acl.AuditEntry) entryView {
	return entryView{e, owner.ShowSubject(e, v.Names[e.Subject])}
}

// Linked reports whether a page can link to the entry's conversation: there is one, and the subject is its peer.
func (v entryView) Linked() bool { return v.Conversation != "" && wire.AgentID(v.Subject).Valid() }

const maxRecent = 20

// showLog shows a page of the audit log, newest entries first. The query parameter before selects the entries with
// lower numbers.
func (p *pages) showLog(c echo.Context) error {
	ctx, log := c.Request().Context(), p.n.Audit()
	q, err := owner.ReadQuery[string](c)
	if err != nil {
		return err
	}
	view := logView{}
	if view.Entries, view.Older, err = log.List(ctx, acl.AuditFilter{Newest: true}, q.Before, pageSize, time.Now()); err != nil {
		return err
	}
	if q.Before == 0 {
		view.Recent = log.Recent(maxRecent)
	}
	if view.Names, err = owner.AuditNames(ctx, p.n, slices.Concat(view.Entries, view.Recent)); err != nil {
		return err
	}
	return p.shell.Render(c, p.audit, httpapi.View{Title: "Log", Topics: []string{string(owner.TopicAudit)}, Data: view})
}
