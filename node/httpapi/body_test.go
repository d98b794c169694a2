package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

func TestBody(t *testing.T) { // line 1 of the receive table
	const limit = 16
	full := strings.Repeat("x", limit)
	tests := []struct {
		name     string
		body     string
		chunked  bool
		kind     string
		encoding string
		want     *wire.Error
	}{
		{"fits", full, false, "application/json", "", nil},
		{"fits, chunked", full, true, "application/json", "", nil},
		{"one more", full + "x", false, "application/json", "", wire.ErrTooLarge},
		{"one more, chunked", full + "x", true, "application/json", "", wire.ErrTooLarge},
		{"parameters", "{}", false, `application/json; charset="utf-8"`, "", nil},
		{"other case", "{}", false, "Application/JSON; charset=UTF-8", "", nil},
		{"other charset", "{}", false, "application/json; charset=utf-16", "", wire.ErrMediaType},
		{"problem type", "{}", false, "application/problem+json", "", wire.ErrMediaType},
		{"no type", "{}", false, "", "", wire.ErrMediaType},
		{"no type, chunked", "{}", true, "", "", wire.ErrMediaType},
		{"text", "{}", false, "text/plain", "", wire.ErrMediaType},
		{"json suffix", "{}", false, "application/ld+json", "", wire.ErrMediaType},
		{"two types", "{}", false, "application/json, text/plain", "", wire.ErrMediaType},
		{"gzip", "{}", false, "application/json", "gzip", wire.ErrContentEncoding},
		{"identity", "{}", false, "application/json", "identity", nil},
		{"type wins over encoding", "{}", false, "text/plain", "gzip", wire.ErrMediaType},
		{"too large wins", full + "x", false, "text/plain", "gzip", wire.ErrTooLarge},
		{"nothing at all", "", false, "", "", nil},
		{"nothing, of a wrong type", "", false, "text/plain", "", wire.ErrMediaType},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", strings.NewReader(tt.body))
			if tt.chunked {
				r.ContentLength = -1
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(tt.body)))
			}
			r.Header.Set("Content-Type", tt.kind)
			if tt.kind == "" {
				r.Header.Del("Content-Type")
			}
			if tt.encoding != "" {
				r.Header.Set("Content-Encoding", tt.encoding)
			}
			got, err := Body(echo.New().NewContext(r, httptest.NewRecorder()), limit)
			if tt.want != nil {
				if !errors.Is(err, tt.want) {
					t.Fatalf("Body = %v, want %v", err, tt.want)
				}
				return
			}
			if err != nil || string(got) != tt.body {
				t.Errorf("Body = %q, %v, want %q", got, err, tt.body)
			}
		})
	}
}

func TestBodyCutShort(t *testing.T) {
	r := httptest.NewRequest("POST", "/", strings.NewReader("{"))
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = 10
	if _, err := Body(echo.New().NewContext(r, httptest.NewRecorder()), 100); !errors.Is(err, wire.ErrSyntax) {
		t.Errorf("Body = %v, want %v", err, wire.ErrSyntax)
	}
}

// TestBodyDeclaredOnly: what a request declares, and does not send, takes no memory.
func TestBodyDeclaredOnly(t *testing.T) {
	const declared = 256 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		r := httptest.NewRequest("POST", "/", iotest.ErrReader(io.ErrUnexpectedEOF))
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = declared
		if _, err := Body(echo.New().NewContext(r, httptest.NewRecorder()), declared); !errors.Is(err, wire.ErrSyntax) {
			t.Fatalf("Body = %v", err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 10*declared {
		t.Errorf("20 bodies of %d bytes that did not arrive took %d bytes", declared, grown)
	}
}

// TestBodyTooLargeClosesTheConnection: the connection of a sender that streams too much is closed, and the rest is not
// read.
func TestBodyTooLargeClosesTheConnection(t *testing.T) {
	s := New(Config{Local: true})
	s.Echo().POST("/", func(c echo.Context) error {
		_, err := Body(c, 16)
		return err
	})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	body := io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<10))) // of unknown length, so it is chunked
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
		t.Errorf("status %d, connection closes: %v; want 413 and true", resp.StatusCode, resp.Close)
	}
}
