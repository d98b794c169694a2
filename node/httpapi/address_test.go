package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

// getFrom sends a GET to s from the address remote, as a proxy there forwards it with the given headers.
func getFrom(s *Server, remote, path string, forwarded ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr = remote
	for _, f := range forwarded {
		r.Header.Add("X-Forwarded-For", f)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func newWhoServer(cfg Config) *Server {
	s := New(cfg)
	s.Echo().GET("/who", func(c echo.Context) error { return c.String(http.StatusOK, ClientAddr(c).String()) })
	return s
}

func TestClientAddr(t *testing.T) { // AM-43, THREATS rows 24 and 33
	listed := Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
	here, local := Config{ProxyHere: true}, Config{Local: true}
	exempt := Config{ProxyHere: true, Exempt: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	tests := []struct {
		name    string
		cfg     Config
		remote  string
		forward []string
		want    string
	}{
		{"direct", Config{}, "203.0.113.9:5", nil, "203.0.113.9"},
		{"direct IPv6", Config{}, "[2001:db8::9]:5", nil, "2001:db8::9"},
		{"mapped", Config{}, "[::ffff:203.0.113.9]:5", nil, "203.0.113.9"},
		{"spoofed", Config{}, "203.0.113.9:5", []string{"1.2.3.4"}, "203.0.113.9"},
		{"spoofed through a tunnel", Config{}, "127.0.0.1:5", []string{"1.2.3.4"}, "::"},
		{"not through a listed proxy", listed, "203.0.113.9:5", []string{"1.2.3.4"}, "203.0.113.9"},
		{"through a proxy", listed, "10.1.1.1:5", []string{"1.2.3.4"}, "1.2.3.4"},
		{"through two, with a forged head", listed, "10.1.1.1:5", []string{"6.6.6.6, 1.2.3.4, 10.2.2.2"}, "1.2.3.4"},
		{"in several headers", listed, "10.1.1.1:5", []string{"6.6.6.6", "1.2.3.4"}, "1.2.3.4"},
		{"a client in the proxies' network", listed, "10.1.1.1:5", []string{"10.2.2.2"}, "10.2.2.2"},
		{"nonsense", listed, "10.1.1.1:5", []string{"bogus"}, "::"},
		{"no header", listed, "10.1.1.1:5", nil, "::"},
		{"IPv6 proxy", listed, "[fd00::1]:5", []string{"2001:db8::7"}, "2001:db8::7"},
		{"with a port", listed, "10.1.1.1:5", []string{"[2001:db8::7]:1234"}, "2001:db8::7"},
		{"in brackets", listed, "10.1.1.1:5", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"Unix socket", Config{}, "@", nil, "invalid IP"},
		{"proxy here", here, "127.0.0.1:5", []string{"203.0.113.9"}, "203.0.113.9"},
		{"proxy here, IPv6", here, "[::1]:5", []string{"2001:db8::7"}, "2001:db8::7"},
		{"proxy here, with a forged head", here, "127.0.0.1:5", []string{"6.6.6.6, 203.0.113.9"}, "203.0.113.9"},
		{"proxy here, in several headers", here, "127.0.0.1:5", []string{"6.6.6.6", "203.0.113.9"}, "203.0.113.9"},
		{"proxy here without the header", here, "127.0.0.1:5", nil, "::"},
		{"proxy here, empty header", here, "127.0.0.1:5", []string{""}, "::"},
		{"proxy here behind a tunnel", here, "127.0.0.1:5", []string{"6.6.6.6, 127.0.0.1"}, "::"},
		{"around the proxy here", here, "203.0.113.9:5", []string{"6.6.6.6"}, "203.0.113.9"},
		{"exempt program here", exempt, "127.0.0.1:5", nil, "127.0.0.1"},
		{"stranger through a proxy that is exempt itself", exempt, "127.0.0.1:5", []string{"203.0.113.9"}, "203.0.113.9"},
		{"local profile", local, "127.0.0.1:5", []string{"6.6.6.6"}, "127.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(tt.cfg)
			s.Echo().GET("/who", func(c echo.Context) error { return c.String(http.StatusOK, ClientAddr(c).String()) })
			r := httptest.NewRequest("GET", "http://localhost/who", nil)
			r.RemoteAddr, r.Header = tt.remote, http.Header{"X-Forwarded-For": tt.forward}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if got := w.Body.String(); got != tt.want {
				t.Errorf("client = %s, want %s", got, tt.want)
			}
		})
	}
}

// TestUnknownClients: clients behind a proxy that does not name them share ten allowances. A fault costs a second and
// bars nobody (AM-43, THREATS 33).
func TestUnknownClients(t *testing.T) {
	for name, cfg := range map[string]Config{"a proxy without the header": {ProxyHere: true}, "a tunnel": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(cfg)
				s.Echo().GET("/guarded", ok, s.Addresses().Guard)
				s.Echo().GET("/fault", func(c echo.Context) error {
					s.Addresses().Fault(c.Request().Context(), ClientAddr(c))
					return wire.ErrSignature
				}, s.Addresses().Guard)
				start := time.Now()
				for range 30 {
					if w := getFrom(s, "127.0.0.1:5", "/fault"); w.Code != http.StatusUnauthorized {
						t.Fatalf("a forged message is answered %d, want 401", w.Code)
					}
				}
				if took := time.Since(start); took != 30*faultDelay {
					t.Errorf("30 faults one after another take %v, want %v", took, 30*faultDelay)
				}
				if w := getFrom(s, "127.0.0.1:6", "/guarded"); w.Code != http.StatusOK {
					t.Errorf("after 30 faults another client is answered %d, want 200", w.Code)
				}
				if n := spend(s.Addresses(), "::"); n < 10*defaultRequests-40 || n > 10*defaultRequests {
					t.Errorf("unknown clients have %d requests, want about %d", n, 10*defaultRequests)
				}
				if w := getFrom(s, "127.0.0.1:6", "/guarded", "203.0.113.9"); cfg.ProxyHere != (w.Code == http.StatusOK) {
					t.Errorf("with the header: %d", w.Code)
				}
			})
		})
	}
}

// TestFramed: the faults of a client that forges X-Forwarded-For do not bar the address in that header (THREATS 33).
func TestFramed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, cfg := range []Config{{ProxyHere: true}, {}} {
			a, s := New(cfg).Addresses(), &clients{cfg: cfg}
			for range 30 {
				r := httptest.NewRequest("POST", "/", nil)
				r.RemoteAddr, r.Header = "127.0.0.1:5", http.Header{"X-Forwarded-For": {"203.0.113.9, 198.51.100.66"}} // the proxy appends
				if !cfg.ProxyHere {
					r.Header.Set("X-Forwarded-For", "203.0.113.9") // a tunnel does not
				}
				a.Fault(t.Context(), s.clientOf(r))
			}
			if _, ok := a.Allow(netip.MustParseAddr("203.0.113.9")); !ok {
				t.Errorf("%+v: the named address is barred", cfg)
			}
			if _, ok := a.Allow(netip.MustParseAddr("198.51.100.66")); ok != !cfg.ProxyHere {
				t.Errorf("the address of the attacker is allowed: %v", ok)
			}
		}
	})
}

// TestDelayIsBounded: a delay ends with its request, and a flood of faults delays at most maxDelayed responses.
func TestDelayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, start := newAddresses(Config{}), time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range maxDelayed {
			waiting.Go(func() { a.Delay(ctx, rate.Unknown) })
		}
		synctest.Wait()
		a.Delay(ctx, rate.Unknown)
		a.Delay(ctx, netip.MustParseAddr("203.0.113.9"))
		if took := time.Since(start); took != 0 {
			t.Errorf("beyond the bound an answer is delayed by %v", took)
		}
		cancel()
		waiting.Wait()
		if took := time.Since(start); took != 0 || len(a.delayed) != 0 {
			t.Errorf("requests that ended are delayed by %v, %d places are kept", took, len(a.delayed))
		}
	})
}

// TestUnknownClientsAreReported: the log reports unknown clients once a day, the owner's status at any time.
func TestUnknownClientsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines strings.Builder
		s := newWhoServer(Config{ProxyHere: true, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		getFrom(s, "127.0.0.1:5", "/who", "203.0.113.9")
		if lines.Len() > 0 || s.Clients().Unknown != 0 {
			t.Errorf("a known client is reported: %s", &lines)
		}
		for range 100 {
			getFrom(s, "127.0.0.1:5", "/who")
		}
		if n := strings.Count(lines.String(), "set network.trusted_proxies: none"); n != 1 {
			t.Errorf("the log has %d warnings, want one:\n%s", n, &lines)
		}
		if got := *s.Clients(); got.Unknown != 100 || !got.LastUnknown.Equal(time.Now()) {
			t.Errorf("Clients() = %+v, want 100 unknown ones, the last one now", got)
		}
		time.Sleep(warnUnknown)
		getFrom(s, "127.0.0.1:5", "/who")
		if n := strings.Count(lines.String(), "network.trusted_proxies"); n != 2 {
			t.Errorf("a day later the log has %d warnings, want two", n)
		}
		if New(Config{Local: true}).Clients() != nil {
			t.Error("the local profile has a status of clients")
		}
	})
}

// TestProbe: the owner learns which client the process saw, and the response does not reveal the probe.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{ProxyHere: true})
		stranger := getFrom(s, "127.0.0.1:5", "/health?probe=guessed", "203.0.113.9")
		secret := s.ExpectProbe()
		getFrom(s, "127.0.0.1:5", "/health?probe=guessed", "203.0.113.9")
		if _, seen := s.ProbeClient(secret); seen {
			t.Error("another request is taken for the probe")
		}
		w := getFrom(s, "127.0.0.1:5", "/health?probe="+secret, "2001:db8::1, 203.0.113.9")
		if w.Body.String() != stranger.Body.String() {
			t.Errorf("the probe is answered %s, others %s", w.Body, stranger.Body)
		}
		if client, seen := s.ProbeClient(secret); !seen || client != netip.MustParseAddr("203.0.113.9") {
			t.Errorf("ProbeClient = %v, %v", client, seen)
		}
		if _, seen := s.ProbeClient(""); seen {
			t.Error("an empty secret is answered")
		}
		secret = s.ExpectProbe()
		time.Sleep(probeLifetime)
		getFrom(s, "127.0.0.1:5", "/health?probe="+secret)
		if _, seen := s.ProbeClient(secret); seen {
			t.Error("a secret works after its end")
		}
	})
}

// TestFullPenalties: if the list is full of barred addresses of one /48, addresses of other networks are not barred,
// and neither is the one address of that /48 without a fault (THREATS 32).
func TestFullPenalties(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	synctest.Test(t, func(t *testing.T) {
		a := newAddresses(Config{})
		bar := func(addr string) {
			for range maxFaults {
				a.Fault(t.Context(), netip.MustParseAddr(addr))
			}
		}
		bar("198.51.100.66")
		for i := range maxAddresses - 1 {
			bar(fmt.Sprintf("2001:db8:1:%x::1", i))
		}
		for _, addr := range []string{"2001:db8:1:ffff::1", "2001:db8:2::1", "203.0.113.9"} {
			if wait, ok := a.Allow(netip.MustParseAddr(addr)); !ok {
				t.Errorf("%s must wait for %v", addr, wait)
			}
		}
		for _, addr := range []string{"2001:db8:1::1", "2001:db8:1:fffe::1", "198.51.100.66"} {
			if _, ok := a.Allow(netip.MustParseAddr(addr)); ok {
				t.Errorf("%s made ten faults and is allowed", addr)
			}
		}
	})
}

func TestSpoofedHeaderIsOneBucket(t *testing.T) { // AM-43, THREATS row 24
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Echo().GET("/guarded", ok, s.Addresses().Guard)
		refused := 0
		for i := range 1000 {
			w := do(s.Handler(), "GET", "/guarded", "", "X-Forwarded-For", fmt.Sprintf("198.51.%d.%d", i/256, i%256))
			if w.Code == http.StatusTooManyRequests {
				refused++
			}
		}
		if want := 1000 - defaultRequests; refused != want {
			t.Errorf("%d of 1000 requests were refused, want %d", refused, want)
		}
		if w := do(s.Internal(), "GET", "/guarded", ""); w.Code != 200 {
			t.Errorf("a caller inside the process = %d, want 200", w.Code)
		}
	})
}

// spend uses up the allowance of an address and returns how large it was.
func spend(a *Addresses, addr string) int {
	for n := range 10_000 {
		if _, ok := a.Allow(netip.MustParseAddr(addr)); !ok {
			return n
		}
	}
	return 10_000
}

func TestAllow(t *testing.T) { // AM-43
	synctest.Test(t, func(t *testing.T) {
		a := newAddresses(Config{})
		if n := spend(a, "203.0.113.9"); n != 120 {
			t.Errorf("%d requests at once, want 120", n)
		}
		wait, ok := a.Allow(netip.MustParseAddr("::ffff:203.0.113.9"))
		if ok || wait != 500*time.Millisecond {
			t.Errorf("the mapped spelling: wait %v, %v, want 500ms, false", wait, ok)
		}
		if n := spend(a, "203.0.113.10"); n != 120 {
			t.Errorf("a neighbour has %d, want 120", n)
		}
		time.Sleep(time.Minute)
		if n := spend(a, "203.0.113.9"); n != 120 {
			t.Errorf("%d requests after a minute, want 120", n)
		}
	})
}

func TestAllowIPv6(t *testing.T) { // THREATS row 25
	synctest.Test(t, func(t *testing.T) {
		a := newAddresses(Config{})
		if n := spend(a, "2001:db8:0:1::1") + spend(a, "2001:db8:0:1::2"); n != 120 {
			t.Errorf("one /64 has %d, want 120", n)
		}
		all := 120
		for i := 2; i < 256; i++ {
			all += spend(a, fmt.Sprintf("2001:db8:0:%x::1", i))
		}
		if all != 4*120 {
			t.Errorf("a whole /56 has %d, want %d", all, 4*120)
		}
		if n := spend(a, "2001:db8:1::1"); n != 120 {
			t.Errorf("another /56 has %d, want 120", n)
		}
	})
}

func TestFaults(t *testing.T) { // AM-43
	synctest.Test(t, func(t *testing.T) {
		a := newAddresses(Config{RequestsPerMinute: -1})
		addr := netip.MustParseAddr("203.0.113.9")
		for i := range maxFaults {
			if _, ok := a.Allow(addr); !ok {
				t.Fatalf("refused after %d faults", i)
			}
			a.Fault(t.Context(), addr)
		}
		if wait, ok := a.Allow(addr); ok || wait != faultPenalty {
			t.Errorf("after ten faults: wait %v, %v, want %v, false", wait, ok, faultPenalty)
		}
		if _, ok := a.Allow(netip.MustParseAddr("203.0.113.10")); !ok {
			t.Error("a neighbour is refused too")
		}
		time.Sleep(faultPenalty - time.Second)
		if _, ok := a.Allow(addr); ok {
			t.Error("allowed before the penalty ended")
		}
		time.Sleep(time.Second)
		if _, ok := a.Allow(addr); !ok {
			t.Error("refused after the penalty ended")
		}
	})
}

func TestFreeAddresses(t *testing.T) { // AM-44, AM-82
	addr := netip.MustParseAddr("203.0.113.9")
	for name, a := range map[string]*Addresses{
		"local profile": newAddresses(Config{Local: true}),
		"switched off":  newAddresses(Config{RequestsPerMinute: -1}),
		"exempt":        newAddresses(Config{Exempt: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}),
		"zero":          {},
		"nil":           nil,
	} {
		if n := spend(a, addr.String()); n != 10_000 {
			t.Errorf("%s: refused after %d", name, n)
		}
	}
	a := newAddresses(Config{Local: true})
	for range 100 {
		a.Fault(t.Context(), addr)
	}
	if _, ok := a.Allow(addr); !ok {
		t.Error("the local profile counts faults")
	}
}

func TestAddressesAreBounded(t *testing.T) { // THREATS row 25
	if testing.Short() {
		t.Skip("short")
	}
	synctest.Test(t, func(t *testing.T) { // the clock stands still, so that no bucket refills
		a := newAddresses(Config{})
		attacker := netip.MustParseAddr("203.0.113.9")
		spend(a, attacker.String())
		for i := range 4 * maxAddresses {
			a.Allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		if n := spend(a, attacker.String()); n > 0 {
			t.Errorf("four times the remembered keys gave an attacker %d requests", n)
		}
	})
}
