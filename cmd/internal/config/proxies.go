package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// trustedProxies are the networks of reverse proxies, or the word none.
type trustedProxies []netip.Prefix

// UnmarshalText reads what is not a YAML list: none, or networks with commas.
func (t *trustedProxies) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*t = trustedProxies{{}} // a prefix that contains nothing
		return nil
	}
	var list trustedProxies
	for one := range strings.SplitSeq(string(text), ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		p, err := netip.ParsePrefix(one)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	*t = list
	return nil
}

// Listed returns the networks that were named.
func (t trustedProxies) Listed() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(t), func(p netip.Prefix) bool { return !p.IsValid() })
}

// ProxyHere reports whether connections from this machine are taken for those of the reverse proxy (AM-43): nothing else
// was said, and nobody else can connect, or plain HTTP is for the proxy alone.
func (c Config) ProxyHere() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	alone := err == nil && loopback(host) || strings.HasPrefix(c.PublicURL, "https:")
	return c.Public() && !c.TLS.On() && len(c.Network.TrustedProxies) == 0 && alone
}
