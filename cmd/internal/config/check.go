package config

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// LoadAndCheck reads and checks the configuration. Its error has an exit code. It is the error of [Load], or
// names all problems that [Config.Check] finds, with their lines in the file. kinds are the other networks to which the
// configuration may have links.
func (s Source) LoadAndCheck(kinds []bridge.Kind) (Config, error) {
	c, err := Load(s)
	if err == nil {
		err = s.addLines(c.Check(kinds))
	}
	if err != nil {
		return c, exit.Fail(exit.Config, err)
	}
	return c, nil
}

// Check returns all problems with the values, joined, or nil. kinds is as in [Source.LoadAndCheck].
func (c Config) Check(kinds []bridge.Kind) error {
	var p problems
	p.checkTable(reflect.ValueOf(c), "")
	c.checkProcess(&p)
	c.checkCard(&p)
	for i, h := range c.Hooks {
		h.check(&p, fmt.Sprintf("hooks[%d]", i))
	}
	c.Guard.check(&p)
	for i, r := range c.Hold {
		p.checkPattern(fmt.Sprintf("hold[%d].intent", i), r.Intent)
	}
	for i, r := range c.Policy().Hold {
		if why := r.CheckMandate(); why != "" {
			p.add(fmt.Sprintf("hold[%d]", i), why)
		}
		if r.Unless.Calendar != "" && !c.Calendar.On() {
			p.add(fmt.Sprintf("hold[%d].unless.calendar", i), "needs a calendar")
		}
	}
	p.checkAgents("access.allow", c.Access.Allow)
	p.checkAgents("access.block", c.Access.Block)
	for i, pattern := range c.Outgoing.Approve {
		p.checkPattern(fmt.Sprintf("outgoing.approve[%d]", i), pattern)
	}
	ids, _ := c.Exempt()
	p.checkPrincipals("limits.exempt", ids)
	for i, s := range c.Schemas {
		if !wire.Intent(s.Intent).IsCustom() {
			p.add(fmt.Sprintf("schemas[%d].intent", i), fmt.Sprintf("%q is not a custom intent such as com.example.invoice", s.Intent))
		}
	}
	c.checkLinks(&p, kinds)
	c.MESS.check(&p)
	c.MEW.check(&p)
	c.MoltSpeak.check(&p)
	c.Calendar.check(&p)
	if len([]rune(c.Site.Name)) > 100 || len([]rune(c.Site.Contact)) > 200 || len([]rune(c.Site.Terms)) > 20_000 {
		p.add("site", "name must be at most 100 characters, contact 200, and terms 20000")
	}
	if _, err := zone.Load(c.Owner.Zone); err != nil {
		p.add("owner.zone", err.Error())
	}
	c.Notify.check(&p, c.OwnerAPI.Listen)
	c.Store.check(&p)
	return errors.Join(p...)
}

// checkTable checks each value of a table against the tags of its field.
func (p *problems) checkTable(v reflect.Value, prefix string) {
	for i := range v.NumField() {
		tags := v.Type().Field(i).Tag
		p.checkTags(v.Field(i), tags, join(prefix, tags.Get("key")))
	}
}

func (p *problems) checkTags(v reflect.Value, tags reflect.StructTag, key string) {
	switch {
	case isTable(v.Type()):
		p.checkTable(v, key)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			p.checkTags(v.Index(i), tags, fmt.Sprintf("%s[%d]", key, i))
		}
	case v.CanInt():
		bound := reflect.New(v.Type()).Elem()
		if setScalar(tags.Get("min"), bound) == nil && v.Int() < bound.Int() {
			p.add(key, "must be at least "+tags.Get("min")+"; remove the key for its default")
		}
		if setScalar(tags.Get("max"), bound) == nil && v.Int() > bound.Int() {
			p.add(key, "must be at most "+tags.Get("max"))
		}
	case tags.Get("oneof") != "":
		p.checkOneOf(key, v.String(), strings.Split(tags.Get("oneof"), ",")...)
	}
}

// checkProcess checks the keys that describe the process itself: its roles, its listeners, and its directories.
func (c Config) checkProcess(p *problems) {
	host, ok := p.checkAddress("listen", c.Listen)
	if ok && !c.Public() && !httpapi.LoopbackHost(host) {
		p.add("listen", fmt.Sprintf("%s is not loopback: set public_url to the URL under which others reach you, or listen on 127.0.0.1", c.Listen)) // AM-82
	}
	if c.Public() {
		c.checkPublicURL(p)
	}
	c.checkTLS(p)
	if len(c.Roles) == 0 {
		p.add("roles", "must name directory, node or both")
	}
	p.checkURLs("directories", c.Directories)
	p.checkURLs("discovery.referrals", c.Discovery.Referrals)
	if c.ViaRelay != "" {
		p.checkURLs("via_relay", []string{c.ViaRelay})
		if c.Card.Endpoint != "" {
			p.add("via_relay", "the mailbox is the endpoint: leave card.endpoint empty")
		}
	}
	if c.OwnerAPI.Listen != "" {
		if host, ok := p.checkAddress("owner_api.listen", c.OwnerAPI.Listen); ok && !httpapi.LoopbackHost(host) {
			p.add("owner_api.listen", "must be a loopback address and a port, such as 127.0.0.1:3149") // AM-77
		}
	}
	if c.OwnerAPI.Phone && (!strings.HasPrefix(c.PublicURL, "https://") || !c.Has(RoleNode)) {
		p.add("owner_api.phone", "needs a node with a public_url that begins with https://, because passkeys work only there")
	}
	if c.Network.ForwardListen != "" {
		if host, ok := p.checkAddress("network.forward_listen", c.Network.ForwardListen); ok && (host == "" || isUnspecified(host)) {
			p.add("network.forward_listen", "must be the address at which other processes reach this one, and a port, such as 10.0.0.5:7201")
		}
	}
	for _, origin := range c.Network.CORSOrigins {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
			p.add("network.cors_origins", fmt.Sprintf("%q is not an origin such as https://app.example.com", origin))
		}
	}
	if c.AgentDoor.TokenFile != "" && c.OwnerAPI.Listen == "" {
		p.add("agent_door.token_file", "needs owner_api.listen, such as 127.0.0.1:3149")
	}
}

// isUnspecified reports whether a host is 0.0.0.0 or [::], which stands for every address of the machine.
func isUnspecified(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsUnspecified()
}

func (p *problems) checkURLs(key string, urls []string) {
	for _, text := range urls {
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			p.add(key, fmt.Sprintf("%q is not an http or https URL", text))
		}
	}
}

// DirectoryURLs returns the directories that the configuration names. The one in via_relay is the first.
func (c Config) DirectoryURLs() []string {
	if relay := strings.TrimRight(c.ViaRelay, "/"); relay != "" {
		rest := slices.DeleteFunc(slices.Clone(c.Directories), func(d string) bool { return strings.TrimRight(d, "/") == relay })
		return append([]string{relay}, rest...)
	}
	return c.Directories
}

func (c Config) checkPublicURL(p *problems) {
	u, err := url.Parse(c.PublicURL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		p.add("public_url", "must be an absolute URL without user, query and fragment")
	case u.Scheme == "https":
	case u.Scheme != "http" || !c.isPrivateHost(u.Hostname()):
		p.add("public_url", "must be https; http works only for an address inside network.allow_private") // AM-80
	}
}

// isPrivateHost reports whether host is an address in network.allow_private, for which http is allowed.
func (c Config) isPrivateHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(c.Network.AllowPrivate, func(n netip.Prefix) bool { return n.Contains(addr) })
}

func (c Config) checkCard(p *problems) {
	if n := len([]rune(c.Name)); n < 1 || n > 256 {
		p.add("name", "must be 1 to 256 characters")
	}
	if len([]rune(c.Description)) > 1024 {
		p.add("description", "must be at most 1024 characters")
	}
	if len(c.Card.Capabilities) == 0 || len(c.Card.Capabilities) > 64 {
		p.add("card.capabilities", "must have 1 to 64 entries")
	}
	if len(c.Card.Intents) == 0 || len(c.Card.Intents) > 64 {
		p.add("card.intents", "must have 1 to 64 entries")
	}
	for _, i := range c.Card.Intents {
		if in := wire.Intent(i); !in.IsCustom() && !slices.Contains(wire.StandardIntents(), in) {
			p.add("card.intents", fmt.Sprintf("%q is neither a standard intent nor a reverse-domain name", i))
		}
	}
}

func (h Hook) check(p *problems, key string) {
	p.checkPattern(key+".intent", h.Intent)
	if h.targets() != 1 {
		p.add(key, "needs exactly one of exec, webhook, a2a, openclaw and inbox")
	}
	h.checkTarget(p, key)
}

// targets counts the places that get the messages.
func (h Hook) targets() int {
	n := 0
	for _, set := range []bool{len(h.Exec) > 0, h.Webhook != "", h.A2A != "", h.OpenClaw != "", h.Inbox} {
		if set {
			n++
		}
	}
	return n
}

// checkTarget checks what the target needs.
func (h Hook) checkTarget(p *problems, key string) {
	if h.Webhook+h.OpenClaw != "" && h.SecretFile == "" {
		p.add(key, "needs secret_file")
	}
	if len(h.Exec) == 0 && (h.User != "" || len(h.Environment) > 0) {
		p.add(key, "has user or environment, which only exec uses")
	}
	for _, v := range h.Environment {
		name, _, ok := strings.Cut(v, "=")
		switch {
		case !ok || name == "" || strings.ContainsRune(v, 0):
			p.add(key+".environment", fmt.Sprintf("%q is not NAME=VALUE", v))
		case strings.HasPrefix(name, "AGENTMESH_"):
			p.add(key+".environment", fmt.Sprintf("cannot set %s: the commands of a hook use the agent's door", name))
		}
	}
	if u, err := url.Parse(h.A2A); h.A2A != "" && (err != nil || u.Host == "") {
		p.add(key+".a2a", "must be a URL such as http://127.0.0.1:18789/a2a/v1")
	}
}

// OpenGuards returns the keys that switch off a protection or weaken it (AM-82), each as "key: consequence".
func (c Config) OpenGuards() []string {
	def := Default()
	var out []string
	add := func(isOpen bool, format string, args ...any) {
		if isOpen {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(c.Access.Mode == "open", "access.mode: any registered agent may write")
	add(c.Calendar.Accept && c.Calendar.Strangers, "calendar.strangers: anyone who reaches the node may fill free time")
	for _, r := range c.Hold {
		add(r.Hold == "never", "hold: %s never waits for the owner", r.Intent)
	}
	for _, r := range c.Policy().Hold {
		add(r.Unless.IsOn(), "hold: %s", r.Words())
	}
	add(c.Limits.MessagesNewConversations == 0, "limits.messages_new_conversations: off")
	add(c.Limits.MessagesConversation == 0, "limits.messages_conversation: off")
	add(c.Limits.MessagesTotal == 0, "limits.messages_total: off")
	for _, s := range c.Autonomy.Bounds().Settings() {
		add(s.Most < 0, "autonomy.%s: your agent goes on without asking you", s.Key)
	}
	add(c.Limits.A2AContexts == 0, "limits.a2a_contexts: off")
	add(len(c.Limits.Exempt) > 0, "limits.exempt: %d agents, links or networks have no limits", len(c.Limits.Exempt))
	for _, l := range c.Links {
		add(l.Policy.Access == "open", "links: everybody behind %s may write", l.Name)
		add(l.Policy.Limits.Off(), "links: a limit of %s is off", l.Name)
	}
	add(c.Window.Past > def.Window.Past, "window.past: messages that are up to %s old are accepted", c.Window.Past)
	add(c.Window.Future > def.Window.Future, "window.future: messages from up to %s in the future are accepted", c.Window.Future)
	add(len(c.Network.AllowPrivate) > 0, "network.allow_private: cards may direct requests, also over http, to %s", formatPrefixes(c.Network.AllowPrivate))
	add(len(c.Network.CORSOrigins) > 0, "network.cors_origins: pages of %s may call the listener", strings.Join(c.Network.CORSOrigins, ", "))
	add(c.A2A.Serve == "on" && c.A2A.Anonymous, "a2a.anonymous: callers without a token may write, and see each other's messages and answers")
	add(c.MoltSpeak.Registry == "on" && c.MoltSpeak.RegistryAuth == "none", "moltspeak.registry_auth: anyone may change and delete every entry of the registry")
	add(c.Store.AllowUnsafe, "store.allow_unsafe: a crash of the database server may lose acknowledged messages")
	add(!c.Public() && c.Registration.Mode != def.Registration.Mode, "registration.mode: without a public_url it has no effect, everybody on this machine may register")
	if c.Public() {
		add(c.Limits.RequestsPerMinute == 0, "limits.requests_per_minute: off")
		add(c.Registration.CardsPerToken == 0, "registration.cards_per_token: off")
		add(c.Registration.CardsPerHost == 0, "registration.cards_per_host: off")
		add(c.Registration.PerHour == 0, "registration.per_hour: off")
		add(c.Network.MaxConnections == 0, "network.max_connections: off")
		add(c.Network.MaxConnectionsPerAddress == 0, "network.max_connections_per_address: off")
		add(c.AgentRelay.Serve == "on" && c.AgentRelay.Registration == "open", "agentrelay.registration: anyone may use the relay")
		add(c.MESS.Serve == "on" && c.MESS.Registration == "open", "mess.registration: anyone may claim requests")
		proxies := c.Network.TrustedProxies.Prefixes()
		add(len(proxies) > 0, "network.trusted_proxies: X-Forwarded-For from %s is trusted", formatPrefixes(proxies))
	}
	return out
}

func formatPrefixes(list []netip.Prefix) string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = p.String()
	}
	return strings.Join(out, ", ")
}

// problems collects everything that a check finds.
type problems []error

func (p *problems) add(key, reason string) { *p = append(*p, problem{key, reason}) }

// checkAddress checks an address to listen on and returns its host.
func (p *problems) checkAddress(key, address string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		p.add(key, fmt.Sprintf("%q is not host:port, such as 127.0.0.1:3141", address))
		return "", false
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		p.add(key, fmt.Sprintf("%q is not a port, which is a number up to 65535", port))
		return "", false
	}
	return host, true
}

// checkPattern checks a pattern of intents, which must not be empty.
func (p *problems) checkPattern(key, value string) {
	if value == "" {
		p.add(key, "is missing")
	} else if err := acl.ValidPattern(value); err != nil {
		p.add(key, err.Error())
	}
}

func (p *problems) checkOneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.add(key, fmt.Sprintf("%q is not one of %s", value, strings.TrimPrefix(strings.Join(allowed, ", "), ", "))) // "" comes first where it is allowed
	}
}

// checkPrincipals checks the ids in limits.exempt: agents, links, and foreign peers.
func (p *problems) checkPrincipals(key string, ids []string) {
	for _, id := range ids {
		if !wire.AgentID(id).Valid() && !bridge.ValidPrincipal(id) {
			p.add(key, fmt.Sprintf("%q is none of these: an agent id (am_…), a link (mew:lab), a foreign peer (agentrelay:free/owl), an address or a CIDR", id))
		}
	}
}

func (p *problems) checkAgents(key string, ids []string) {
	for _, id := range ids {
		if !wire.AgentID(id).Valid() {
			p.add(key, fmt.Sprintf("%q is not an agent id (am_…)", id))
		}
	}
}
