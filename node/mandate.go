package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/store"
)

// nsMandates has one record for each conversation in which the agent used the mandate of a hold rule within a day. The
// store refuses a unit with ErrQuota if a peer has no place for another one.
const (
	nsMandates = "mandates"
	mandateDay = 24 * time.Hour
)

func mandateTerm(r *acl.HoldRule, out Outgoing) string { return r.Name + "/" + string(out.To) }

// appointment returns what the rules need to know of a message of ours under a hold rule with a mandate, or nil if there
// is no such rule or the message makes no appointment. It may read the owner's calendars.
func (n *Node) appointment(ctx context.Context, out Outgoing, policy acl.Policy, now time.Time) (*rules.Appointment, error) {
	action := out.Payload.GetStr("action")
	r := policy.Mandate(acl.Out, out.Intent, action)
	if r == nil || out.Conv == "" {
		return nil, nil
	}
	u, err := n.book.Load(ctx, out.key(), now)
	if err != nil {
		return nil, err
	}
	e := conversations.Event{Kind: conversations.Sent, At: now, Intent: out.Intent, Payload: out.Payload, Answers: out.InReplyTo}
	if out.InReplyTo != "" {
		e.Kind = conversations.Replied
	}
	next, err := u.Conversation().Next(e, n.book.IdleFor())
	if err != nil {
		return nil, nil // the message is refused later, or by the owner
	}
	before, after := u.Conversation().Schedule, next.Schedule
	a := &rules.Appointment{Peer: string(out.To), Action: action, Before: before.Replaced}
	if p := before.Proposal; p != nil && p.By == conversations.Theirs {
		a.Theirs = p
	}
	switch {
	case action == "accept" && after.Accept != nil:
		a.Terms = after.Accept.Terms
	case action != "accept" && after.Proposal != nil:
		a.Terms = after.Proposal.Terms
	default:
		return nil, nil
	}
	page, err := n.store.Records().List(ctx, nsMandates, mandateTerm(r, out), "", r.Unless.PerPeerDay, now)
	if err != nil {
		return nil, err
	}
	a.Spent = len(page.Records) >= r.Unless.PerPeerDay
	for _, rec := range page.Records {
		a.Spent = a.Spent && rec.Key != mandateTerm(r, out)+"/"+string(out.Conv)
	}
	if r.Unless.Calendar != "" {
		a.Free = n.cfg.Calendar.Fits(ctx, calendar.UID(string(out.To), string(out.Conv)), a.Terms, action == "accept", now)
	}
	return a, nil
}

// useMandate counts the conversation of a message that leaves under the mandate of a rule, and writes an audit line.
func (n *Node) useMandate(u *conversations.Unit, out Outgoing, r *acl.HoldRule) {
	term := mandateTerm(r, out)
	u.Add(store.Change{Max: r.Unless.PerPeerDay, IfRev: store.Any, Record: store.Record{
		NS: nsMandates, Key: term + "/" + string(out.Conv), Terms: []string{term}, Body: []byte("{}"), Expires: u.Now.Add(mandateDay),
	}}, n.audit.Change(acl.AuditEntry{
		At: u.Now, Kind: acl.AuditSent, Subject: string(out.To), Rule: "unless=" + r.Name, By: acl.ByRule, Conversation: string(out.Conv),
		Note: out.Payload.GetStr("action") + " via " + out.Via,
	}))
}
