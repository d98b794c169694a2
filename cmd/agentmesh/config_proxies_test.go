package main

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestTrustedProxies: the key takes a list or the word none, in the file and elsewhere.
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
		file := defaultConfig()
		err := loadFile(reflect.ValueOf(&file).Elem(), "mesh.yaml", []byte("network: {trusted_proxies: "+tt.text+"}\n"))
		if strings.Contains(tt.text, ", ") && tt.text[0] != '[' { // commas mean something else in a YAML table
			err = loadFile(reflect.ValueOf(&file).Elem(), "mesh.yaml", []byte("network:\n  trusted_proxies: "+tt.text+"\n"))
		}
		flag, flagErr := loadConfig(source{File: "none", Settings: []setting{{"network.trusted_proxies", tt.text, "--set"}}})
		if (err != nil) != tt.bad || (flagErr != nil) != tt.bad {
			t.Errorf("%s: file %v, flag %v, want an error: %v", tt.text, err, flagErr, tt.bad)
			continue
		}
		if tt.bad {
			continue
		}
		for from, got := range map[string]trustedProxies{"file": file.Network.TrustedProxies, "flag": flag.Network.TrustedProxies} {
			if !reflect.DeepEqual(append([]netip.Prefix{}, got.listed()...), append([]netip.Prefix{}, tt.want...)) || (len(got) > len(got.listed())) != tt.none {
				t.Errorf("%s in a %s is %v, want %v, none: %v", tt.text, from, got, tt.want, tt.none)
			}
		}
	}
}

// TestProxyHere: connections from this machine are the proxy's only in the public profile without TLS and without another word (AM-43).
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
		var settings []setting
		for s := range strings.FieldsSeq(tt.settings) {
			key, value, _ := strings.Cut(s, "=")
			settings = append(settings, setting{key, value, "--set"})
		}
		c, err := loadConfig(source{File: "none", Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.proxyHere(); got != tt.want {
			t.Errorf("%q: proxyHere() = %v, want %v", tt.settings, got, tt.want)
		}
		for _, guard := range c.opened() {
			if strings.HasPrefix(guard, "network.trusted_proxies") != strings.Contains(tt.settings, "10.0.0.1/32") && !strings.HasPrefix(guard, "network.allow_private") {
				t.Errorf("%q opens %q", tt.settings, guard)
			}
		}
	}
}

// TestDoctorClients: what doctor says about each client that the process may have seen.
func TestDoctorClients(t *testing.T) {
	forged, other := forgedAddr(), netip.MustParseAddr("203.0.113.9")
	if forged == forgedAddr() || !netip.MustParsePrefix("2001:db8::/32").Contains(forged) {
		t.Errorf("forgedAddr() = %v, want another documentation address each time", forged)
	}
	for _, tt := range []struct {
		seen  seenClient
		proxy bool
		state string
		says  string
	}{
		{seenClient{}, true, findingFail, "did not reach this process"},
		{seenClient{Seen: true, Client: forged}, true, findingFail, "forged X-Forwarded-For is believed"},
		{seenClient{Seen: true, Unknown: true}, true, findingWarn, "does not say who its clients are"},
		{seenClient{Seen: true, Unknown: true}, false, findingOK, "a tunnel hides them"},
		{seenClient{Seen: true, Client: netip.MustParseAddr("127.0.0.1")}, true, findingWarn, "limits.exempt"},
		{seenClient{Seen: true, Client: other}, true, findingOK, "told apart"},
		{seenClient{Seen: true, Client: other}, false, findingOK, "told apart"},
	} {
		var d doctor
		d.judgeClient(tt.seen, forged, tt.proxy)
		if len(d.found) != 1 || d.found[0].State != tt.state || !strings.Contains(d.found[0].Text, tt.says) || (tt.state == findingOK) != (d.found[0].Do == "") {
			t.Errorf("%+v: found %+v, want %s, %q", tt.seen, d.found, tt.state, tt.says)
		}
	}
}
