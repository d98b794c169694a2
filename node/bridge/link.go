package bridge

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Link is one configured connection to a foreign network. No secret stands in it.
type Link struct {
	// Unique; part of the addresses of peers behind the link, so a new name makes new peers of them.
	Name string `key:"name"`
	// mess, mew, moltspeak or agentrelay.
	Kind string `key:"kind"`

	// Where the foreign network is. Exactly one of url and dir.
	URL string `key:"url"`
	// A folder that the foreign side shares with the node (mess).
	Dir string `key:"dir"`
	// The space that is joined (mew).
	Space string `key:"space"`
	// The name under which the node takes part (mew).
	Participant string `key:"participant"`
	// The id under which the node is known there (agentrelay, moltspeak).
	AgentID string `key:"agent_id"`
	// The exchange (mess).
	Exchange string `key:"exchange"`
	// A registry of the foreign network (moltspeak).
	RegistryURL string `key:"registry_url"`

	// File with the token or key that the foreign side asks for.
	TokenFile string `key:"token_file"`
	// Environment variable with the same content. At most one of the two.
	TokenEnv string `key:"token_env"`

	// What the owner allows the link.
	Policy LinkPolicy `key:"policy"`
	// What one kind alone needs; docs/bridges names them.
	Options map[string]string `key:"options"`
}

// LinkPolicy is what the owner allows a link. The zero value is the careful one: every stranger waits for the owner, and
// nothing is offered, broadcast or passed on. The node enforces access for every kind; each kind honors some of the other
// keys ([Kind.Honors]), and a key that it does not honor is an error.
type LinkPolicy struct {
	// Access mode for peers behind the link: open, allowlist or approval. Empty: approval, or allowlist if access.mode is allowlist.
	// Danger: open lets everybody on the foreign network reach your hooks.
	Access string `key:"access"`
	// No kind of link uses it, so setting it is an error. mess.route is the key for what your own MESS exchange cannot do.
	Route string `key:"route"`
	// Whether messages are encrypted. agentrelay: always, when_known (the default) or never. moltspeak: always; the default
	// encrypts what the class of a message asks for.
	Encrypt string `key:"encrypt"`
	// Filter of the messages that are taken in (mew, agentrelay).
	Filter LinkFilter `key:"filter"`
	// Tools that the foreign side may call: discover, send, inbox (mew).
	Tools []string `key:"tools"`
	// Messages to everybody are read (mew, agentrelay).
	Broadcast bool `key:"broadcast"`
	// How much may come over the link (mew).
	Limits LinkLimits `key:"limits"`
	// Rules for passing messages on to another network (mew). Nothing is passed on without a rule.
	Transit []Transit `key:"transit"`
}

// LinkLimits bounds what comes over a link. They hold for the whole link, in place of the node's own message limits
// (AM-41), so that what happens on a foreign network uses up nothing that other agents need.
type LinkLimits struct {
	// Messages a minute. Empty: 60.
	Messages Limit `key:"messages_per_minute"`
	// Tool calls a minute, each of which is a message as well. Empty: 30.
	ToolCalls Limit `key:"tool_calls_per_minute"`
	// Conversations that the foreign side opened and that are still open. Empty: 200.
	Conversations Limit `key:"open_conversations"`
}

// LinkFilter takes in what matches every list that is not empty.
type LinkFilter struct {
	// Kinds of foreign messages.
	Types []string `key:"types"`
	// Names of foreign senders.
	From []string `key:"from"`
	// Words of which the message has one.
	Keywords []string `key:"keywords"`
}

// Transit lets messages pass from one link to another. "mesh" is the native side.
type Transit struct {
	// Name of the link that they come from.
	From string `key:"from"`
	// Name of the link that they go to.
	To string `key:"to"`
}

// The tools that a link may offer to its foreign side.
const (
	ToolDiscover = "discover" // search the node's directories
	ToolSend     = "send"     // write to an agent, under the owner's rules for what leaves
	ToolInbox    = "inbox"    // read what came over this link
)

// Tools lists them.
func Tools() []string { return []string{ToolDiscover, ToolSend, ToolInbox} }

// LinkState is how a link stands.
type LinkState string

const (
	LinkConnecting LinkState = "connecting" // never up yet, or trying again
	LinkUp         LinkState = "up"
	LinkDown       LinkState = "down" // the foreign side refused; nothing is tried until the owner acts
)

// LinkStatus is what the owner is shown of a link.
type LinkStatus struct {
	Name  string    `json:"name"`
	Kind  string    `json:"kind"`
	To    string    `json:"to"` // URL or folder
	State LinkState `json:"state"`
	Since time.Time `json:"since,omitzero"` // of the state
	Error string    `json:"error,omitempty"`
	Peers int       `json:"peers"` // seen there
	Retry time.Time `json:"retry_at,omitzero"`
}

// Validate says what is wrong with a link that came from a configuration file. Whether its kind is there, and its
// options, are for the bridge to say.
func (l Link) Validate() error {
	switch {
	case !validLink(l.Name):
		return fmt.Errorf("link %q: name must be 1 to %d of a-z 0-9 -", l.Name, maxLink)
	case !validKind(l.Kind):
		return fmt.Errorf("link %s: kind must be 1 to %d of a-z 0-9", l.Name, maxKind)
	case (l.URL == "") == (l.Dir == ""):
		return fmt.Errorf("link %s: needs url or dir, and not both", l.Name)
	case l.TokenFile != "" && l.TokenEnv != "":
		return fmt.Errorf("link %s: token_file or token_env, not both", l.Name)
	}
	for _, address := range []string{l.URL, l.RegistryURL} {
		if err := checkURL(address); err != nil {
			return fmt.Errorf("link %s: %w", l.Name, err)
		}
	}
	if err := l.Policy.validate(); err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	return nil
}

// checkURL looks for what makes a URL unfit for a configuration, above all a secret in it.
func checkURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "":
		return errors.New("url must be absolute")
	case u.User != nil:
		return errors.New("url must have no user info: name a token_file or a token_env")
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
	for _, t := range p.Transit {
		if t.From == "" || t.To == "" {
			return errors.New("policy.transit: each rule names from and to")
		}
	}
	return nil
}

// ValidateLinks checks links and that no two have the same name, which their pseudonyms rest on.
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
