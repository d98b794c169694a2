package client

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

var errNoDialling = errors.New("the test makes no connections")

// countDials makes every pool count the connections that its guard allows, and make none of them.
func countDials(h *HTTP) *atomic.Int64 {
	var dials atomic.Int64
	for _, l := range h.pools {
		guarded := l.dialer.Control
		l.dialer.Control = func(network, address string, c syscall.RawConn) error {
			if guarded != nil {
				if err := guarded(network, address, c); err != nil {
					return err
				}
			}
			dials.Add(1)
			return errNoDialling
		}
	}
	return &dials
}

func get(t testing.TB, h *HTTP, reach Reach, target string) error {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	resp, err := h.Do(t.Context(), reach, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// TestGuardRefusesAddresses checks every address family that AM-79 names. The URL has a name, so that only the check at
// connect can refuse (THREATS 16).
func TestGuardRefusesAddresses(t *testing.T) {
	tests := []struct {
		name, addr string
		public     bool
	}{
		{"loopback", "127.0.0.1", false},
		{"loopback, other", "127.255.255.254", false},
		{"unspecified", "0.0.0.0", false},
		{"this network", "0.1.2.3", false},
		{"private 10", "10.0.0.1", false},
		{"private 172.16", "172.16.0.1", false},
		{"private 172.31", "172.31.255.255", false},
		{"private 192.168", "192.168.1.1", false},
		{"link-local, metadata", "169.254.169.254", false},
		{"link-local, ECS", "169.254.170.2", false},
		{"CGNAT", "100.64.0.1", false},
		{"CGNAT, Alibaba metadata", "100.100.100.200", false},
		{"Azure host", "168.63.129.16", false},
		{"Oracle metadata", "192.0.0.192", false},
		{"documentation 1", "192.0.2.1", false},
		{"documentation 2", "198.51.100.1", false},
		{"documentation 3", "203.0.113.1", false},
		{"6to4 relay", "192.88.99.1", false},
		{"benchmark", "198.18.0.1", false},
		{"benchmark, end", "198.19.255.255", false},
		{"multicast", "224.0.0.1", false},
		{"multicast, end", "239.255.255.255", false},
		{"reserved", "240.0.0.1", false},
		{"broadcast", "255.255.255.255", false},
		{"v6 unspecified", "::", false},
		{"v6 loopback", "::1", false},
		{"v4-compatible", "::7f00:1", false},
		{"v4-mapped loopback", "::ffff:127.0.0.1", false},
		{"v4-mapped public, dialed as what it maps to", "::ffff:8.8.8.8", true},
		{"v4-translated", "::ffff:0:7f00:1", false},
		{"NAT64", "64:ff9b::7f00:1", false},
		{"NAT64, local use", "64:ff9b:1::1", false},
		{"discard", "100::1", false},
		{"Teredo", "2001::1", false},
		{"v6 benchmark", "2001:2::1", false},
		{"ORCHID", "2001:20::1", false},
		{"v6 documentation", "2001:db8::1", false},
		{"v6 documentation, new", "3fff::1", false},
		{"6to4", "2002:7f00:1::1", false},
		{"SRv6", "5f00::1", false},
		{"ULA", "fc00::1", false},
		{"ULA, AWS metadata", "fd00:ec2::254", false},
		{"v6 link-local", "fe80::1", false},
		{"site-local", "fec0::1", false},
		{"v6 multicast", "ff02::1", false},
		{"public", "8.8.8.8", true},
		{"public, beside Azure", "168.63.129.17", true},
		{"v6 public", "2606:4700::1111", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := netip.MustParseAddr(tt.addr)
			h := NewHTTP(HTTPConfig{Resolver: nameServer(t, func(_ int64, v6 bool) netip.Addr {
				if v6 != addr.Is6() {
					return netip.Addr{}
				}
				return addr
			})})
			dials := countDials(h)
			err := get(t, h, Public, "https://victim.example/")
			if got := dials.Load() > 0; got != tt.public {
				t.Errorf("dialed %s: %v, want %v (%v)", tt.addr, got, tt.public, err)
			}
			if _, guarded := errors.AsType[*GuardError](err); guarded == tt.public {
				t.Errorf("GuardError for %s: %v, want %v (%v)", tt.addr, guarded, !tt.public, err)
			}
		})
	}
}

func TestGuardRefusesURLs(t *testing.T) {
	private := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}
	configs := map[string]HTTPConfig{
		"public":  {},
		"private": {AllowPrivate: private},
		"local":   {Local: true},
	}
	const anywhere = "8.8.8.8" // the address that names resolve to
	tests := []struct {
		config  string
		reach   Reach
		url     string
		resolve string
		want    bool // a connection is tried
	}{
		{"public", Public, "https://agent.example/agentmesh", anywhere, true},
		{"public", Public, "https://agent.example:443/", anywhere, true},
		{"public", Public, "https://agent.example:1024/", anywhere, true},
		{"public", Public, "https://agent.example:65535/", anywhere, true},
		{"public", Public, "https://agent.example:1023/", anywhere, false},
		{"public", Public, "https://agent.example:80/", anywhere, false},
		{"public", Public, "https://agent.example:22/", anywhere, false},
		{"public", Public, "https://agent.example:0/", anywhere, false},
		{"public", Public, "https://agent.example:99999/", anywhere, false},
		{"public", Public, "http://agent.example/", anywhere, false},
		{"public", Public, "ftp://agent.example/", anywhere, false},
		{"public", Public, "file:///etc/passwd", anywhere, false},
		{"public", Public, "https:agent.example", anywhere, false},
		{"public", Public, "https:///path", anywhere, false},
		{"public", Public, "https://user@agent.example/", anywhere, false},
		{"public", Public, "https://8.8.8.8/", anywhere, false},
		{"public", Public, "https://[2606:4700::1111]/", anywhere, false},
		{"public", Public, "https://[::ffff:8.8.8.8]/", anywhere, false},
		{"public", Public, "https://[fe80::1%25eth0]/", anywhere, false},
		{"public", Public, "https://2130706433/", anywhere, false},
		{"public", Public, "https://0x7f000001/", anywhere, false},
		{"public", Public, "https://0x7f.1/", anywhere, false},
		{"public", Public, "https://127.1/", anywhere, false},
		{"public", Public, "https://0177.0.0.1./", anywhere, false},
		{"public", Public, "https://①②⑦.⓪.⓪.①/", anywhere, false},
		{"public", Public, "https://agent。example/", anywhere, false},
		{"public", Public, "https://localhost/", "127.0.0.1", false},
		{"public", Loopback, "https://agent.example/", anywhere, false},
		{"public", Loopback, "http://127.0.0.1:3141/", anywhere, false},
		{"public", Owner, "http://127.0.0.1:3141/", anywhere, true},

		{"private", Public, "https://10.1.2.3/", anywhere, true},
		{"private", Public, "http://10.1.2.3/", anywhere, true},
		{"private", Public, "http://10.1.2.3:8080/", anywhere, true},
		{"private", Public, "http://10.1.2.3:22/", anywhere, false},
		{"private", Public, "http://10.2.2.3/", anywhere, false},
		{"private", Public, "https://[fd00:1::5]/", anywhere, true},
		{"private", Public, "http://nas.example/", "10.1.2.3", true},
		{"private", Public, "http://nas.example/", anywhere, false},
		{"private", Public, "http://nas.example/", "10.2.2.3", false},
		{"private", Public, "https://nas.example/", anywhere, true},
		{"private", Public, "http://127.0.0.1:3141/", anywhere, false},

		{"local", Loopback, "http://127.0.0.1:3141/", anywhere, true},
		{"local", Loopback, "http://[::1]:3141/", anywhere, true},
		{"local", Loopback, "http://localhost:3141/", "127.0.0.1", true},
		{"local", Loopback, "http://localhost:22/", "127.0.0.1", false},
		{"local", Loopback, "https://agent.example/", anywhere, true},
		{"local", Loopback, "http://agent.example/", anywhere, false},
		{"local", Loopback, "http://agent.example/", "192.168.1.1", false},
		{"local", Loopback, "https://agent.example/", "192.168.1.1", false},
		{"local", Loopback, "http://192.168.1.1/", anywhere, false},
		{"local", Public, "http://127.0.0.1:3141/", anywhere, false},
		{"local", Public, "https://127.0.0.1:3141/", anywhere, false},
		{"local", Public, "https://agent.example/", "127.0.0.1", false},
	}
	for _, tt := range tests {
		t.Run(tt.config+" "+tt.reach.String()+" "+tt.url, func(t *testing.T) {
			cfg := configs[tt.config]
			cfg.Resolver = nameServer(t, func(_ int64, v6 bool) netip.Addr {
				if v6 {
					return netip.Addr{}
				}
				return netip.MustParseAddr(tt.resolve)
			})
			h := NewHTTP(cfg)
			dials := countDials(h)
			err := get(t, h, tt.reach, tt.url)
			if got := dials.Load() > 0; got != tt.want {
				t.Errorf("dialed: %v, want %v (%v)", got, tt.want, err)
			}
		})
	}
}

// TestGuardCorpus checks the public list of tricks, whatever a name in it resolves to (THREATS 16).
func TestGuardCorpus(t *testing.T) {
	dir := os.Getenv("AGENTMESH_CORPORA")
	if dir == "" {
		t.Skip("AGENTMESH_CORPORA is not set")
	}
	data, err := os.ReadFile(filepath.Join(dir, "ssrf", "payloadsallthethings_ssrf_urls.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(data))
	if len(lines) < 139 {
		t.Fatalf("the corpus has %d URLs, want 139 or more", len(lines))
	}
	targets := []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "168.63.129.16"}
	h := NewHTTP(HTTPConfig{Resolver: nameServer(t, func(n int64, v6 bool) netip.Addr {
		if v6 {
			return netip.MustParseAddr("fd00:ec2::254")
		}
		return netip.MustParseAddr(targets[n%int64(len(targets))])
	})})
	dials := countDials(h)
	for _, line := range lines {
		for _, target := range []string{line, strings.Replace(line, "http:", "https:", 1)} {
			if err := get(t, h, Public, target); err == nil {
				t.Errorf("%s was answered", target)
			}
			if dials.Swap(0) > 0 {
				t.Errorf("%s was dialed", target)
			}
		}
	}
}

// TestGuardRebinding checks that a name that is public at the first look-up and loopback afterwards gains nothing,
// because the guard checks the address of the connection itself.
func TestGuardRebinding(t *testing.T) {
	h := NewHTTP(HTTPConfig{Resolver: nameServer(t, func(n int64, v6 bool) netip.Addr {
		switch {
		case n <= 2:
			return netip.MustParseAddr("2606:4700::1111")
		case v6:
			return netip.IPv6Loopback()
		}
		return netip.MustParseAddr("127.0.0.1")
	})})
	dials := countDials(h)
	first := get(t, h, Public, "https://rebind.example/") // its name has a public address
	if dials.Load() == 0 || !errors.Is(first, errNoDialling) {
		t.Errorf("the public address was not tried, %v: the test proves nothing", first)
	}
	dials.Store(0)
	for range 5 {
		err := get(t, h, Public, "https://rebind.example/")
		if _, refused := errors.AsType[*GuardError](err); !refused {
			t.Errorf("a call to loopback = %v, want it refused by the guard", err)
		}
	}
	if n := dials.Load(); n != 0 {
		t.Errorf("loopback was dialed %d times", n)
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{"https://a.example/", "https://127.0.0.1/", "https://0x7f.1/", "https://[::1]/", "https://a.example:22/", "http://a/", "https://1e3/"} {
		f.Add(s)
	}
	h := NewHTTP(HTTPConfig{})
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil || h.CheckURL(Public, u) != nil {
			return
		}
		if net.ParseIP(u.Hostname()) != nil || u.Scheme != "https" || u.User != nil {
			t.Errorf("CheckURL(%q) let it through", s)
		}
	})
}
