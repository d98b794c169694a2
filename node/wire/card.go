package wire

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxCard is the largest size of a card in bytes (AM-4).
const MaxCard = 64 << 10

const (
	maxEndpoint  = 2048     // characters
	maxKeyText   = 32 << 10 // bytes
	maxListed    = 64       // capabilities, or intents
	maxListEntry = 128      // characters
)

// Card is an agent card (§3), filled from Tree.
type Card struct {
	ID           AgentID
	Name         string
	Description  string
	OwnerName    string
	Endpoint     string
	PublicKey    string
	Capabilities []string
	Intents      []Intent
	AccessMode   string // access_control.mode; "" if the card does not set it
	Metadata     Value

	Tree Value // the whole card as received, including unknown fields
}

// CardRules are the checks that depend on who reads the card. The zero value is the strictest.
type CardRules struct {
	// AllowHTTP reports whether an endpoint with this host may use http:// and may have an IP address as its host
	// (AM-5, AM-80, AM-82). A nil AllowHTTP allows neither.
	AllowHTTP func(host string) bool
}

// ParseCard fills a card from a tree under AM-4 and AM-5. Package signing checks the key. The error is a *[FieldError].
func ParseCard(v Value, rules CardRules) (Card, error) {
	f := fields{v: v}
	if v.Kind() != Object {
		f.fail("card", "must be an object")
	}
	f.version()
	c := Card{
		ID:          AgentID(f.text("agent_id")),
		Name:        f.text("name"),
		Description: f.optText("description"),
		Endpoint:    f.text("endpoint"),
		PublicKey:   f.text("public_key"),
		Tree:        v,
	}
	f.check(c.ID.Valid(), "agent_id", badID)
	f.length(c.Name, "name", 1, 256, "must be 1 to 256 characters")
	f.length(c.Description, "description", 0, 1024, "must be at most 1024 characters")
	if reason := endpointFault(c.Endpoint, rules); reason != "" {
		f.fail("endpoint", reason)
	}
	f.check(c.PublicKey != "" && len(c.PublicKey) <= maxKeyText, "public_key", "must be 1 byte to 32 KiB")
	c.Capabilities = f.tags("capabilities")
	for _, s := range f.tags("intents") {
		f.check(Intent(s).Valid(), "intents", "must hold names of A-Z a-z 0-9 . _ -")
		c.Intents = append(c.Intents, Intent(s))
	}
	if owner, ok := f.opt("owner", Object, "must be an object"); ok {
		o := fields{v: owner, path: "owner."}
		c.OwnerName = o.text("name")
		o.optText("contact")
		f.join(&o)
	}
	if access, ok := f.opt("access_control", Object, "must be an object"); ok {
		a := fields{v: access, path: "access_control."}
		c.AccessMode = a.oneOf("mode", "must be open, allowlist or approval", "open", "allowlist", "approval")
		f.join(&a)
	}
	f.opt("availability", Object, "must be an object")
	c.Metadata, _ = f.opt("metadata", Object, "must be an object")
	return c, f.result()
}

// tags returns the list of strings with this key, and checks its length and the length of each string.
func (f *fields) tags(key string) []string {
	list := f.texts(key, f.array(key))
	f.check(len(list) <= maxListed, key, "must have at most 64 entries")
	for _, s := range list {
		f.length(s, key, 1, maxListEntry, "must hold entries of 1 to 128 characters")
	}
	return list
}

// endpointFault returns the fault of an endpoint, or "".
func endpointFault(endpoint string, rules CardRules) string {
	if utf8.RuneCountInString(endpoint) > maxEndpoint {
		return "must be at most 2048 characters"
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Hostname() == "" || strings.ContainsAny(endpoint, " \t\r\n\\") {
		return "must be an absolute URL"
	}
	if u.User != nil || strings.Contains(endpoint, "#") {
		return "must have no user info and no fragment"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "must have a port of 1 to 65535"
		}
	}
	allowed := rules.AllowHTTP != nil && rules.AllowHTTP(u.Hostname())
	switch { // u.Scheme is in lower case, so this refuses HTTPS://, which the reference implementation does not recognize
	case strings.HasPrefix(endpoint, "http://") && !allowed, !strings.HasPrefix(endpoint, u.Scheme+"://"):
		return "must be an https URL"
	case u.Scheme != "https" && u.Scheme != "http":
		return "must be an https URL"
	case isAddress(u.Hostname()) && !allowed:
		return "must name a host, not an address"
	}
	return ""
}

// isAddress reports whether a host is an IP address, with or without a zone. It also recognizes the forms of inet_aton,
// which some resolvers accept (127.1, 0x7f000001, 2130706433): their last label is a number.
func isAddress(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	return strings.HasPrefix(last, "0x") || last == "" || strings.Trim(last, "0123456789") == ""
}

// HasPrivateLists reports whether the card contains an allowlist or a block list, which must stay private (AM-6).
func (c Card) HasPrivateLists() bool {
	access, _ := c.Tree.Get("access_control")
	_, allow := access.Get("allowlist")
	_, block := access.Get("block")
	return allow || block
}

// WithoutPrivateLists returns the card's tree without the allowlist and the block list (AM-6).
func (c Card) WithoutPrivateLists() Value {
	access, ok := c.Tree.Get("access_control")
	if !ok || !c.HasPrivateLists() {
		return c.Tree
	}
	return c.Tree.With("access_control", access.Without("allowlist", "block"))
}

// Supports reports whether the card lists the intent.
func (c Card) Supports(intent Intent) bool { return slices.Contains(c.Intents, intent) }

// MetaKeyChain is the member of metadata with the proofs that connect the key from which the agent id is derived to the
// card's key (AM-2).
const MetaKeyChain = "key_chain"

// KeyChain returns the key chain of the card, or "". It does not check the chain; see signing.ProvesID.
func (c Card) KeyChain() string { return c.Metadata.GetStr(MetaKeyChain) }
