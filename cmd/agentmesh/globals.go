package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// settings turns the flags into settings, the fixed ones first, so that --set has the last word.
func (g Globals) settings() ([]config.Setting, error) {
	var out []config.Setting
	fixed := func(flag, key string, value *string) {
		if value != nil {
			out = append(out, config.Setting{Key: key, Value: *value, From: flag})
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
		out = append(out, config.Setting{Key: "directories", Value: strings.Join(g.Directory, ","), From: "--directory"})
	}
	for _, s := range g.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, exit.Fail(exit.Usage, fmt.Errorf("--set %s: write it as key=value", s))
		}
		out = append(out, config.Setting{Key: key, Value: value, From: "--set " + key})
	}
	return out, nil
}

// forName is what --tls NAME stands for.
func forName(name string) ([]config.Setting, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "443"
	}
	if u, err := url.Parse("https://" + name); err != nil || u.Host != name || host == "" {
		return nil, exit.FailHint(exit.Usage, fmt.Errorf("--tls %s is no name", terminal.Clean(name)), "write the name alone, such as mesh.example.org")
	}
	var out []config.Setting
	for _, s := range []struct{ key, value string }{
		{"public_url", "https://" + strings.TrimSuffix(name, ":443")}, {"listen", ":" + port}, {"tls.acme", "true"},
		{"tls.accept_terms", "true"}, {"tls.plain_listen", ":80"},
	} {
		out = append(out, config.Setting{Key: s.key, Value: s.value, From: "--tls"})
	}
	return out, nil
}
