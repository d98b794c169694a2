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

	"golang.org/x/net/idna"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// BanKind is what a ban names.
type BanKind string

const (
	BanID      BanKind = "id"      // an agent_id
	BanKey     BanKind = "key"     // a public key, by its fingerprint
	BanHost    BanKind = "host"    // an endpoint host, and every host below it
	BanNetwork BanKind = "network" // addresses from which nothing is registered
)

// Ban keeps a party out. It gets [wire.ErrBanned] for every registration and renewal, whatever the ban names.
type Ban struct {
	Kind   BanKind   `json:"kind"`
	Value  string    `json:"value"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

const (
	banNS    = "bans"
	maxBans  = 10_000
	banFresh = 10 * time.Second // how soon a ban of another instance is seen
	banPage  = 500
)

func (b Ban) key() string { return string(b.Kind) + ":" + b.Value }

// ParseBan reads what an operator typed: "am_…", a fingerprint of 64 hex digits or a whole public key, an address or
// a range of them, else a host.
func ParseBan(text string) (Ban, error) {
	text = strings.TrimSpace(text)
	if wire.AgentID(text).Valid() {
		return Ban{Kind: BanID, Value: text}, nil
	}
	if sum, err := hex.DecodeString(text); err == nil && len(sum) == 32 {
		return Ban{Kind: BanKey, Value: strings.ToLower(text)}, nil
	}
	if key, err := signing.ParsePublicKey(text); err == nil {
		return Ban{Kind: BanKey, Value: fingerprint(key)}, nil
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
	return Ban{Kind: BanHost, Value: hostOf(u)}, nil
}

// fingerprint names a key, whatever text it came in. It goes without the kind, for ed25519: and 64 hex digits is
// also a way to write a key.
func fingerprint(key *signing.PublicKey) string {
	_, sum, _ := strings.Cut(key.Fingerprint(), ":")
	return sum
}

func hexHead(owner [32]byte) string { return hex.EncodeToString(owner[:6]) }

// bans is what is banned, kept in memory because every registration asks.
type bans struct {
	mu   sync.Mutex
	read time.Time
	keys map[string]bool // of ids, keys and hosts
	nets []netip.Prefix
}

// forget makes the next look read the store.
func (b *bans) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = time.Time{}
}

func (r *Registry) loadBans(ctx context.Context, now time.Time) error {
	b := &r.bans
	if !b.read.IsZero() && now.Sub(b.read).Abs() < banFresh {
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
				if net, err := netip.ParsePrefix(text); err == nil {
					nets = append(nets, net)
				}
				continue
			}
			keys[rec.Key] = true
		}
		after, more = page.Next, page.Next != ""
	}
	b.keys, b.nets, b.read = keys, nets, now
	return nil
}

// banned refuses a party whose id, key, host or address is banned; what is not known of it is zero. The answer does not
// say which.
func (r *Registry) banned(ctx context.Context, id wire.AgentID, key *signing.PublicKey, host string, client netip.Addr, now time.Time) error {
	b := &r.bans
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := r.loadBans(ctx, now); err != nil {
		return err
	}
	if len(b.keys) == 0 && len(b.nets) == 0 {
		return nil
	}
	if b.keys[string(BanID)+":"+string(id)] || key != nil && b.keys[string(BanKey)+":"+fingerprint(key)] {
		return wire.ErrBanned.Because(errors.New("id or key"))
	}
	for host != "" {
		if b.keys[string(BanHost)+":"+host] {
			return wire.ErrBanned.Because(errors.New("host"))
		}
		_, host, _ = strings.Cut(host, ".")
	}
	for _, net := range b.nets {
		if net.Contains(client.Unmap()) {
			return wire.ErrBanned.Because(errors.New("address"))
		}
	}
	return nil
}

// Ban keeps a party out from now on, and removes its cards: Removed says how many. The ban stands before the first
// card goes.
func (r *Registry) Ban(ctx context.Context, ban Ban, by string) (removed int, err error) {
	if err := checkReason(ban.Reason); err != nil {
		return 0, err
	}
	ban.At = clock()
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
	return r.removeBanned(ctx, ban, by)
}

// Unban lets a party in again. What is not banned is [wire.ErrRoute].
func (r *Registry) Unban(ctx context.Context, ban Ban, reason, by string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	now := clock()
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

// Bans lists what is banned, in the order of kind and value.
func (r *Registry) Bans(ctx context.Context, after string, limit int) (list []Ban, next string, err error) {
	page, err := r.recs.List(ctx, banNS, "", after, limit, clock())
	if err != nil {
		return nil, "", fmt.Errorf("list bans: %w", err)
	}
	list = make([]Ban, len(page.Records))
	for i, rec := range page.Records {
		if err := json.Unmarshal(rec.Body, &list[i]); err != nil {
			return nil, "", fmt.Errorf("read ban %s: %w", rec.Key, err)
		}
	}
	return list, page.Next, nil
}

// removeBanned removes the cards that a ban names. Nobody's address is kept beside his card, so that a ban of
// addresses removes none.
func (r *Registry) removeBanned(ctx context.Context, ban Ban, by string) (int, error) {
	switch ban.Kind {
	case BanNetwork:
		return 0, nil
	case BanID:
		return r.removeOne(ctx, wire.AgentID(ban.Value), ban, by)
	}
	removed := 0
	err := r.each(ctx, func(c store.Card, card wire.Card) error {
		match := ban.Kind == BanHost && below(endpointHost(card), ban.Value)
		if ban.Kind == BanKey {
			key, err := r.keys.Parse(card.PublicKey)
			match = err == nil && fingerprint(key) == ban.Value
		}
		if !match {
			return nil
		}
		n, err := r.removeOne(ctx, card.ID, ban, by)
		removed += n
		return err
	})
	return removed, err
}

// removeOne removes a banned card where it is listed, and what waits in its mailbox in any case.
func (r *Registry) removeOne(ctx context.Context, id wire.AgentID, ban Ban, by string) (removed int, err error) {
	err = r.Remove(ctx, id, ban.Reason, by)
	switch {
	case err == nil:
		removed = 1
	case !errors.Is(err, wire.ErrNoAgent):
		return 0, err
	}
	return removed, r.emptyMailbox(ctx, id)
}

func below(host, banned string) bool { return host == banned || strings.HasSuffix(host, "."+banned) }

func endpointHost(card wire.Card) string {
	u, err := url.Parse(card.Endpoint)
	if err != nil {
		return ""
	}
	return hostOf(u)
}

// hostOf names the host of an endpoint in the one spelling that bans, quotas and the pauses of the prober know: as the
// client of the standard library looks it up, and without the dot that a full name may end in.
func hostOf(u *url.URL) string {
	host := u.Hostname()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// each goes through all live cards, in the order of their registration.
func (r *Registry) each(ctx context.Context, do func(store.Card, wire.Card) error) error {
	q := store.CardQuery{Limit: banPage, Now: clock()}
	for {
		page, err := r.cards.List(ctx, q)
		if err != nil {
			return err
		}
		for _, c := range page.Cards {
			card, err := r.stored(c)
			if err != nil {
				r.log.WarnContext(ctx, "a stored card cannot be read", "agent_id", c.ID, "err", err)
				continue
			}
			if err := do(c, card); err != nil {
				return err
			}
		}
		if page.Next == nil {
			return nil
		}
		q.After = *page.Next
	}
}

// stored reads a card that was acceptable when it came: rules that became stricter since do not matter.
func (r *Registry) stored(c store.Card) (wire.Card, error) {
	tree, err := wire.ParseObject(c.Body)
	if err != nil {
		return wire.Card{}, err
	}
	return wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
}

// noClient is the address of a caller inside the process.
var noClient netip.Addr

// addressKey returns how reports name a sender: its address as far as limits tell addresses apart (/64 for IPv6).
func addressKey(client netip.Addr) string {
	switch {
	case !client.IsValid():
		return "here"
	case client == rate.Unknown:
		return "unknown"
	}
	return rate.AddrKey(client)
}
