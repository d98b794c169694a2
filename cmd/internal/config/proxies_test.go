package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestTrustedProxies: the key accepts a list or the word none, in the file, the environment and flags.
func TestTrustedProxies(t *testing.T) {
	two := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::/8")}
	for _, tt := range []struct {
		text string // of the file; of a flag, without the key
		want []netip.Prefix
		none bool
		bad  bool
	}{
		{text: "[10.0.0.1/32, 'fd00::/8']", want: two},
		{text: "10.0.0.1/32, fd00::/8", want: two},
		{text: "none", none: true},
		{text: "[]"},
		{text: "nobody", bad: true},
		{text: "[none]", bad: true},
		{text: "none, 10.0.0.1/32", bad: true},
		{text: "10.0.0.1", bad: true},
		{text: "{a: b}", bad: true},
	} {
		file := Default()
		err := loadFile(reflect.ValueOf(&file).Elem(), "mesh.yaml", []byte("network: {trusted_proxies: "+tt.text+"}\n"))
		if strings.Contains(tt.text, ", ") && tt.text[0] != '[' { // commas mean something else in a YAML table
			err = loadFile(reflect.ValueOf(&file).Elem(), "mesh.yaml", []byte("network:\n  trusted_proxies: "+tt.text+"\n"))
		}
		flag, flagErr := Load(Source{File: "none", Settings: []Setting{{"network.trusted_proxies", tt.text, "--set"}}})
		if (err != nil) != tt.bad || (flagErr != nil) != tt.bad {
			t.Errorf("%s: file %v, flag %v, want an error: %v", tt.text, err, flagErr, tt.bad)
			continue
		}
		if tt.bad {
			continue
		}
		for from, got := range map[string]trustedProxies{"file": file.Network.TrustedProxies, "flag": flag.Network.TrustedProxies} {
			if !reflect.DeepEqual(append([]netip.Prefix{}, got.Prefixes()...), append([]netip.Prefix{}, tt.want...)) || (len(got) > len(got.Prefixes())) != tt.none {
				t.Errorf("%s in a %s is %v, want %v, none: %v", tt.text, from, got, tt.want, tt.none)
			}
		}
	}
}

// TestProxyHere: connections from this machine count as the proxy's only in the public profile, without TLS, and
// with nothing in trusted_proxies (AM-43).
func TestProxyHere(t *testing.T) {
	for _, tt := range []struct {
		settings string
		want     bool
	}{
		{"", false},
		{"public_url=https://mesh.example.org", true},
		{"public_url=https://mesh.example.org listen=[::1]:3141", true},
		{"public_url=https://mesh.example.org listen=0.0.0.0:3141", true}, // strangers are refused there
		{"public_url=http://10.0.0.1:3141 network.allow_private=10.0.0.0/8 listen=0.0.0.0:3141", false},
		{"public_url=http://10.0.0.1:3141 network.allow_private=10.0.0.0/8", true},
		{"public_url=https://mesh.example.org network.trusted_proxies=none", false},
		{"public_url=https://mesh.example.org network.trusted_proxies=10.0.0.1/32", false},
		{"public_url=https://mesh.example.org tls.cert_file=a.pem tls.key_file=b.pem", false},
	} {
		var settings []Setting
		for s := range strings.FieldsSeq(tt.settings) {
			key, value, _ := strings.Cut(s, "=")
			settings = append(settings, Setting{key, value, "--set"})
		}
		c, err := Load(Source{File: "none", Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.TrustsLocalProxy(); got != tt.want {
			t.Errorf("%q: TrustsLocalProxy() = %v, want %v", tt.settings, got, tt.want)
		}
		for _, guard := range c.OpenGuards() {
			if strings.HasPrefix(guard, "network.trusted_proxies") != strings.Contains(tt.settings, "10.0.0.1/32") && !strings.HasPrefix(guard, "network.allow_private") {
				t.Errorf("%q opens %q", tt.settings, guard)
			}
		}
	}
}
