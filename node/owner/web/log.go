package web

import (
	"context"
	"net/http"
	"slices"
	"strconv"
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
	return entryView{e, owner.ShowName(v.Names[e.Subject], e.Subject, e.Subject)}
}

// Linked reports whether a page can link to the entry's conversation: there is one, and the subject is its peer.
func (v entryView) Linked() bool { return v.Conversation != "" && wire.AgentID(v.Subject).Valid() }

const maxRecent = 20

// showLog shows a page of the audit log, newest entries first. The query parameter before selects the entries with
// lower numbers.
func (p *pages) showLog(c echo.Context) error {
	ctx, log := c.Request().Context(), p.n.Audit()
	first, last, err := auditSpan(ctx, log)
	if err != nil {
		return err
	}
	view := logView{}
	if s := c.QueryParam("before"); s != "" {
		before, err := strconv.ParseUint(s, 10, 64)
		if err != nil || before == 0 {
			return owner.Fault(http.StatusBadRequest, "before must be the number of an entry", "")
		}
		last = min(last, before-1)
	} else {
		view.Recent = log.Recent(maxRecent)
	}
	if last >= first && last > 0 {
		from := max(first, last-min(last, pageSize)+1)
		view.Entries, _, err = log.List(ctx, acl.AuditFilter{}, from-1, int(last-from+1), time.Now())
		if err != nil {
			return err
		}
		slices.Reverse(view.Entries)
		if from > first {
			view.Older = from
		}
	}
	if view.Names, err = owner.AuditNames(ctx, p.n, slices.Concat(view.Entries, view.Recent)); err != nil {
		return err
	}
	return p.shell.Render(c, p.audit, httpapi.View{Title: "Log", Topics: []string{string(owner.TopicAudit)}, Data: view})
}

// auditSpan finds the first and the last number in the audit log, or 0 and 0 if it is empty. Numbers have no gaps, so
// auditSpan finds the last one with an exponential search.
func auditSpan(ctx context.Context, log *acl.Audit) (first, last uint64, err error) {
	after := func(number uint64) (uint64, error) {
		list, _, err := log.List(ctx, acl.AuditFilter{}, number, 1, time.Now())
		if err != nil || len(list) == 0 {
			return 0, err
		}
		return list[0].N, nil
	}
	if first, err = after(0); err != nil || first == 0 {
		return 0, 0, err
	}
	last = first
	for step, growing := uint64(1), true; step > 0; {
		found, err := after(last + step - 1)
		switch {
		case err != nil:
			return 0, 0, err
		case found == 0:
			growing = false
			step /= 2
		default:
			last = found
			if growing {
				step *= 2
			}
		}
	}
	return first, last, nil
}
