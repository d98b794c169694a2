package bridge

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Link is one configured connection to a foreign network. It contains no secret.
type Link struct {
	// Unique name. It is part of the addresses of the peers behind the link, so renaming the link makes them new
	// peers.
	Name string `key:"name"`
	// mess, mew, moltspeak, agentrelay or a2a.
	Kind string `key:"kind"`

	// Where the foreign network is. Set exactly one of url and dir.
	URL string `key:"url"`
	// A folder that the foreign side shares with the node (mess).
	Dir string `key:"dir"`
	// The space to join (mew).
	Space string `key:"space"`
	// The name under which the node takes part (mew).
	Participant string `key:"participant"`
	// The id of the node on the foreign network (agentrelay, moltspeak).
	AgentID string `key:"agent_id"`
	// The id of the exchange (mess).
	Exchange string `key:"exchange"`
	// A registry of the foreign network (moltspeak).
	RegistryURL string `key:"registry_url"`

	// File with the token or key that the foreign side requires.
	TokenFile string `key:"token_file"`

	// The permissions of the link.
	Policy LinkPolicy `key:"policy"`
	// Options that only one kind of link has; see docs/bridges.
	Options map[string]string `key:"options"`
}

// LinkPolicy is what the owner allows a link. The zero value is the careful one: every stranger waits for the owner,
// and nothing is offered, broadcast or passed on. The node enforces access for every kind. Each kind honors some of
// the other keys ([Kind.Honors]); setting a key that it does not honor is an error.
type LinkPolicy struct {
	// Access mode for peers behind the link: open, allowlist or approval. Empty: approval, or allowlist if access.mode
	// is allowlist. Danger: open lets everybody on the foreign network reach your hooks.
	Access string `key:"access"`
	// always: encrypt every message (moltspeak). By default, the class of a message decides.
	Encrypt string `key:"encrypt"`
	// Filter for incoming messages (mew, agentrelay).
	Filter LinkFilter `key:"filter"`
	// Tools that the foreign side may call: discover, send, inbox (mew).
	Tools []string `key:"tools"`
	// Whether the node accepts messages that are addressed to everybody (mew, agentrelay).
	Broadcast bool `key:"broadcast"`
	// Limits on what comes over the link (mew).
	Limits LinkLimits `key:"limits"`
}

// LinkLimits bounds what comes over one link. The limits apply to the link as a whole and replace the node's own
// message limits (AM-41), so that traffic on a foreign network uses up nothing that other agents need.
type LinkLimits struct {
	// Messages per minute. Empty: 60.
	Messages Limit `key:"messages_per_minute"`
	// Tool calls per minute. Each call also counts as a message. Empty: 30.
	ToolCalls Limit `key:"tool_calls_per_minute"`
	// Conversations that the foreign side opened and that are still open. Empty: 200.
	Conversations Limit `key:"open_conversations"`
}

// LinkFilter admits messages that match every list that is not empty.
type LinkFilter struct {
	// Kinds of foreign messages.
	Types []string `key:"types"`
	// Names of foreign senders.
	From []string `key:"from"`
	// Words; the message must contain at least one.
	Keywords []string `key:"keywords"`
}

// Admits reports whether the filter admits a message. It calls text, for the words of the message, only if it has to.
func (f LinkFilter) Admits(kind, from string, text func() string) bool {
	has := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	switch {
	case !has(f.Types, kind), !has(f.From, from):
		return false
	case len(f.Keywords) == 0:
		return true
	}
	words := strings.ToLower(text())
	return slices.ContainsFunc(f.Keywords, func(w string) bool { return strings.Contains(words, strings.ToLower(w)) })
}

// The tools that a link may offer to its foreign side.
const (
	ToolDiscover = "discover" // search the node's directories
	ToolSend     = "send"     // write to an agent, under the owner's rules for what leaves
	ToolInbox    = "inbox"    // read what came over this link
)

// Tools returns all tools that a link may offer.
func Tools() []string { return []string{ToolDiscover, ToolSend, ToolInbox} }

// LinkState is the state of the connection of a link.
type LinkState string

const (
	LinkConnecting LinkState = "connecting" // never connected yet, or trying again
	LinkUp         LinkState = "up"
	LinkDown       LinkState = "down" // the foreign side refused; the node does not retry until the owner acts
)

// LinkStatus is what the owner sees of a link.
type LinkStatus struct {
	Name  string    `json:"name"`
	Kind  string    `json:"kind"`
	To    string    `json:"to"` // URL or folder
	State LinkState `json:"state"`
	Since time.Time `json:"since,omitzero"` // of the state; zero while nothing has tried to connect
	Error string    `json:"error,omitempty"`
	Peers int       `json:"peers"` // how many peers the link has seen
	Retry time.Time `json:"retry_at,omitzero"`
}

// Set changes the state and clears Retry. fault is what the owner sees of the last failure.
func (s *LinkStatus) Set(state LinkState, fault string) {
	if s.State != state || s.Since.IsZero() {
		s.State, s.Since = state, time.Now().UTC()
	}
	s.Error, s.Retry = fault, time.Time{}
}

// LinkFault is why a link cannot work until its configuration changes: the same attempt would fail again.
type LinkFault struct {
	Why error
	Fix string // empty if Why says it
}

func (f *LinkFault) Error() string {
	if f.Fix == "" {
		return f.Why.Error()
	}
	return f.Why.Error() + ": " + f.Fix
}

func (f *LinkFault) Unwrap() error { return f.Why }

// Validate checks the form of a link in a configuration. It knows no particular kind and none of the options.
func (l Link) Validate() error {
	switch {
	case !validLink(l.Name):
		return fmt.Errorf("link %q: name must be 1 to %d characters from a-z, 0-9 and -, and must not begin with -", l.Name, maxLink)
	case !validKind(l.Kind):
		return fmt.Errorf("link %s: kind must be 1 to %d characters from a-z and 0-9", l.Name, maxKind)
	case (l.URL == "") == (l.Dir == ""):
		return fmt.Errorf("link %s: needs url or dir, and not both", l.Name)
	}
	if err := cmp.Or(checkURL("url", l.URL), checkURL("registry_url", l.RegistryURL), l.Policy.validate()); err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	return nil
}

// checkURL checks the value s of a configuration key. It returns an error for a URL that is not absolute, or that
// contains a user name or password: a configuration holds no secrets.
func checkURL(key, s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "":
		return fmt.Errorf("%s must be absolute", key)
	case u.User != nil:
		return fmt.Errorf("%s must not contain a user name or a password: set token_file instead", key)
	}
	return nil
}

func (p LinkPolicy) validate() error {
	switch p.Access {
	case "", "open", "allowlist", "approval":
	default:
		return fmt.Errorf("policy.access %q: must be open, allowlist or approval", p.Access)
	}
	for _, t := range p.Tools {
		if !slices.Contains(Tools(), t) {
			return fmt.Errorf("policy.tools %q: must be one of %s", t, strings.Join(Tools(), ", "))
		}
	}
	return nil
}

// ValidateLinks checks each link, and that all names are different, because foreign peers get their agent ids from them.
func ValidateLinks(links []Link) error {
	seen := make(map[string]bool, len(links))
	for _, l := range links {
		if err := l.Validate(); err != nil {
			return err
		}
		if seen[l.Name] {
			return fmt.Errorf("link %s: the name is used twice", l.Name)
		}
		seen[l.Name] = true
	}
	return nil
}
