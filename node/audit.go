package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// countAdmission adds an admitted message to the sums of the audit log. A held message has its own line there instead.
func (a *acceptance) countAdmission(out bridge.Outcome) {
	if !out.Duplicate && !out.Held {
		a.n.audit.Count(acl.AuditEntry{At: a.now, Kind: acl.AuditAdmitted, Subject: a.in.Principal, Rule: rules.AdmittedBy(a.state)})
	}
}

// countRefusal adds a refusal to the sums of the audit log, but not a fault of the node itself.
func (n *Node) countRefusal(principal, rule string, err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || e.Status >= http.StatusInternalServerError {
		return
	}
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditRefused, Subject: principal, Rule: rule, Note: e.Message})
}

// countUnproven counts a refusal in lines 3 to 8 of the receive table. It names the sender only if the owner wrote the
// name on the block list: any other name may be forged.
func (n *Node) countUnproven(in bridge.Inbound, err error) {
	if errors.Is(err, wire.ErrNotAllowed) {
		n.countRefusal(in.Principal, "peer="+string(acl.Blocked), err)
		return
	}
	n.countRefusal("", codeOf(err), err)
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return string(e.Code)
	}
	return "error"
}

const keyPolicy = "policy" // in nsState: the digest of the policy at the last start

// AuditPolicy writes an audit line if the policy differs from that of the last start. Call it once the bridges are
// connected, because the policy includes their access modes and hold rules.
func (n *Node) AuditPolicy(ctx context.Context) error {
	now, policy, links := time.Now(), n.policy(), make(map[string]acl.Mode)
	n.bridges.modes.Range(func(link, mode any) bool {
		links[link.(string)] = mode.(acl.Mode)
		return true
	})
	tree, err := wire.ValueOf(struct {
		Access   acl.Policy
		Outgoing OutboundPolicy
		Links    map[string]acl.Mode
	}{policy, n.cfg.Outbound, links})
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
	return n.saveState(ctx, keyPolicy, []byte(digest), now, n.audit.Change(entry))
}
