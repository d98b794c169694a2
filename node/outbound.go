package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// OutboundPolicy decides to whom our side may write, and which messages the owner sees first (AM-50). It applies to
// everybody on our side who sends: the owner's commands, an agent that uses them, hooks and their answers, bridges. It
// does not apply to messages of the protocol itself: receipts, the echo of a close, and the refusal that the owner
// decided on. The zero value permits every message that does not commit the owner (AM-31).
type OutboundPolicy struct {
	// Mode is for recipients what access.mode is for senders. Empty means allowlist if Allow has entries, else open.
	Mode    acl.Mode `yaml:"mode"`
	Allow   []string `yaml:"allow"`   // agent ids and foreign addresses
	Seal    Sealing  `yaml:"seal"`    // empty: SealOff
	Approve []string `yaml:"approve"` // patterns of intents (see [acl.Match]) that wait for the owner
}

// Validate returns the first mistake in a policy from a configuration file, or nil.
func (p OutboundPolicy) Validate() error {
	if !slices.Contains([]acl.Mode{"", acl.Open, acl.Allowlist, acl.Approval}, p.Mode) {
		return fmt.Errorf("outgoing mode %q: must be open, allowlist or approval", p.Mode)
	}
	if !slices.Contains([]Sealing{"", SealOff, SealPrefer, SealRequire}, p.Seal) {
		return fmt.Errorf("outgoing seal %q: must be off, prefer or require", p.Seal)
	}
	for _, pattern := range p.Approve {
		if err := acl.ValidPattern(pattern); err != nil {
			return fmt.Errorf("outgoing approve: %w", err)
		}
	}
	return nil
}

func (p OutboundPolicy) mode() acl.Mode {
	switch {
	case p.Mode != "":
		return p.Mode
	case len(p.Allow) > 0:
		return acl.Allowlist
	}
	return acl.Open
}

func (p OutboundPolicy) isListed(out Outgoing) bool {
	return slices.Contains(p.Allow, principal(out)) || slices.Contains(p.Allow, string(out.To))
}

// permit applies the owner's rules to a message that somebody on our side wants to send. Every such message passes
// permit before it leaves. The error is one of [rules.Leave], or an error of the store.
func (n *Node) permit(ctx context.Context, out Outgoing, now time.Time) (p rules.Permission, err error) {
	recipient, policy := principal(out), n.cfg.Outbound
	d := rules.Departure{
		Intents: []wire.Intent{out.Intent}, Payload: out.Payload, Unproven: out.unproven != nil,
		Mode: policy.mode(), Listed: policy.isListed(out), Approve: policy.Approve, Policy: n.outgoingPolicy(out.Via),
	}
	if out.answered != "" {
		d.Intents = append(d.Intents, out.answered)
	}
	for _, intent := range d.Intents {
		d.Handled = append(d.Handled, n.route(intent).Handler != nil)
	}
	if d.Standing, err = n.rules.Standing(ctx, recipient, now); err != nil {
		return p, err
	}
	if d.Asks() {
		if d.Remembered, err = n.recipients.Standing(ctx, recipient, now); err != nil {
			return p, err
		}
	}
	if d.Spent, err = n.spentForAgent(ctx, out, now); err != nil {
		return p, err
	}
	return rules.Leave(d)
}

// countSent adds a message that left without a question to the sums of the audit log.
func (n *Node) countSent(out Outgoing, p rules.Permission) {
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditSent, Subject: principal(out), Rule: p.Rule, Note: "via " + out.Via})
}

// recipientInfo is what the owner sees about the recipient of a message.
type recipientInfo struct {
	Name        string    `json:"name,omitempty"` // from its card: untrusted text
	Endpoint    string    `json:"endpoint,omitempty"`
	Directory   string    `json:"directory,omitempty"` // the directory that lists it; empty if the owner gave the card
	Fingerprint string    `json:"fingerprint,omitempty"`
	Pinned      time.Time `json:"pinned,omitzero"`    // when we first saw its key; zero: not yet
	KeyProof    time.Time `json:"key_proof,omitzero"` // when it proved to the directory that it has the key
	KeyChanged  time.Time `json:"key_changed,omitzero"`
	ID          string    `json:"id,omitempty"` // "derived": the id is computed from the key
	Foreign     bool      `json:"foreign,omitempty"`
	Error       string    `json:"error,omitempty"` // why some fields are not known
	// Unproven is the key that the owner's approval would accept as the recipient's.
	Unproven *bridge.UnprovenKey `json:"unproven,omitempty"`
}

// recordTime bounds the request for the recipient's record in a directory.
const recordTime = 5 * time.Second

// lookUpRecipient returns what the owner sees about the recipient. It makes network calls: no step of the store may be open.
func (n *Node) lookUpRecipient(ctx context.Context, out Outgoing) recipientInfo {
	if out.Address != "" {
		return recipientInfo{Foreign: true}
	}
	peer, unproven, err := n.findRecipient(ctx, out.To)
	if err != nil {
		return recipientInfo{Error: wire.OneLine(err.Error(), 200)}
	}
	r := recipientInfo{
		Unproven: unproven,
		Name:     wire.OneLine(peer.Card.Name, 100), Endpoint: wire.OneLine(peer.Card.Endpoint, 300), Directory: peer.Directory,
		Fingerprint: peer.Key.Fingerprint(), Pinned: peer.Pinned.UTC(),
	}
	if out.To.HasDerivedShape() && peer.Unproven == nil {
		r.ID = "derived"
	}
	i := slices.IndexFunc(n.cfg.Directories, func(d *client.Directory) bool { return d.Base == peer.Directory })
	if i < 0 {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	record, err := n.cfg.Directories[i].Record(ctx, out.To)
	if err != nil {
		r.Error = "the directory does not say whether the key was proven"
		return r
	}
	v := record.Verification
	if v.Key != nil {
		r.KeyProof = v.Key.UTC()
	}
	if v.KeyChangedAt != nil {
		r.KeyChanged = v.KeyChangedAt.UTC()
	}
	return r
}

// checkRecipientKey returns an error if the recipient no longer has the key that the owner was shown, or if its card
// cannot be found.
func (n *Node) checkRecipientKey(ctx context.Context, out Outgoing, shown recipientInfo) error {
	if out.Address != "" || shown.Fingerprint == "" {
		return nil
	}
	peer, _, err := n.findRecipient(ctx, out.To)
	switch {
	case errors.Is(err, client.ErrUnknownAgent):
		return ErrNoRecipient
	case err != nil:
		return wire.ErrUnavailable.Because(err)
	case peer.Key.Fingerprint() != shown.Fingerprint:
		return ErrRecipientChanged
	}
	return nil
}

// RuleUnproven is the rule of a question about an agent whose id does not prove its key (AM-2).
const RuleUnproven = owner.RuleUnproven

// ErrOtherKey means that another key of the agent was accepted after the owner was asked about this one.
var ErrOtherKey = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "another key of this agent was accepted meanwhile; reject this question",
}

// unprovenKeyOf returns the key of a peer that the owner must accept first, or nil.
func unprovenKeyOf(peer client.Peer) *bridge.UnprovenKey {
	if !peer.IsDoubtful() {
		return nil
	}
	return &bridge.UnprovenKey{
		Fingerprint: peer.Key.Fingerprint(), PublicKey: peer.Card.PublicKey, Directory: peer.Directory,
		Why: (&client.UnprovenError{Peer: peer}).Error(),
	}
}

// findRecipient returns the card of an agent. If the owner must accept the key on the card first, it returns that key,
// too.
func (n *Node) findRecipient(ctx context.Context, id wire.AgentID) (client.Peer, *bridge.UnprovenKey, error) {
	peer, err := n.cards.Find(ctx, id, time.Now())
	if e, ok := errors.AsType[*client.UnprovenError](err); ok {
		if key := unprovenKeyOf(e.Peer); key != nil {
			return e.Peer, key, nil
		}
	}
	return peer, nil, err
}

// pinChanges returns the changes that pin the key that the owner was shown, if any.
func (n *Node) pinChanges(ctx context.Context, agent wire.AgentID, shown *bridge.UnprovenKey, now time.Time) ([]store.Change, error) {
	if shown == nil {
		return nil, nil
	}
	changes, err := n.cards.PinChanges(ctx, client.Pin{
		Agent: agent, Fingerprint: shown.Fingerprint, PublicKey: shown.PublicKey, Directory: shown.Directory,
	}, now)
	if errors.Is(err, client.ErrOtherKey) {
		return nil, ErrOtherKey
	}
	return changes, err
}
