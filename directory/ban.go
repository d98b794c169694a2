package directory

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
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

// Ban keeps a party out. Each registration and renewal of the party fails with [wire.ErrBanned]. So does mail from a
// banned id or network, and a report or an A2A call from a banned network.
type Ban struct {
	Kind   BanKind   `json:"kind"`
	Value  string    `json:"value"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

const (
	banNS        = "bans"
	maxBans      = 10_000
	banCacheTime = 10 * time.Second // how long bans are cached; a ban that another process stored takes effect within this time
	banPage      = 500
)

func (b Ban) key() string { return string(b.Kind) + ":" + b.Value }

// ParseBan parses what an operator typed: an agent id "am_…", a fingerprint of 64 hex digits, a public key, an address,
// an address range, or a host.
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
	if err != nil || u.Hostname() != host || !strings.Contains(host, ".") || len(host) > 253 {
		return Ban{}, wire.ErrQuery.At("name an agent id, a key or its fingerprint, a host, or an address range")
	}
	return Ban{Kind: BanHost, Value: listing.HostOf(u)}, nil
}

// bans caches all bans in memory, because every registration checks them.
type bans struct {
	mu   sync.Mutex
	read time.Time
	keys map[string]bool // of ids, keys and hosts
	nets []netip.Prefix
}

// forget makes the next check read the store.
func (b *bans) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = time.Time{}
}

// loadBans reads the bans from the store if the cached ones are too old. The caller holds bans.mu.
func (r *Registry) loadBans(ctx context.Context, now time.Time) error {
	b := &r.bans
	if !b.read.IsZero() && now.Sub(b.read).Abs() < banCacheTime {
		return nil
	}
	keys, nets := make(map[string]bool), []netip.Prefix(nil)
	for after, more := "", true; more; {
		page, err := r.recs.List(ctx, banNS, "", after, banPage, now)
		if err != nil {
			return fmt.Errorf("load bans: %w", err)
		}
		for _, rec := range page.Records {
			if text, ok := strings.CutPrefix(rec.Key, string(BanNetwork)+":"); ok {
				nets = append(nets, parseNetwork(text))
				continue
			}
			keys[rec.Key] = true
		}
		after, more = page.Next, page.Next != ""
	}
	b.keys, b.nets, b.read = keys, nets, now
	return nil
}

// parseNetwork parses the value of a ban of a network. IPv4 addresses that are written as IPv6 become IPv4, because
// addresses are compared in that form. For an invalid text it returns the zero value, which contains no address.
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

// checkBan returns [wire.ErrBanned] if an id, key, host or client address is banned. Unknown parts are zero. The error
// that a client sees does not tell which of them is banned.
func (r *Registry) checkBan(ctx context.Context, id wire.AgentID, key *signing.PublicKey, host string, client netip.Addr, now time.Time) error {
	b := &r.bans
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := r.loadBans(ctx, now); err != nil {
		return err
	}
	if len(b.keys) == 0 && len(b.nets) == 0 {
		return nil
	}
	if b.keys[string(BanID)+":"+string(id)] || key != nil && b.keys[string(BanKey)+":"+listing.Fingerprint(key)] {
		return wire.ErrBanned.Because(errors.New("id or key"))
	}
	addr := parseHost(host)
	for host != "" {
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

// Ban stores a ban, then removes the cards of the banned party and returns how many it removed.
func (r *Registry) Ban(ctx context.Context, ban Ban, by string) (removed int, err error) {
	if err := checkReason(ban.Reason); err != nil {
		return 0, err
	}
	ban.At = wire.Now()
	body, err := json.Marshal(ban)
	if err != nil {
		return 0, fmt.Errorf("write ban: %w", err)
	}
	changes := append(r.audit(ban.At, ban.key(), "banned", ban.Reason, by), store.Change{
		Record: store.Record{NS: banNS, Key: ban.key(), Body: body}, IfRev: store.Any, Max: maxBans,
	})
	err = r.recs.Apply(ctx, changes, ban.At)
	r.bans.forget()
	if errors.Is(err, store.ErrQuota) {
		return 0, wire.ErrQuota
	}
	if err != nil {
		return 0, fmt.Errorf("store ban: %w", err)
	}
	r.log.InfoContext(ctx, "banned", "ban", ban.key(), "reason", ban.Reason)
	return r.removeBannedCards(ctx, ban, by)
}

// Unban lifts a ban. It returns [wire.ErrRoute] if the party is not banned.
func (r *Registry) Unban(ctx context.Context, ban Ban, reason, by string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	now := wire.Now()
	rec, err := r.recs.Get(ctx, banNS, ban.key(), now)
	if err == nil {
		changes := append(r.audit(now, ban.key(), "unbanned", reason, by),
			store.Change{Record: store.Record{NS: banNS, Key: ban.key()}, IfRev: rec.Rev, Delete: true})
		err = r.recs.Apply(ctx, changes, now)
	}
	r.bans.forget()
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

// Bans lists bans in the order of kind and value.
func (r *Registry) Bans(ctx context.Context, after string, limit int) (list []Ban, next string, err error) {
	page, err := r.recs.List(ctx, banNS, "", after, limit, wire.Now())
	if err != nil {
		return nil, "", fmt.Errorf("list bans: %w", err)
	}
	list, err = decodeRecords[Ban](page.Records)
	return list, page.Next, err
}

// decodeRecords decodes the bodies of records.
func decodeRecords[T any](recs []store.Record) ([]T, error) {
	list := make([]T, len(recs))
	for i, rec := range recs {
		if err := json.Unmarshal(rec.Body, &list[i]); err != nil {
			return nil, fmt.Errorf("read record %s of %s: %w", rec.Key, rec.NS, err)
		}
	}
	return list, nil
}

// removeBannedCards removes the cards that a ban applies to. The client address is not stored with a card, so a ban of
// a network removes only cards whose endpoints name an address in it.
func (r *Registry) removeBannedCards(ctx context.Context, ban Ban, by string) (int, error) {
	switch {
	case ban.Kind == BanNetwork && len(r.cfg.AllowPrivate) == 0 && !r.cfg.Local:
		return 0, nil
	case ban.Kind == BanID:
		return r.removeBannedCard(ctx, wire.AgentID(ban.Value), ban, by)
	}
	removed := 0
	err := r.forEachCard(ctx, func(c store.Card) error {
		card, err := listing.ParseCard(c)
		if err != nil {
			r.log.WarnContext(ctx, "a stored card cannot be read", "agent_id", c.ID, "err", err)
			return nil
		}
		match, host := false, listing.Host(card)
		switch ban.Kind {
		case BanHost:
			match = isInDomain(host, ban.Value)
		case BanNetwork:
			match = parseNetwork(ban.Value).Contains(parseHost(host)) && !r.ownsMailbox(card)
		case BanKey:
			key, err := r.keys.Parse(card.PublicKey)
			match = err == nil && listing.Fingerprint(key) == ban.Value
		}
		if !match {
			return nil
		}
		n, err := r.removeBannedCard(ctx, card.ID, ban, by)
		removed += n
		return err
	})
	return removed, err
}

// removeBannedCard removes a banned card if it is listed, and empties its mailbox in any case.
func (r *Registry) removeBannedCard(ctx context.Context, id wire.AgentID, ban Ban, by string) (removed int, err error) {
	err = r.Remove(ctx, id, ban.Reason, by)
	switch {
	case err == nil:
		removed = 1
	case !errors.Is(err, wire.ErrNoAgent):
		return 0, err
	}
	return removed, r.emptyMailbox(ctx, id)
}

// isInDomain reports whether host is domain or a subdomain of it.
func isInDomain(host, domain string) bool {
	return host == domain || strings.HasSuffix(host, "."+domain)
}

// forEachCard calls do with each live card, in the order of registration.
func (r *Registry) forEachCard(ctx context.Context, do func(store.Card) error) error {
	q := store.CardQuery{Limit: banPage, Now: wire.Now()}
	for {
		page, err := r.cards.List(ctx, q)
		if err != nil {
			return err
		}
		for _, c := range page.Cards {
			if err := do(c); err != nil {
				return err
			}
		}
		if page.Next == nil {
			return nil
		}
		q.After = *page.Next
	}
}

// noClient is the address of a caller in this process.
var noClient netip.Addr

// addressKey returns the From of a report: as much of the client's address as limits distinguish (/64 for IPv6), "here"
// for a caller in this process, or "unknown".
func addressKey(client netip.Addr) string {
	switch {
	case !client.IsValid():
		return "here"
	case client == rate.Unknown:
		return "unknown"
	}
	return rate.AddrKey(client)
}
