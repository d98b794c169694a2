package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// OutboundPolicy says to whom our side may write, and what the owner sees first (AM-50). It holds for every message that
// somebody on our side wants to say: of the owner's commands, of an agent that uses them, of hooks and their answers,
// of bridges. What the protocol itself says is not meant: receipts, the echo of a close, the refusal that the owner
// decided on. The zero value lets everything out that does not commit the owner (AM-31).
type OutboundPolicy struct {
	// Mode is for recipients what access.mode is for senders. Empty: allowlist where Allow has entries, else open.
	Mode    acl.Mode `yaml:"mode"`
	Allow   []string `yaml:"allow"`   // agent ids and foreign addresses
	Seal    Sealing  `yaml:"seal"`    // empty: SealOff
	Approve []string `yaml:"approve"` // patterns of intents (see [acl.Match]) that wait for the owner
}

// Validate says what is wrong with a policy that came from a configuration file.
func (p OutboundPolicy) Validate() error {
	if !slices.Contains([]acl.Mode{"", acl.Open, acl.Allowlist, acl.Approval}, p.Mode) {
		return fmt.Errorf("outgoing mode %q: must be open, allowlist or approval", p.Mode)
	}
	if !slices.Contains([]Sealing{"", SealOff, SealPrefer, SealRequire}, p.Seal) {
		return fmt.Errorf("outgoing seal %q: must be off, prefer or require", p.Seal)
	}
	for _, pattern := range p.Approve {
		if err := acl.ValidPattern(pattern); err != nil {
			return fmt.Errorf("outbound: %w", err)
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

func (p OutboundPolicy) lists(out Outgoing) bool {
	return slices.Contains(p.Allow, principal(out)) || slices.Contains(p.Allow, string(out.To))
}

// permission is what the owner's rules say about a message of ours that may leave.
type permission struct {
	asks   bool   // the owner decides first
	rule   string // that says so
	always bool   // the question is the recipient, so the owner may answer it for good
}

// permit asks the owner's rules about a message that somebody on our side wants to say. The error is ErrBlocked or
// ErrOutbound, or the store's. Every door leads through here: there is no other way for words of ours to leave.
func (n *Node) permit(ctx context.Context, out Outgoing, now time.Time) (permission, error) {
	who, rules := principal(out), n.cfg.Outbound
	standing, err := n.rules.Standing(ctx, who, now)
	if err != nil {
		return permission{}, err
	}
	listed, mode := rules.lists(out), rules.mode()
	switch {
	case standing == acl.Blocked:
		return permission{}, ErrBlocked
	case mode == acl.Allowlist && !listed:
		return permission{}, ErrOutbound
	case out.closes() && out.Payload.Len() == 2: // action and status: nothing that could be decided
		return permission{rule: "close"}, nil
	case out.unproven != nil:
		return permission{asks: true, rule: RuleUnproven}, nil
	}
	for _, pattern := range rules.Approve {
		if acl.Match(pattern, string(out.Intent)) {
			return permission{asks: true, rule: "outgoing.approve=" + pattern}, nil
		}
	}
	if n.policy().HoldOutgoing(out.Intent, out.Payload.GetStr("action"), n.route(out.Intent).Handler != nil) {
		return permission{asks: true, rule: "hold=" + string(out.Intent)}, nil
	}
	switch {
	case listed:
		return permission{rule: "outgoing.allow"}, nil
	case mode == acl.Open:
		return permission{rule: "outgoing.mode=open"}, nil
	}
	remembered, err := n.recipients.Standing(ctx, who, now)
	if err != nil {
		return permission{}, err
	}
	if remembered == acl.Approved {
		return permission{rule: "recipient=approved"}, nil
	}
	return permission{asks: true, rule: "outgoing.mode=" + string(mode), always: true}, nil
}

// countSent adds a message of ours that left without a question to its sum in the audit log.
func (n *Node) countSent(out Outgoing, p permission) {
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditSent, Subject: principal(out), Rule: p.rule, Note: "via " + out.Via})
}

// recipient is what is known about who would get a message, as the owner is shown it.
type recipient struct {
	Name        string    `json:"name,omitempty"` // from its card: untrusted text
	Endpoint    string    `json:"endpoint,omitempty"`
	Directory   string    `json:"directory,omitempty"` // that lists it; empty where the owner gave the card
	Fingerprint string    `json:"fingerprint,omitempty"`
	Pinned      time.Time `json:"pinned,omitzero"`    // since when we know it by this key; zero: not yet
	KeyProof    time.Time `json:"key_proof,omitzero"` // when it proved to the directory that it has the key
	KeyChanged  time.Time `json:"key_changed,omitzero"`
	ID          string    `json:"id,omitempty"` // "derived": the id leads to the key
	Foreign     bool      `json:"foreign,omitempty"`
	Error       string    `json:"error,omitempty"` // why less is known
	// Unproven is the key that approval accepts as the recipient's.
	Unproven *bridge.UnprovenKey `json:"unproven,omitempty"`
}

const recordTime = 5 * time.Second

// recipientOf looks up who would get the message. It makes calls, so no step may be open.
func (n *Node) recipientOf(ctx context.Context, out Outgoing) recipient {
	if out.Address != "" {
		return recipient{Foreign: true}
	}
	peer, err := n.cards.Find(ctx, out.To, time.Now())
	doubtful, unproven := doubtIn(err)
	if unproven != nil {
		peer, err = doubtful, nil
	}
	if err != nil {
		return recipient{Error: wire.OneLine(err.Error(), 200)}
	}
	r := recipient{
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

// stillThem says whether the recipient has the key that the owner was shown.
func (n *Node) stillThem(ctx context.Context, out Outgoing, shown recipient) error {
	if out.Address != "" || shown.Fingerprint == "" {
		return nil
	}
	peer, err := n.cards.Find(ctx, out.To, time.Now())
	if doubtful, unproven := doubtIn(err); unproven != nil {
		peer, err = doubtful, nil
	}
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
