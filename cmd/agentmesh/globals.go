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

// settings turns the flags of the command into settings of configuration keys. A later setting overrides an earlier
// one: the flags for single keys override --tls, and --set overrides both.
func (a *app) settings() ([]config.Setting, error) {
	flags := a.server
	var out []config.Setting
	add := func(flag, key string, value *string) {
		if value != nil {
			out = append(out, config.Setting{Key: key, Value: *value, From: flag})
		}
	}
	if flags.TLS != nil {
		var err error
		if out, err = expandTLS(*flags.TLS); err != nil {
			return nil, err
		}
	}
	add("--tls-cert", "tls.cert_file", flags.TLSCert)
	add("--tls-key", "tls.key_file", flags.TLSKey)
	add("--listen", "listen", flags.Listen)
	add("--public-url", "public_url", flags.PublicURL)
	add("--name", "name", flags.Name)
	add("--roles", "roles", flags.Roles)
	add("--via-relay", "via_relay", flags.ViaRelay)
	if len(flags.Directory) > 0 {
		out = append(out, config.Setting{Key: "directories", Value: strings.Join(flags.Directory, ","), From: "--directory"})
	}
	for _, s := range a.globals.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, exit.Fail(exit.Usage, fmt.Errorf("--set %s: write it as key=value", s))
		}
		out = append(out, config.Setting{Key: key, Value: value, From: "--set " + key})
	}
	return out, nil
}

// expandTLS returns the settings that --tls NAME stands for.
func expandTLS(name string) ([]config.Setting, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "443"
	}
	if u, err := url.Parse("https://" + name); err != nil || u.Host != name || host == "" {
		return nil, exit.FailHint(exit.Usage, fmt.Errorf("--tls %s is not a host name", terminal.Clean(name)), "write only the name, such as mesh.example.org")
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
