package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// countAdmitted adds a message that was let in to its sum. What is held has a line of its own, with its question.
func (a *acceptance) countAdmitted(out bridge.Outcome) {
	if !out.Duplicate && !out.Held {
		a.n.audit.Count(acl.AuditEntry{At: a.now, Kind: acl.AuditAdmitted, Subject: a.in.Principal, Rule: a.admittedBy()})
	}
}

// admittedBy names the rule of line 11 that lets the sender in.
func (a *acceptance) admittedBy() string {
	switch {
	case a.unit != nil && a.unit.Conversation().WroteFirst:
		return "our owner wrote first"
	case a.standing != acl.Unknown:
		return "peer=" + string(a.standing)
	}
	return "access.mode=" + string(a.n.modeFor(a.in.Address))
}

// refusedBy names the rule that keeps a sender out whose signature is good.
func (a *acceptance) refusedBy(err error) string {
	switch {
	case errors.Is(err, wire.ErrNotAllowed) && a.standing != acl.Blocked:
		return "access.mode=" + string(a.n.modeFor(a.in.Address))
	case errors.Is(err, wire.ErrNotAllowed), errors.Is(err, wire.ErrOwnerRejected):
		return "peer=" + string(a.standing)
	}
	return codeOf(err)
}

// countRefused adds a refusal to its sum. What is our own trouble is none.
func (n *Node) countRefused(principal, rule string, err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || e.Status >= http.StatusInternalServerError {
		return
	}
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditRefused, Subject: principal, Rule: rule, Note: e.Message})
}

// countUnproven adds a refusal from before line 8 was passed to its sum. It names nobody, because anybody may have
// written that name, but for one on the block list, which the owner wrote.
func (n *Node) countUnproven(in bridge.Inbound, err error) {
	if errors.Is(err, wire.ErrNotAllowed) {
		n.countRefused(in.Principal, "peer="+string(acl.Blocked), err)
		return
	}
	n.countRefused("", codeOf(err), err)
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return string(e.Code)
	}
	return "error"
}

const keyPolicy = "policy"

// auditPolicy writes a line where the node starts with other rules than it had before.
func (n *Node) auditPolicy(ctx context.Context, now time.Time) error {
	policy, links := n.policy(), make(map[string]acl.Mode)
	n.bridges.modes.Range(func(link, mode any) bool {
		links[link.(string)] = mode.(acl.Mode)
		return true
	})
	text, err := json.Marshal(struct {
		Access   acl.Policy
		Outgoing OutboundPolicy
		Links    map[string]acl.Mode
	}{policy, n.cfg.Outbound, links})
	if err != nil {
		return fmt.Errorf("encode policy: %w", err)
	}
	tree, err := wire.ParseObject(text)
	if err != nil {
		return fmt.Errorf("encode policy: %w", err)
	}
	digest := hexOf(signing.Digest(tree))
	old, err := n.store.Records().Get(ctx, nsState, keyPolicy, now)
	switch {
	case err == nil && bytes.Equal(old.Body, []byte(digest)):
		return nil
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	}
	entry := acl.AuditEntry{
		At: now, Kind: acl.AuditPolicy, By: "config", Digest: digest,
		Rule: fmt.Sprintf("access.mode=%s outgoing.mode=%s", n.mode(), n.cfg.Outbound.mode()),
		Note: fmt.Sprintf("%d allowed, %d blocked, %d hold rules", len(policy.Allow), len(policy.Block), len(policy.Hold)),
	}
	return n.keep(ctx, keyPolicy, []byte(digest), now, n.audit.Change(entry))
}
