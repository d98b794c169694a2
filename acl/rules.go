package acl

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsRules      = "rules"
	nsRecipients = "recipients" // principals to which our side may write without asking the owner (AM-50)
)

// Rule is a permanent decision of the owner about a principal: an agent id, or the name of a foreign peer.
type Rule struct {
	Principal string    `json:"principal"`
	Standing  Standing  `json:"standing"`
	Since     time.Time `json:"since"`
}

// Rules looks up the standing of a principal in the policy's lists and in the owner's stored decisions. It is safe for
// concurrent use and caches nothing.
type Rules struct {
	records      store.Records
	ns           string
	allow, block map[string]struct{} // the lists of the policy; never changed
}

// NewRules returns the rules stored in recs, together with the lists of p.
func NewRules(recs store.Records, p Policy) *Rules {
	return &Rules{records: recs, ns: nsRules, allow: toSet(p.Allow), block: toSet(p.Block)}
}

// NewRecipients returns the rules about the principals to whom the owner's programs, hooks and bridges write. To an
// Approved principal they may write without asking the owner, unless the policy demands a question for the intent.
func NewRecipients(recs store.Records) *Rules { return &Rules{records: recs, ns: nsRecipients} }

func toSet(list []string) map[string]struct{} {
	m := make(map[string]struct{}, len(list))
	for _, s := range list {
		m[s] = struct{}{}
	}
	return m
}

// Standing returns the standing of a principal. A block, configured or stored, takes precedence over everything else;
// then comes the configured allowlist. A block of a link, such as mew:lab, applies to every address behind the link. If
// the principal is a link, the caller passes the address of the peer, because the owner may have blocked only that peer.
func (r *Rules) Standing(ctx context.Context, principal string, now time.Time, address ...string) (Standing, error) {
	standing, err := r.standingOf(ctx, principal, now)
	var others []string // names whose block counts too
	for _, name := range append(address, principal) {
		if link, _, ok := strings.Cut(name, "/"); ok {
			others = append(others, name, link)
		}
	}
	slices.Sort(others)
	for _, name := range slices.Compact(others) {
		if err != nil || standing == Blocked {
			break
		}
		if name == principal {
			continue // read above
		}
		var other Standing
		if other, err = r.standingOf(ctx, name, now); other == Blocked {
			standing = Blocked
		}
	}
	return standing, err
}

// standingOf is Standing for one name.
func (r *Rules) standingOf(ctx context.Context, principal string, now time.Time) (Standing, error) {
	if _, ok := r.block[principal]; ok {
		return Blocked, nil
	}
	var rule Rule
	if _, _, err := store.ReadRecord(ctx, r.records, r.ns, principal, &rule, now); err != nil {
		return Unknown, fmt.Errorf("read rule: %w", err)
	}
	if _, ok := r.allow[principal]; ok && rule.Standing != Blocked {
		return Allowed, nil
	}
	return rule.Standing, nil
}

// Change returns the change that stores a standing, or that removes the rule if s is Unknown. It has no precondition,
// because the owner's last decision counts.
func (r *Rules) Change(principal string, s Standing, now time.Time) store.Change {
	rec := store.Record{NS: r.ns, Key: principal}
	if s == Unknown {
		return store.Change{Record: rec, IfRev: store.Any, Delete: true}
	}
	rec.Body = wire.MustMarshal(Rule{Principal: principal, Standing: s, Since: now.UTC()})
	return store.Change{Record: rec, IfRev: store.Any}
}

// Set stores a standing.
func (r *Rules) Set(ctx context.Context, principal string, s Standing, now time.Time) error {
	if !slices.Contains([]Standing{Allowed, Approved, Rejected, Blocked}, s) {
		return fmt.Errorf("standing %q: must be allowed, approved, rejected or blocked", s)
	}
	if err := r.records.Apply(ctx, []store.Change{r.Change(principal, s, now)}, now); err != nil {
		return fmt.Errorf("store rule: %w", err)
	}
	return nil
}

// All returns all stored rules, ordered by principal. If principal is not "", it returns only the rule about that
// principal. An error ends the iteration.
func (r *Rules) All(ctx context.Context, principal string, now time.Time) iter.Seq2[Rule, error] {
	if principal == "" {
		return store.DecodeAll(ctx, r.records, r.ns, "", now, store.Decode[Rule])
	}
	return func(yield func(Rule, error) bool) {
		var rule Rule
		if _, found, err := store.ReadRecord(ctx, r.records, r.ns, principal, &rule, now); err != nil || found {
			yield(rule, err)
		}
	}
}
