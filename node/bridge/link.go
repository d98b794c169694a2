package bridge

import (
	"errors"
	"fmt"
	"net/url"
)

// Link is one configured connection to a foreign network. No secret stands in it.
type Link struct {
	Name string `yaml:"name"` // unique; part of addresses
	Kind string `yaml:"kind"` // of the bridge: mess, mew, moltspeak, agentrelay

	URL         string `yaml:"url,omitempty"` // exactly one of URL and Dir
	Dir         string `yaml:"dir,omitempty"`
	Space       string `yaml:"space,omitempty"`
	Participant string `yaml:"participant,omitempty"`
	AgentID     string `yaml:"agent_id,omitempty"`
	Exchange    string `yaml:"exchange,omitempty"`
	RegistryURL string `yaml:"registry_url,omitempty"`

	TokenFile string `yaml:"token_file,omitempty"` // at most one of the two; cmd reads it
	TokenEnv  string `yaml:"token_env,omitempty"`

	Policy  LinkPolicy        `yaml:"policy,omitempty"`
	Options map[string]string `yaml:"options,omitempty"` // what one kind alone needs; its bridge checks them
}

// LinkPolicy is what the owner allows a link. The zero value is the careful one: the node's own access mode, nothing
// routed, offered, broadcast or passed on.
type LinkPolicy struct {
	Access    string     `yaml:"access,omitempty"`    // open, allowlist or approval; empty: approval
	Route     string     `yaml:"route,omitempty"`     // where unserved work goes: "directory"; empty: nowhere
	Encrypt   string     `yaml:"encrypt,omitempty"`   // as the kind defines it; empty: its default
	Filter    LinkFilter `yaml:"filter,omitempty"`    // what is taken in
	Tools     []string   `yaml:"tools,omitempty"`     // what the foreign side may call: discover, send, inbox
	Broadcast bool       `yaml:"broadcast,omitempty"` // messages to everybody are read
	Transit   []Transit  `yaml:"transit,omitempty"`   // what may be passed on; nothing without a rule
}

// LinkFilter takes in what matches every list that is not empty.
type LinkFilter struct {
	Types    []string `yaml:"types,omitempty"`
	From     []string `yaml:"from,omitempty"`
	Keywords []string `yaml:"keywords,omitempty"`
}

// Transit lets messages pass from one link to another; it names both. "mesh" is the native side.
type Transit struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
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
	if p.Route != "" && p.Route != "directory" {
		return fmt.Errorf("policy.route %q: must be directory or empty", p.Route)
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
