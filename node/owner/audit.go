package owner

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
)

// AuditPage is a page of the audit log, oldest first. The last page also has recent decisions that rules made and that
// are not stored yet.
type AuditPage struct {
	Items  []acl.AuditEntry `json:"items"`
	Next   string           `json:"next,omitempty"`
	Recent []acl.AuditEntry `json:"recent,omitempty"`
	// PeerNames has the names of the peers that the entries are about. An entry cannot have them itself, because its hash
	// covers all of it.
	PeerNames map[string]PeerNames `json:"peer_names,omitempty"`
}

// ListAudit lists the audit log. The parameters kind, peer and since filter it.
var ListAudit = Endpoint[None, AuditPage]{http.MethodGet, "/audit", Decide}

// AuditOperations returns the operation of an audit log. names is nil for a process without a node.
func AuditOperations(log *acl.Audit, names Names) []Operation {
	return []Operation{ListAudit.Serve(func(c echo.Context, _ None) (AuditPage, error) {
		q, err := ReadQuery[string](c)
		if err != nil {
			return AuditPage{}, err
		}
		f := acl.AuditFilter{Kind: acl.AuditKind(c.QueryParam("kind")), Subject: c.QueryParam("peer")}
		if s := c.QueryParam("since"); s != "" {
			if f.Since, err = time.Parse(time.RFC3339, s); err != nil {
				return AuditPage{}, Fault(http.StatusBadRequest, "since must be a time", "such as 2026-02-21T00:00:00Z")
			}
		}
		after := uint64(0)
		if q.After != "" {
			if after, err = strconv.ParseUint(q.After, 10, 64); err != nil {
				return AuditPage{}, Fault(http.StatusBadRequest, "after must be the number of an entry", "")
			}
		}
		entries, next, err := log.List(c.Request().Context(), f, after, q.Limit, time.Now())
		if err != nil {
			return AuditPage{}, err
		}
		page := AuditPage{Items: entries}
		if page.Items == nil {
			page.Items = []acl.AuditEntry{}
		}
		if next > 0 {
			page.Next = strconv.FormatUint(next, 10)
		} else {
			page.Recent = log.Recent(q.Limit)
		}
		if names != nil {
			page.PeerNames, err = AuditNames(c.Request().Context(), names, slices.Concat(page.Items, page.Recent))
		}
		return page, err
	})}
}

// AuditNames returns the names of the peers that entries are about.
func AuditNames(ctx context.Context, names Names, entries []acl.AuditEntry) (map[string]PeerNames, error) {
	l := newNamer(ctx, names)
	for _, e := range entries {
		var discard PeerNames // the namer keeps what it finds
		l.fill(&discard, e.Subject)
	}
	maps.DeleteFunc(l.seen, func(_ string, found PeerNames) bool { return found == PeerNames{} })
	return l.seen, l.err
}
