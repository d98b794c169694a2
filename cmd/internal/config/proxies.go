package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// trustedProxies holds the networks of reverse proxies, or the word none as a single invalid prefix.
type trustedProxies []netip.Prefix

// UnmarshalText reads a text that is not a YAML list: the word none, or networks separated by commas.
func (t *trustedProxies) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*t = trustedProxies{{}} // an invalid prefix, which contains no address
		return nil
	}
	var list trustedProxies
	for entry := range strings.SplitSeq(string(text), ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		p, err := netip.ParsePrefix(entry)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	*t = list
	return nil
}

// Prefixes returns the networks that the user named.
func (t trustedProxies) Prefixes() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(t), func(p netip.Prefix) bool { return !p.IsValid() })
}

// TrustsLocalProxy reports whether connections from this machine count as the reverse proxy's (AM-43). They do in the
// public profile if trusted_proxies is not set, this process does not serve TLS itself, and only the proxy can connect
// in plain HTTP: because the listener is on loopback, or because the public URL is https.
func (c Config) TrustsLocalProxy() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	onlyProxy := err == nil && httpapi.LoopbackHost(host) || strings.HasPrefix(c.PublicURL, "https:")
	return c.Public() && !c.TLS.On() && len(c.Network.TrustedProxies) == 0 && onlyProxy
}
