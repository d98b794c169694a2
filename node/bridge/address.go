package bridge

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Address names a foreign peer: "kind:link/peer", as in "agentrelay:free/agent-042".
type Address struct {
	Kind string // of the bridge: a-z and 0-9
	Link string // as configured: a-z, 0-9 and "-", beginning with a letter or digit
	Peer string // as the foreign side names it: at most 256 bytes of printable text without white space
}

const (
	maxKind = 32
	maxLink = 64
	maxPeer = 256
)

// String returns the written form, which [ParseAddress] reads.
func (a Address) String() string { return a.Kind + ":" + a.Link + "/" + a.Peer }

// WebLink is the link name in the addresses of peers that are named by their URL; see [Kind].Web.
const WebLink = "web"

// ParseAddress reads an address. Kind and link end at the first ":" and the first "/"; the peer may hold both.
// "a2a:https://host" is short for "a2a:web/https://host".
func ParseAddress(s string) (Address, error) {
	kind, rest, ok := strings.Cut(s, ":")
	if strings.HasPrefix(rest, "https://") || strings.HasPrefix(rest, "http://") {
		rest = WebLink + "/" + rest
	}
	link, peer, slash := strings.Cut(rest, "/")
	a := Address{Kind: kind, Link: link, Peer: peer}
	if !ok || !slash {
		return Address{}, fmt.Errorf("address: must be kind:link/peer")
	}
	return a, a.Validate()
}

// Party returns a text that names a party to people. For a foreign peer, it is the peer's name, or else the id in the
// peer's address, and then the network in parentheses. For an agent of the mesh, it is the agent's name, or else the
// agent id. The text is untrusted.
func Party(name, address, id string) string {
	a, err := ParseAddress(address)
	switch {
	case err == nil && name == "":
		name = a.Peer
		fallthrough
	case err == nil:
		return name + " (" + a.Kind + ":" + a.Link + ")"
	case name == "":
		return id
	}
	return name
}

// Validate returns an error that names the invalid part of the address.
func (a Address) Validate() error {
	switch {
	case !validKind(a.Kind):
		return fmt.Errorf("address: kind must be 1 to %d characters from a-z and 0-9", maxKind)
	case !validLink(a.Link):
		return fmt.Errorf("address: link must be 1 to %d characters from a-z, 0-9 and -, and must not begin with -", maxLink)
	case !validPeer(a.Peer):
		return fmt.Errorf("address: peer must be 1 to %d bytes of printable text without white space", maxPeer)
	}
	return nil
}

// ValidPrincipal reports whether s can be a principal of a foreign network: a link such as "mew:lab", or an address.
func ValidPrincipal(s string) bool {
	if _, err := ParseAddress(s); err == nil {
		return true
	}
	kind, link, ok := strings.Cut(s, ":")
	return ok && validKind(kind) && validLink(link)
}

// Pseudonym is [owner.Pseudonym] of the peer. The hash leaves out the kind, because link names are unique; A2A and
// MoltSpeak share the link name "inbound", but only the peers of MoltSpeak have an "@".
func (a Address) Pseudonym() wire.AgentID { return owner.Pseudonym(a.Link, a.Peer) }

// Mark returns the payload of a foreign message with metadata.bridge set, so that every reader sees which peer sent it
// and whether the peer proved its identity (AM-16). It replaces any metadata.bridge that the foreign side wrote.
func (a Address) Mark(payload wire.Value, verified bool) wire.Value {
	meta, _ := payload.Get("metadata")
	return payload.With("metadata", meta.With("bridge", wire.Obj(
		wire.Member{Key: "kind", Value: wire.Text(a.Kind)},
		wire.Member{Key: "link", Value: wire.Text(a.Link)},
		wire.Member{Key: "peer", Value: wire.Text(a.Peer)},
		wire.Member{Key: "verified", Value: wire.Bool(verified)},
	)))
}

func validKind(s string) bool {
	return s != "" && len(s) <= maxKind && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func validLink(s string) bool {
	return s != "" && len(s) <= maxLink && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func validPeer(s string) bool {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	return s != "" && len(s) <= maxPeer && utf8.ValidString(s) && !strings.ContainsFunc(s, bad)
}
