package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDialSocketRefuses checks the errors for responses that do not open a WebSocket.
func TestDialSocketRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		header, want string
	}{
		"oversized header": {strings.Repeat("x", 5000), "handshake: the header of the response is larger than 4096 bytes"},
		"no upgrade":       {"x", "the server answered the handshake with"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Pad", tt.header) }))
			defer srv.Close()
			_, err := dialSocket(t.Context(), srv.URL, "/", "")
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "%!") {
				t.Errorf("dialSocket: %v, want %s", err, tt.want)
			}
		})
	}
}
