// Package admission decides who may register cards: by the mode of the directory, by credentials and invite codes
// (AM-56), and by quotas (AM-58). It slows down clients that guess credentials.
package admission

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Config configures a gate. Only Store is required.
type Config struct {
	Store     store.Store
	Mode      credential.Mode
	Local     bool       // the local profile (AM-82): short credentials, and no limits
	Operators [][32]byte // hashes of the credentials that register in every mode and without quotas
	Quotas    Quotas
	Shared    bool // other processes write to the store
	// Audit returns the changes that write a decision of the operator into the audit log. The invite codes need it.
	Audit     func(at time.Time, subject, choice, note, by string) []store.Change
	Addresses *httpapi.Addresses
	Metrics   *httpapi.Metrics
}

// Quotas bound what one party may register (AM-58). 0 means the default; a negative value means no limit.
type Quotas struct {
	PerToken int // cards of one credential; by default 10
	PerHost  int // cards of one endpoint host; by default 10
	PerHour  int // registrations of one address in an hour; by default 20
}

// Defaults of AM-58.
const (
	defaultPerToken = 10
	DefaultPerHost  = 10
	DefaultPerHour  = 20
)

// Lengths of a credential, in visible ASCII characters (AM-56).
const (
	minCredential      = 16
	minCredentialLocal = 1
	maxCredential      = 256
)

const (
	maxClients  = 1 << 16 // addresses that the throttle remembers
	MaxFailures = 10      // wrong credentials of one address in a minute

	registeredNS = "registered" // the namespace of the shared limit of registrations
)

// Gate decides who may register. It is safe for concurrent use.
type Gate struct {
	cfg      Config
	invites  credential.Invites
	hourly   *rate.Registrations     // by address; nil for no limit
	shared   *credential.SharedLimit // the hourly limit of all processes together; nil if this process alone writes
	failures *rate.Penalties         // wrong credentials by address; nil for no limit
}

// New returns a gate.
func New(cfg Config) *Gate {
	q := &cfg.Quotas
	// From here on, 0 means no limit.
	*q = Quotas{max(0, cmp.Or(q.PerToken, defaultPerToken)), max(0, cmp.Or(q.PerHost, DefaultPerHost)), max(0, cmp.Or(q.PerHour, DefaultPerHour))}
	if cfg.Local {
		*q = Quotas{}
	}
	g := &Gate{cfg: cfg, hourly: rate.NewRegistrations(q.PerHour, nil)} // nil: no limit for all addresses together
	g.invites = credential.Invites{Records: cfg.Store.Records(), NS: inviteNS, Name: credential.Hash.Name, Max: maxInvites}
	if cfg.Shared {
		g.shared = credential.NewSharedLimit(cfg.Store.Records(), registeredNS, cfg.Quotas.PerHour)
	}
	if !cfg.Local { // AM-82
		g.failures = rate.NewPenalties(MaxFailures, 0, maxClients) // 0: barred until a failure is forgotten
	}
	cfg.Metrics.LimiterFunc("registrations-of-address", func() uint64 { return g.hourly.Refusals() + g.shared.Refusals() })
	cfg.Metrics.LimiterFunc("credential-failures-of-address", g.failures.Refusals)
	return g
}

// CheckBearer returns an error if a bearer token is missing or malformed, and so cannot be the credential of a card.
func (g *Gate) CheckBearer(bearer string) error {
	least := minCredential
	if g.cfg.Local {
		least = minCredentialLocal
	}
	visible := !strings.ContainsFunc(bearer, func(c rune) bool { return c <= ' ' || c > '~' })
	switch {
	case bearer == "":
		return wire.ErrNoBearer
	case len(bearer) < least || len(bearer) > maxCredential || !visible:
		return wire.ErrNoBearer.At(fmt.Sprintf("it must have %d to %d visible ASCII characters", least, maxCredential))
	}
	return nil
}

func (g *Gate) isOperator(owner [32]byte) bool {
	return slices.ContainsFunc(g.cfg.Operators, func(o [32]byte) bool { return credential.Hash(o).Equal(owner) })
}

// CheckThrottle refuses an address that sent too many wrong credentials (AM-56).
func (g *Gate) CheckThrottle(client netip.Addr, now time.Time) error {
	if !client.IsValid() {
		return nil
	}
	if wait := g.failures.Admit(client, now); wait > 0 {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// CheckThrottleUnlessKnown calls CheckThrottle unless the bearer token is the credential of a card. So an owner can
// change a card even from a throttled address.
func (g *Gate) CheckThrottleUnlessKnown(ctx context.Context, bearer string, client netip.Addr, now time.Time) error {
	refusal := g.CheckThrottle(client, now)
	if refusal == nil {
		return nil
	}
	if known, err := g.IsKnown(ctx, credential.HashOf(bearer), now); err != nil || !known {
		return refusal
	}
	return nil
}

// IsKnown reports whether a card has the credential.
func (g *Gate) IsKnown(ctx context.Context, owner [32]byte, now time.Time) (bool, error) {
	return g.cfg.Store.Cards().HasCount(ctx, tokenCountKey(owner), now)
}

// CountFailure counts a wrong credential against the client's address. [rate.Unknown] stands for many clients: their
// failures do not count, but their responses are delayed.
func (g *Gate) CountFailure(ctx context.Context, client netip.Addr, now time.Time) {
	if client.IsValid() {
		g.failures.Fault(client, now)
		g.cfg.Addresses.Delay(ctx, client)
	}
}

func tokenCountKey(owner [32]byte) string { return "token:" + string(owner[:]) }

// Counts returns the keys under which the store counts a card: one for its credential, and one for the host of its
// endpoint. host is "" for a mailbox, because all mailboxes have the same host (AM-66).
func Counts(owner [32]byte, host string) []string {
	list := []string{tokenCountKey(owner)}
	if host != "" {
		list = append(list, "host:"+host)
	}
	return list
}

// AddQuotas adds the quotas that the card in put must meet, none for a card of the operator. The card's Counts are in
// the order of [Counts].
func (g *Gate) AddQuotas(put *store.PutCard) {
	if g.isOperator(put.Card.Owner) {
		return
	}
	for i, key := range put.Card.Counts {
		put.Quotas = append(put.Quotas, store.Quota{Key: key, Max: []int{g.cfg.Quotas.PerToken, g.cfg.Quotas.PerHost}[i]})
	}
}

// Charge is what a registration takes from the hourly allowance of the client's address.
type Charge struct {
	gate   *Gate
	client netip.Addr // invalid for no charge
	at     time.Time
	taken  bool // from the allowance of this process
}

// NewCharge returns the charge of a registration. The operator and a caller in this process pay nothing.
func (g *Gate) NewCharge(client netip.Addr, owner [32]byte, now time.Time) *Charge {
	if g.isOperator(owner) {
		client = netip.Addr{}
	}
	return &Charge{gate: g, client: client, at: now}
}

// Take charges the registration to the allowance of this process, at most once. It returns the changes that charge it
// to the allowance that all processes share.
func (c *Charge) Take(ctx context.Context) ([]store.Change, error) {
	if !c.client.IsValid() {
		return nil, nil
	}
	var wait time.Duration
	if !c.taken {
		wait, _ = c.gate.hourly.Take(c.client, c.at)
		c.taken = wait <= 0
	}
	var changes []store.Change
	var err error
	if wait <= 0 {
		changes, wait, err = c.gate.shared.Take(ctx, c.client, c.at)
	}
	if wait > 0 {
		err = wire.ErrQuota.After(wait)
	}
	return changes, err
}

// Refund gives back the charge of a registration that failed later (AM-43).
func (c *Charge) Refund() {
	if c.taken {
		c.gate.hourly.Return(c.client, c.at)
	}
}
