package httpapi

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A browser takes the word for the whole name, so only the service at the name's own port gives it.
func TestStaysSecure(t *testing.T) {
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
		if got := ask(New(cfg).Handler(), http.MethodGet, "/health", "").Header().Get(headerStay); got != tt.want {
			t.Errorf("%s, TLS here %t: %s is %q, want %q", tt.url, tt.secure, headerStay, got, tt.want)
		}
	}
}

// What comes over plain HTTP shares the allowance of its address with the rest, and meets no route.
func TestServePlain(t *testing.T) {
	s := New(Config{PublicURL: "https://mesh.example.org", RequestsPerMinute: 4, TLS: &tls.Config{}})
	challenge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "challenge "+r.URL.Path) })
	h := s.plain(challenge)
	for _, tt := range []struct {
		method, path string
		status       int
		says         string
	}{
		{http.MethodGet, "/health", http.StatusPermanentRedirect, `href="https://mesh.example.org/health"`},
		{http.MethodGet, ChallengePath + "token", http.StatusOK, "challenge " + ChallengePath + "token"},
		{http.MethodPost, "/agentmesh", http.StatusBadRequest, "use https://mesh.example.org"},
		{http.MethodHead, "/", http.StatusPermanentRedirect, ""},
		{http.MethodGet, ChallengePath + "token", http.StatusTooManyRequests, "too many"},
	} {
		w := ask(h, tt.method, tt.path, "", "Host", "evil.example")
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) || w.Header().Get(headerNoSniff) == "" {
			t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.says)
		}
	}
	if w := ask(New(Config{PublicURL: "https://mesh.example.org"}).plain(nil), http.MethodGet, ChallengePath+"x", ""); w.Code != http.StatusPermanentRedirect {
		t.Errorf("without a challenge: %d", w.Code)
	}
}
