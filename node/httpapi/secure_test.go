package httpapi

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestStrictTransport: browsers apply Strict-Transport-Security to the whole host name, so only the service at the
// default port sends it.
func TestStrictTransport(t *testing.T) {
	for _, tt := range []struct {
		url    string
		secure bool
		want   string
	}{
		{"https://mesh.example.org", true, "max-age=2592000"},
		{"https://mesh.example.org:443", true, "max-age=2592000"},
		{"https://mesh.example.org:8443", true, ""},
		{"https://mesh.example.org", false, ""},
	} {
		cfg := Config{PublicURL: tt.url}
		if tt.secure {
			cfg.TLS = &tls.Config{}
		}
		if got := do(New(cfg).Handler(), http.MethodGet, "/health", "").Header().Get(headerStrictTransport); got != tt.want {
			t.Errorf("%s, TLS here %t: %s is %q, want %q", tt.url, tt.secure, headerStrictTransport, got, tt.want)
		}
	}
}

// TestServePlain: requests over plain HTTP share the allowance of their address with other requests, and reach no
// route.
func TestServePlain(t *testing.T) {
	s := New(Config{PublicURL: "https://mesh.example.org", RequestsPerMinute: 4, TLS: &tls.Config{}})
	challenge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "challenge "+r.URL.Path) })
	h := s.plain(challenge)
	for _, tt := range []struct {
		method, path string
		status       int
		text         string
	}{
		{http.MethodGet, "/health", http.StatusPermanentRedirect, `href="https://mesh.example.org/health"`},
		{http.MethodGet, ChallengePath + "token", http.StatusOK, "challenge " + ChallengePath + "token"},
		{http.MethodPost, "/agentmesh", http.StatusBadRequest, "use https://mesh.example.org"},
		{http.MethodHead, "/", http.StatusPermanentRedirect, ""},
		{http.MethodGet, ChallengePath + "token", http.StatusTooManyRequests, "too many"},
	} {
		w := do(h, tt.method, tt.path, "", "Host", "evil.example")
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.text) || w.Header().Get(headerNoSniff) == "" {
			t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.text)
		}
	}
	if w := do(New(Config{PublicURL: "https://mesh.example.org"}).plain(nil), http.MethodGet, ChallengePath+"x", ""); w.Code != http.StatusPermanentRedirect {
		t.Errorf("without a challenge: %d", w.Code)
	}
}

// TestRequireProxy: behind a proxy, plain HTTP is for the proxy only. Other clients are refused, and the operator gets
// a hint.
func TestRequireProxy(t *testing.T) {
	log, lines := newTestLog()
	s := New(Config{PublicURL: "https://mesh.example.org", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Logger: log})
	h := s.requireProxy(s.Handler())
	for from, want := range map[string]int{
		"10.1.2.3:5": http.StatusOK, "[::ffff:10.1.2.3]:5": http.StatusOK, "127.0.0.1:5": http.StatusOK, "[::1]:5": http.StatusOK, "@": http.StatusOK,
		"203.0.113.7:5": http.StatusForbidden, "[2001:db8::1]:5": http.StatusForbidden, "192.168.1.1:5": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/health", nil)
		r.RemoteAddr = from
		r.Header.Set("X-Forwarded-For", "10.1.2.3")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || want == http.StatusForbidden && !strings.Contains(w.Body.String(), "use https://mesh.example.org") {
			t.Errorf("from %s: %d %s, want %d", from, w.Code, w.Body, want)
		}
	}
	if n := strings.Count(lines.String(), "plain HTTP refused"); n != 1 {
		t.Errorf("the log has the hint %d times", n)
	}
	for _, tt := range []struct {
		cfg  Config
		want bool
	}{
		{Config{PublicURL: "https://mesh.example.org"}, true},
		{Config{PublicURL: "https://mesh.example.org", TLS: &tls.Config{}}, false},
		{Config{PublicURL: "http://10.0.0.1:3141"}, false},
		{Config{Local: true}, false},
	} {
		if got := isBehindProxy(tt.cfg); got != tt.want {
			t.Errorf("isBehindProxy(%+v) = %t", tt.cfg, got)
		}
	}
}
