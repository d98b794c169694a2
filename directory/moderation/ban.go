package moderation

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// BanKind is what a ban applies to.
type BanKind string

const (
	BanID      BanKind = "id"      // an agent_id
	BanKey     BanKind = "key"     // a public key, by its fingerprint
	BanHost    BanKind = "host"    // an endpoint host, and every subdomain
	BanNetwork BanKind = "network" // client addresses, and endpoints that name one of them
)

// Ban keeps a party out: its registrations and renewals fail with [wire.ErrBanned]. So does mail from a banned id or
// network, and a report or an A2A call from a banned network.
type Ban struct {
	Kind   BanKind   `json:"kind"`
	Value  string    `json:"value"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at,omitzero"` // if zero, Add sets it
}

const (
	BansNS = "bans" // the namespace of the records of bans

	maxBans      = 10_000
	BanCacheTime = 10 * time.Second // how long bans are cached; a ban by another process takes effect within this time
)

func (b Ban) key() string { return string(b.Kind) + ":" + b.Value }

// ParseBan parses the text of an operator: an agent id "am_…", a fingerprint of 64 hex digits, a public key, an
// address, an address range, or a host. It refuses a host that no card can have.
func ParseBan(text string) (Ban, error) {
	text = strings.TrimSpace(text)
	if wire.AgentID(text).Valid() {
		return Ban{Kind: BanID, Value: text}, nil
	}
	if sum, err := hex.DecodeString(text); err == nil && len(sum) == 32 {
		return Ban{Kind: BanKey, Value: strings.ToLower(text)}, nil
	}
	if key, err := signing.ParsePublicKey(text); err == nil {
		return Ban{Kind: BanKey, Value: listing.Fingerprint(key)}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return Ban{Kind: BanNetwork, Value: netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()).String()}, nil
	}
	if net, err := netip.ParsePrefix(text); err == nil {
		return Ban{Kind: BanNetwork, Value: net.Masked().String()}, nil
	}
	host := strings.ToLower(strings.TrimSuffix(text, "."))
	u, err := url.Parse("https://" + host + "/")
	if err != nil || u.Hostname() != host || !isHost.MatchString(listing.HostOf(u)) || len(host) > 253 {
		return Ban{}, errBan
	}
	return Ban{Kind: BanHost, Value: listing.HostOf(u)}, nil
}

var errBan = wire.ErrQuery.At("a ban needs an agent id, a key or its fingerprint, a host without *, or an address range such as 203.0.113.0/24")

// isHost matches host names that a card can have. It refuses patterns, which would match nothing, and texts that end in a
// number, because the operator meant an address range.
var isHost = regexp.MustCompile(`^([a-z0-9_-]+\.)+[a-z0-9_-]*[a-z][a-z0-9_-]*$`)

// Bans is the list of bans. It caches all bans, because every registration checks them. It is safe for concurrent use.
type Bans struct {
	records store.Records
	audit   Audit

	mu   sync.Mutex
	read time.Time       // when the bans were read from the store; zero makes the next check read them
	keys map[string]bool // record keys of the bans except those of networks
	nets []netip.Prefix  // the banned networks
}

// NewBans returns the bans in records.
func NewBans(records store.Records, audit Audit) *Bans { return &Bans{records: records, audit: audit} }

// Invalidate makes the next check read the store.
func (b *Bans) Invalidate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = time.Time{}
}

// load reads the bans from the store unless the cached bans are recent. The caller holds b.mu.
func (b *Bans) load(ctx context.Context, now time.Time) error {
	if !b.read.IsZero() && now.Sub(b.read).Abs() < BanCacheTime {
		return nil
	}
	keys, nets := make(map[string]bool), []netip.Prefix(nil)
	for rec, err := range store.AllRecords(ctx, b.records, BansNS, "", now) {
		if err != nil {
			return fmt.Errorf("load bans: %w", err)
		}
		if text, ok := strings.CutPrefix(rec.Key, string(BanNetwork)+":"); ok {
			nets = append(nets, parseNetwork(text))
			continue
		}
		keys[rec.Key] = true
	}
	b.keys, b.nets, b.read = keys, nets, now
	return nil
}

// Matches reports whether a listed card belongs to the banned party. Client addresses are not stored with cards, so a
// ban of a network matches only cards whose endpoints name an address in it.
func (b Ban) Matches(card wire.Card, keys *signing.KeyCache) bool {
	host := listing.Host(card)
	switch b.Kind {
	case BanID:
		return string(card.ID) == b.Value
	case BanHost:
		return host == b.Value || strings.HasSuffix(host, "."+b.Value)
	case BanNetwork:
		return parseNetwork(b.Value).Contains(parseHost(host))
	}
	key, err := keys.Parse(card.PublicKey)
	return err == nil && listing.Fingerprint(key) == b.Value
}

// parseNetwork parses the value of a ban of a network. IPv4 addresses in IPv6 form become IPv4, because addresses are
// compared in that form. An invalid text becomes the zero value, which contains no address.
func parseNetwork(text string) netip.Prefix {
	net, _ := netip.ParsePrefix(text)
	if net.Addr().Is4In6() && net.Bits() >= 96 {
		return netip.PrefixFrom(net.Addr().Unmap(), net.Bits()-96)
	}
	return net
}

// parseHost returns the address that an endpoint names in place of a host, or the zero value.
func parseHost(host string) netip.Addr {
	addr, _ := netip.ParseAddr(host)
	return addr.Unmap()
}

// Check returns [wire.ErrBanned] if an id, key, host or client address is banned. Pass the zero value for each of them
// that is unknown. The client does not learn which one is banned.
func (b *Bans) Check(ctx context.Context, id wire.AgentID, key *signing.PublicKey, host string, client netip.Addr, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.load(ctx, now); err != nil {
		return err
	}
	if len(b.keys) == 0 && len(b.nets) == 0 {
		return nil
	}
	if b.keys[string(BanID)+":"+string(id)] || key != nil && b.keys[string(BanKey)+":"+listing.Fingerprint(key)] {
		return wire.ErrBanned.Because(errors.New("id or key"))
	}
	addr := parseHost(host)
	for host != "" { // the host, then its parent domains
		if b.keys[string(BanHost)+":"+host] {
			return wire.ErrBanned.Because(errors.New("host"))
		}
		_, host, _ = strings.Cut(host, ".")
	}
	for _, net := range b.nets {
		if net.Contains(client.Unmap()) || net.Contains(addr) {
			return wire.ErrBanned.Because(errors.New("address"))
		}
	}
	return nil
}

// CheckClient is [Bans.Check] for a client address alone.
func (b *Bans) CheckClient(ctx context.Context, client netip.Addr, now time.Time) error {
	return b.Check(ctx, "", nil, "", client, now)
}

// Add stores a ban. by is the page or client that the operator used, such as "cli", for the audit log.
func (b *Bans) Add(ctx context.Context, ban Ban, by string) error {
	if err := CheckReason(ban.Reason); err != nil {
		return err
	}
	ban.At = cmp.Or(ban.At, wire.Now())
	changes := append(b.audit.Changes(ban.At, ban.key(), "banned", ban.Reason, by), store.Change{
		Record: store.Record{NS: BansNS, Key: ban.key(), Body: wire.MustMarshal(ban)}, IfRev: store.Any, Max: maxBans,
	})
	err := b.records.Apply(ctx, changes, ban.At)
	b.Invalidate()
	if errors.Is(err, store.ErrQuota) {
		return wire.ErrQuota
	}
	if err != nil {
		return fmt.Errorf("store ban: %w", err)
	}
	return nil
}

// Lift lifts a ban. It returns [wire.ErrRoute] if the party is not banned.
func (b *Bans) Lift(ctx context.Context, ban Ban, reason, by string) error {
	if err := CheckReason(reason); err != nil {
		return err
	}
	now := wire.Now()
	rec, err := b.records.Get(ctx, BansNS, ban.key(), now)
	if err == nil {
		changes := append(b.audit.Changes(now, ban.key(), "unbanned", reason, by),
			store.Change{Record: store.Record{NS: BansNS, Key: ban.key()}, IfRev: rec.Rev, Delete: true})
		err = b.records.Apply(ctx, changes, now)
	}
	b.Invalidate()
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

// List lists bans in the order of kind and value.
func (b *Bans) List(ctx context.Context, after string, limit int) (list []Ban, next string, err error) {
	page, err := b.records.List(ctx, BansNS, "", after, limit, wire.Now())
	if err != nil {
		return nil, "", fmt.Errorf("list bans: %w", err)
	}
	list, err = Decode[Ban](page.Records)
	return list, page.Next, err
}
