package directory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Report is a report of a card to the operator. The client wrote Kind and Text; nothing verifies them.
type Report struct {
	ID      string       `json:"id"`
	AgentID wire.AgentID `json:"agent_id"`
	Kind    string       `json:"kind"` // one of reportKinds
	Text    string       `json:"text,omitempty"`
	From    string       `json:"from"` // the client address or network; see addressKey
	At      time.Time    `json:"at"`
}

// ReportRequest is the body of POST /v1/agents/{id}/reports.
type ReportRequest struct {
	Kind string `json:"kind"`
	Text string `json:"text,omitempty"`
}

var reportKinds = []string{"spam", "impersonation", "malicious", "broken", "other"}

// Bounds on the reports that strangers can make the operator store.
const (
	reportNS       = "reports"
	maxReportBody  = 4 << 10
	maxReportText  = 1000 // bytes
	maxPerCard     = 20   // reports of one card
	maxReports     = 1000 // of all cards
	reportLife     = 90 * 24 * time.Hour
	reportsPerHour = 10 // of one address
)

// Report stores a report of a card and notifies the operator. It replaces an earlier report of the card from the same
// address. If there are too many reports, it replaces a report of the network that sent most, or fails with
// [wire.ErrQuota].
func (r *Registry) Report(ctx context.Context, id wire.AgentID, report ReportRequest, client netip.Addr) error {
	now := wire.Now()
	if !slices.Contains(reportKinds, report.Kind) {
		return wire.ErrQuery.At("kind must be spam, impersonation, malicious, broken or other")
	}
	if len(report.Text) > maxReportText || !utf8.ValidString(report.Text) {
		return wire.ErrQuery.At("text must be at most 1000 bytes of UTF-8")
	}
	if err := r.bans.CheckClient(ctx, client, now); err != nil {
		return err
	}
	if _, err := listing.Get(ctx, r.cards, id, now); err != nil {
		return err
	}
	from := addressKey(client)
	if client.IsValid() {
		if wait, ok := r.reporters.Take(client, now); !ok {
			return wire.ErrRateLimited.After(wait)
		}
	}
	reporter := from
	if client == rate.Unknown { // another unknown client must not replace this report
		reporter += " " + report.Kind + " " + report.Text
	}
	key := credential.HashOf(string(id) + " " + reporter).Name()
	body := wire.MustMarshal(Report{key, id, report.Kind, report.Text, from, now})
	r.reporting.Lock()
	defer r.reporting.Unlock()
	all, err := r.recs.List(ctx, reportNS, "", "", maxReports, now)
	if err != nil {
		return fmt.Errorf("count reports: %w", err)
	}
	known := slices.ContainsFunc(all.Records, func(rec store.Record) bool { return rec.Key == key })
	var changes []store.Change
	if !known {
		if changes, err = makeReportRoom(all.Records, id, rate.AddrSources(client)); err != nil {
			return err
		}
	}
	changes = append(changes, store.Change{
		Record: store.Record{NS: reportNS, Key: key, Body: body, Terms: []string{"card:" + string(id)}, Expires: now.Add(reportLife)},
		IfRev:  store.Any, Max: maxPerCard,
	})
	if r.cfg.Notices != nil && !known {
		changes = append(changes, r.cfg.Notices.Change(notify.Notice{
			Kind: "reported", Title: "a card was reported", Text: report.Kind, Peer: id, At: now,
		}))
	}
	err = r.recs.Apply(ctx, changes, now)
	if errors.Is(err, store.ErrQuota) {
		return wire.ErrQuota
	}
	if err != nil {
		return fmt.Errorf("store report: %w", err)
	}
	r.cfg.Logger.WarnContext(ctx, "a card was reported", "agent_id", id, "kind", report.Kind)
	return nil
}

// makeReportRoom returns the change that makes room for a report of card, or nil if there is room. The change deletes
// the newest report of the network that sent most (AM-42): among the reports of card if card has too many, otherwise
// among all reports. If no report may be deleted, makeReportRoom returns [wire.ErrQuota].
func makeReportRoom(all []store.Record, card wire.AgentID, from []rate.Source) ([]store.Change, error) {
	ofCard := slices.DeleteFunc(slices.Clone(all), func(rec store.Record) bool { return !slices.Contains(rec.Terms, "card:"+string(card)) })
	switch {
	case len(ofCard) >= maxPerCard:
		all = ofCard
	case len(all) < maxReports:
		return nil, nil
	}
	reports, err := moderation.Decode[Report](all)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(reports, func(a, b Report) int { return a.At.Compare(b.At) })
	var table rate.FairTable[string]
	for _, r := range reports {
		table.Add(rate.Entry[string]{Key: r.ID, Sources: r.sources()})
	}
	displaced, ok := table.FindDisplaceable(from)
	if !ok {
		return nil, wire.ErrQuota
	}
	return []store.Change{{Record: store.Record{NS: reportNS, Key: displaced}, IfRev: store.Any, Delete: true}}, nil
}

// sources returns the address and the networks against which the report counts; none if its client is unknown.
func (r Report) sources() []rate.Source {
	if prefix, err := netip.ParsePrefix(r.From); err == nil {
		return rate.AddrSources(prefix.Addr())
	}
	addr, _ := netip.ParseAddr(r.From)
	return rate.AddrSources(addr)
}

// Reports lists reports in the order of their ids. If id is not "", it lists only reports of that card.
func (r *Registry) Reports(ctx context.Context, id wire.AgentID, after string, limit int) (list []Report, next string, err error) {
	term := ""
	if id != "" {
		term = "card:" + string(id)
	}
	page, err := r.recs.List(ctx, reportNS, term, after, limit, wire.Now())
	if err != nil {
		return nil, "", fmt.Errorf("list reports: %w", err)
	}
	list, err = moderation.Decode[Report](page.Records)
	return list, page.Next, err
}

// DismissReport deletes a report that the operator has read. For an unknown report it returns [wire.ErrRoute].
func (r *Registry) DismissReport(ctx context.Context, id string) error {
	now := wire.Now()
	if len(id) != len(credential.Hash{}.Name()) {
		return wire.ErrRoute
	}
	rec, err := r.recs.Get(ctx, reportNS, id, now)
	if err == nil {
		err = r.recs.Apply(ctx, []store.Change{{Record: store.Record{NS: reportNS, Key: id}, IfRev: rec.Rev, Delete: true}}, now)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

func (r *Registry) postReport(c echo.Context) error {
	httpapi.Private(c)
	var report ReportRequest
	if err := httpapi.Decode(c, maxReportBody, &report); err != nil {
		return err
	}
	report.Text = strings.TrimSpace(report.Text)
	if err := r.Report(c.Request().Context(), pathID(c), report, httpapi.ClientAddr(c)); err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusAccepted, map[string]string{"status": "reported"})
}

// noClient is the client address of a check that no request caused.
var noClient netip.Addr

// addressKey returns the From of a report: the part of the client's address that limits distinguish (/64 for IPv6),
// "here" for a caller in this process, or "unknown".
func addressKey(client netip.Addr) string {
	switch {
	case !client.IsValid():
		return "here"
	case client == rate.Unknown:
		return "unknown"
	}
	return rate.AddrKey(client)
}
