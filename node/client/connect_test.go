package client_test

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/client"
)

// TestConnect checks that a WebSocket connection passes the same guard as a call, and uses TLS for wss.
func TestConnect(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	h := client.NewHTTP(client.HTTPConfig{Local: true, RootCAs: roots})
	defer h.Close()
	ws := func(u string) string { return strings.Replace(u, "http", "ws", 1) }

	for _, tt := range []struct {
		name   string
		reach  client.Reach
		target string
		guard  bool // refused by the guard
	}{
		{"owner, plain", client.Owner, ws(plain.URL), false},
		{"owner, TLS", client.Owner, ws(secure.URL), false},
		{"loopback", client.Loopback, ws(plain.URL), false},
		{"public, by address", client.Public, ws(secure.URL), true},
		{"another scheme", client.Owner, plain.URL, true},
		{"no host", client.Owner, "ws:///x", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(tt.target)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := h.Connect(t.Context(), tt.reach, u)
			if err == nil {
				conn.Close()
			}
			if _, refused := errors.AsType[*client.GuardError](err); refused != tt.guard || err != nil && !tt.guard {
				t.Errorf("Connect = %v, want refused by the guard: %t", err, tt.guard)
			}
		})
	}
}
