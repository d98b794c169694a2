package main

import (
	"fmt"
	"strings"
)

// settings turns the flags into settings, the fixed ones first, so that --set has the last word.
func (g Globals) settings() ([]setting, error) {
	var out []setting
	fixed := func(flag, key string, value *string) {
		if value != nil {
			out = append(out, setting{key: key, value: *value, source: flag})
		}
	}
	if g.TLS != nil {
		expanded, err := forName(*g.TLS)
		if err != nil {
			return nil, err
		}
		out = expanded
	}
	fixed("--tls-cert", "tls.cert_file", g.TLSCert)
	fixed("--tls-key", "tls.key_file", g.TLSKey)
	fixed("--listen", "listen", g.Listen)
	fixed("--public-url", "public_url", g.PublicURL)
	fixed("--name", "name", g.Name)
	fixed("--roles", "roles", g.Roles)
	fixed("--via-relay", "via_relay", g.ViaRelay)
	if len(g.Directory) > 0 {
		out = append(out, setting{key: "directories", value: strings.Join(g.Directory, ","), source: "--directory"})
	}
	for _, s := range g.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fail(exitUsage, fmt.Errorf("--set %s: write it as key=value", s))
		}
		out = append(out, setting{key: key, value: value, source: "--set " + key})
	}
	return out, nil
}
