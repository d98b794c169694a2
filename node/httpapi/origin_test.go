package httpapi

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
)

func ok(c echo.Context) error { return JSON(c, http.StatusOK, "ok") }

func TestLoopbackHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:3141": true, "127.0.0.1": true, "127.0.0.1:3141": true, "127.9.9.9:1": true,
		"[::1]": true, "[::1]:3141": true, "::1": true, "[::ffff:127.0.0.1]:80": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"10.0.0.1": false, "0.0.0.0": false, "[::]:80": false, "evil.example:127": false, "2130706433": false,
	} {
		if got := LoopbackHost(host); got != want {
			t.Errorf("LoopbackHost(%q) = %v, want %v", host, got, want)
		}
	}
}

func TestLocalProfile(t *testing.T) { // AM-82
	s := New(Config{Local: true, CORSOrigins: []string{"https://app.example"}})
	s.Echo().GET("/thing", ok)
	s.Echo().POST("/thing", ok)
	tests := []struct {
		name   string
		method string
		header []string
		want   int
	}{
		{"curl", "POST", []string{"Host", "127.0.0.1:3141"}, 200},
		{"foreign host", "GET", []string{"Host", "evil.example"}, 400},
		{"foreign host rebound to us", "POST", []string{"Host", "evil.example:3141"}, 400},
		{"cross-site post", "POST", []string{"Host", "localhost", "Sec-Fetch-Site", "cross-site"}, 403},
		{"same-site post", "POST", []string{"Host", "localhost", "Sec-Fetch-Site", "same-site"}, 403},
		{"old browser, foreign origin", "POST", []string{"Host", "localhost", "Origin", "https://evil.example"}, 403},
		{"cross-site read", "GET", []string{"Host", "localhost", "Sec-Fetch-Site", "cross-site"}, 200},
		{"cross-site WebSocket", "GET", []string{"Host", "localhost", "Origin", "https://evil.example", "Upgrade", "websocket"}, 403},
		{"WebSocket of our own page", "GET", []string{"Host", "localhost", "Origin", "http://localhost", "Upgrade", "websocket"}, 200},
		{"own page", "POST", []string{"Host", "localhost", "Origin", "http://localhost", "Sec-Fetch-Site", "same-origin"}, 200},
		{"listed origin", "POST", []string{"Host", "localhost", "Origin", "https://app.example", "Sec-Fetch-Site", "cross-site"}, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := do(s.Handler(), tt.method, "/thing", "", tt.header...)
			if w.Code != tt.want {
				t.Errorf("status = %d %s, want %d", w.Code, w.Body, tt.want)
			}
		})
	}
	// Common and unknown routes refuse a foreign host too.
	for _, path := range []string{"/health", "/readyz", "/.well-known/agentmesh.json", "/nothing"} {
		if w := do(s.Handler(), "POST", path, "", "Host", "localhost", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
			t.Errorf("cross-site POST %s = %d, want 403", path, w.Code)
		}
		if w := do(s.Handler(), "GET", path, "", "Host", "evil.example"); w.Code != 400 {
			t.Errorf("GET %s for a foreign host = %d, want 400", path, w.Code)
		}
	}
	if w := do(s.Internal(), "POST", "/thing", "", "Host", "directory.example"); w.Code != 200 {
		t.Errorf("in process = %d, want 200", w.Code)
	}
}

func TestPublicProfileTakesAnyHost(t *testing.T) {
	s := New(Config{PublicURL: "https://mesh.example"})
	s.Echo().POST("/thing", ok)
	if w := do(s.Handler(), "POST", "/thing", "", "Host", "mesh.example", "Origin", "https://other.example"); w.Code != 200 {
		t.Errorf("status = %d, want 200: bearers and signatures guard these routes, not cookies", w.Code)
	}
}

func TestCORS(t *testing.T) {
	s := New(Config{CORSOrigins: []string{"https://app.example"}})
	s.Echo().GET("/open", ok, AnyOrigin)
	s.Echo().PUT("/thing", ok)
	const allow = "Access-Control-Allow-Origin"

	w := do(s.Handler(), "OPTIONS", "/thing", "", "Origin", "https://app.example", "Access-Control-Request-Method", "PUT")
	if w.Code != 204 || w.Header().Get(allow) != "https://app.example" || w.Header().Get("Access-Control-Allow-Methods") == "" {
		t.Errorf("preflight of a listed origin: %d %v", w.Code, w.Header())
	}
	w = do(s.Handler(), "OPTIONS", "/thing", "", "Origin", "https://evil.example", "Access-Control-Request-Method", "PUT")
	if w.Header().Get(allow) != "" {
		t.Errorf("preflight of a foreign origin is allowed: %v", w.Header())
	}
	w = do(s.Handler(), "PUT", "/thing", "", "Origin", "https://evil.example")
	if w.Header().Get(allow) != "" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("a foreign origin may read: %v", w.Header())
	}
	w = do(s.Handler(), "GET", "/open", "", "Origin", "https://evil.example")
	if w.Header().Get(allow) != "*" {
		t.Errorf("public route: %v", w.Header())
	}
}
