package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
)

// seen asks h from the address and returns the client that the handler saw.
func seen(t *testing.T, s *Server, remote string, forwarded ...string) string {
	t.Helper()
	r := httptest.NewRequest("GET", "/who", nil)
	r.RemoteAddr = remote
	for _, f := range forwarded {
		r.Header.Add("X-Forwarded-For", f)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Body.String()
}

func whoServer(cfg Config) *Server {
	s := New(cfg)
	s.Echo().GET("/who", func(c echo.Context) error { return c.String(http.StatusOK, ClientAddr(c).String()) })
	return s
}

func TestClientAddr(t *testing.T) { // THREATS row 24
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	tests := []struct {
		name    string
		trusted []netip.Prefix
		remote  string
		forward []string
		want    string
	}{
		{"direct", nil, "203.0.113.9:5", nil, "203.0.113.9"},
		{"direct IPv6", nil, "[2001:db8::9]:5", nil, "2001:db8::9"},
		{"mapped", nil, "[::ffff:203.0.113.9]:5", nil, "203.0.113.9"},
		{"spoofed", nil, "203.0.113.9:5", []string{"1.2.3.4"}, "203.0.113.9"},
		{"spoofed from loopback", nil, "127.0.0.1:5", []string{"1.2.3.4"}, "127.0.0.1"},
		{"not through a proxy of ours", proxies, "203.0.113.9:5", []string{"1.2.3.4"}, "203.0.113.9"},
		{"through a proxy", proxies, "10.1.1.1:5", []string{"1.2.3.4"}, "1.2.3.4"},
		{"through two, with a forged head", proxies, "10.1.1.1:5", []string{"6.6.6.6, 1.2.3.4, 10.2.2.2"}, "1.2.3.4"},
		{"in several headers", proxies, "10.1.1.1:5", []string{"6.6.6.6", "1.2.3.4"}, "1.2.3.4"},
		{"nonsense", proxies, "10.1.1.1:5", []string{"bogus"}, "10.1.1.1"},
		{"IPv6 proxy", proxies, "[fd00::1]:5", []string{"2001:db8::7"}, "2001:db8::7"},
		{"Unix socket", nil, "@", nil, "invalid IP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := seen(t, whoServer(Config{TrustedProxies: tt.trusted}), tt.remote, tt.forward...); got != tt.want {
				t.Errorf("client = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSpoofedHeaderIsOneBucket(t *testing.T) { // AM-43, THREATS row 24
	s := New(Config{})
	s.Echo().GET("/guarded", ok, s.Addresses().Guard)
	refused := 0
	for i := range 1000 {
		w := ask(s.Handler(), "GET", "/guarded", "", "X-Forwarded-For", fmt.Sprintf("198.51.%d.%d", i/256, i%256))
		if w.Code == http.StatusTooManyRequests {
			refused++
		}
	}
	if want := 1000 - defaultRequests; refused < want-5 || refused > want {
		t.Errorf("%d of 1000 requests were refused, want about %d", refused, want)
	}
	if w := ask(s.Internal(), "GET", "/guarded", ""); w.Code != 200 {
		t.Errorf("a caller inside the process = %d, want 200", w.Code)
	}
}

// spend uses up the allowance of an address and returns how much there was.
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
	a := newAddresses(Config{})
	if n := spend(a, "2001:db8:0:1::1") + spend(a, "2001:db8:0:1::2"); n != 120 {
		t.Errorf("one /64 has %d, want 120", n)
	}
	all := 120
	for i := 2; i < 256; i++ {
		all += spend(a, fmt.Sprintf("2001:db8:0:%x::1", i))
	}
	if all < 4*120-5 || all > 4*120 {
		t.Errorf("a whole /56 has %d, want about %d", all, 4*120)
	}
	if n := spend(a, "2001:db8:1::1"); n != 120 {
		t.Errorf("another /56 has %d, want 120", n)
	}
}

func TestFaults(t *testing.T) { // AM-43
	synctest.Test(t, func(t *testing.T) {
		a := newAddresses(Config{RequestsPerMinute: -1})
		addr := netip.MustParseAddr("203.0.113.9")
		for i := range maxFaults {
			if _, ok := a.Allow(addr); !ok {
				t.Fatalf("refused after %d faults", i)
			}
			a.Fault(addr)
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
		a.Fault(addr)
	}
	if _, ok := a.Allow(addr); !ok {
		t.Error("the local profile counts faults")
	}
}

func TestAddressesAreBounded(t *testing.T) { // THREATS row 25
	if testing.Short() {
		t.Skip("short")
	}
	synctest.Test(t, func(t *testing.T) { // the clock stands still, so that nothing refills meanwhile
		a := newAddresses(Config{})
		attacker := netip.MustParseAddr("203.0.113.9")
		spend(a, attacker.String())
		for i := range 1_000_000 {
			a.Allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		if n := spend(a, attacker.String()); n > 0 {
			t.Errorf("a million other keys gave an attacker %d requests", n)
		}
	})
}
