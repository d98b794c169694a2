package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// newFailingServer returns a server whose route / returns err.
func newFailingServer(err error) *Server {
	s := New(Config{})
	s.Echo().GET("/", func(echo.Context) error { return err })
	return s
}

func TestEveryRowReachesTheClient(t *testing.T) { // AM-27, AM-28
	for _, row := range wire.Table() {
		t.Run(row.Row(), func(t *testing.T) {
			cause := errors.New("a secret cause")
			w := do(newFailingServer(fmt.Errorf("outer: %w", row.Because(cause))).Handler(), "GET", "/", "")
			if w.Code != row.Status {
				t.Errorf("status = %d, want %d", w.Code, row.Status)
			}
			if strings.Contains(w.Body.String(), "secret") {
				t.Errorf("the body shows the cause: %s", w.Body)
			}
			v, err := wire.ParseObject(w.Body.Bytes())
			if err != nil {
				t.Fatalf("body %q: %v", w.Body, err)
			}
			back, ok := wire.ParseError(w.Code, v)
			if !ok || back.Code != row.Code || back.Message != row.Message || back.Retry != row.Retry {
				t.Errorf("came back as %+v, want %+v", back, row)
			}
			if got := w.Header().Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control = %q, want no-store", got)
			}
			waits := row.Status == 429 || row.Status == 503
			if got := w.Header().Get("Retry-After"); (got != "") != waits {
				t.Errorf("Retry-After = %q", got)
			}
			challenged := row.Status == 401 && row.Code == wire.Unauthorized
			if got := w.Header().Get("WWW-Authenticate"); (got == "Bearer") != challenged {
				t.Errorf("WWW-Authenticate = %q", got)
			}
		})
	}
}

func TestWhatOthersReport(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want *wire.Error
	}{
		{"anything", errors.New("disk on fire"), wire.ErrInternal},
		{"echo 404", echo.ErrNotFound, wire.ErrRoute},
		{"wrapped echo 405", fmt.Errorf("x: %w", echo.ErrMethodNotAllowed), wire.ErrMethod},
		{"echo 413", echo.ErrStatusRequestEntityTooLarge, wire.ErrTooLarge},
		{"echo 415", echo.ErrUnsupportedMediaType, wire.ErrMediaType},
		{"store", fmt.Errorf("put: %w", store.ErrUnavailable), wire.ErrUnavailable},
		{"client left", context.Canceled, wire.ErrUnavailable},
		{"row beats the store", wire.ErrCursor.Because(store.ErrUnavailable), wire.ErrCursor},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := PublicError(tt.err); !errors.Is(got, tt.want) {
				t.Errorf("PublicError(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
}

func TestRetryAfterRoundsUp(t *testing.T) { // AM-28
	for _, tt := range []struct {
		wait time.Duration
		want string
	}{{time.Millisecond, "1"}, {time.Second, "1"}, {1001 * time.Millisecond, "2"}, {6 * time.Minute, "360"}} {
		w := do(newFailingServer(wire.ErrRateLimited.After(tt.wait)).Handler(), "GET", "/", "")
		if got := w.Header().Get("Retry-After"); got != tt.want {
			t.Errorf("Retry-After for %v = %q, want %q", tt.wait, got, tt.want)
		}
	}
}

func TestUnknownRouteAndMethod(t *testing.T) {
	s := New(Config{})
	s.Echo().GET("/thing", func(c echo.Context) error { return c.NoContent(200) })
	s.Echo().PUT("/thing", func(c echo.Context) error { return c.NoContent(200) })
	w := do(s.Handler(), "GET", "/nothing", "")
	if w.Code != 404 || errorCode(t, w.Body.Bytes()) != "INVALID_MESSAGE" {
		t.Errorf("unknown route: %d %s", w.Code, w.Body)
	}
	w = do(s.Handler(), "DELETE", "/thing", "")
	if w.Code != 405 || errorCode(t, w.Body.Bytes()) != "INVALID_MESSAGE" {
		t.Errorf("wrong method: %d %s", w.Code, w.Body)
	}
	if allow := w.Header().Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "PUT") {
		t.Errorf("Allow = %q, want GET and PUT", allow)
	}
}

func TestPanicIsAnInternalError(t *testing.T) { // AM-78
	log, lines := newTestLog()
	s := New(Config{Logger: log})
	s.Echo().GET("/", func(echo.Context) error { panic("kaboom \x1b[31m") })
	w := do(s.Handler(), "GET", "/", "")
	if w.Code != 500 || errorCode(t, w.Body.Bytes()) != "AGENT_UNAVAILABLE" {
		t.Errorf("panic: %d %s", w.Code, w.Body)
	}
	for _, secret := range []string{"kaboom", "goroutine", ".go:"} {
		if strings.Contains(w.Body.String(), secret) {
			t.Errorf("the body shows %q: %s", secret, w.Body)
		}
	}
	if got := lines.String(); !strings.Contains(got, "kaboom") || !strings.Contains(got, "errors_test.go") {
		t.Errorf("the log lacks the panic and its stack: %s", got)
	}
	if strings.Contains(lines.String(), "\x1b") {
		t.Error("the log has a raw escape character")
	}
}

// TestErrorHalfwayBreaksTheAnswer: a handler that fails after a part of its answer breaks the connection. A backup that
// failed once looked complete.
func TestErrorHalfwayBreaksTheAnswer(t *testing.T) {
	s := New(Config{})
	for path, end := range map[string]func() error{
		"/panic": func() error { panic("halfway") },
		"/error": func() error { return errors.New("halfway") },
	} {
		s.Echo().GET(path, func(c echo.Context) error {
			if _, err := c.Response().Write([]byte(`{"half":`)); err != nil {
				return err
			}
			c.Response().Flush()
			return end()
		})
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	for _, path := range []string{"/panic", "/error"} {
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: the answer looks complete", path)
		}
		resp.Body.Close()
	}
}
