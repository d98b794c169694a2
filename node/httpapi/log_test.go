package httpapi

import (
	"errors"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

func TestLogLine(t *testing.T) { // THREATS rows 28, 29
	log, lines := newTestLog()
	s := New(Config{Logger: log})
	s.Echo().POST("/things/:id", func(c echo.Context) error {
		return wire.ErrWrongBearer.Because(errors.New("card of \x1b]0;owned\x07\u202e"))
	})
	w := do(s.Handler(), "POST", "/things/%1b%5b31m?token=hunter2", `{"secret":"hunter3"}`,
		"Authorization", "Bearer hunter4", "User-Agent", "\x1b[0m", "X-Request-Id", "chosen-by-client")
	got := lines.String()
	for _, want := range []string{
		"route=/things/:id", "status=403", "refused=wrong-bearer", "client=192.0.2.1", "method=POST",
		"request_id=" + w.Header().Get("X-Request-Id"),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the line lacks %q: %s", want, got)
		}
	}
	for _, bad := range []string{"hunter", "\x1b", "\x07", "\u202e", "chosen-by-client"} {
		if strings.Contains(got, bad) {
			t.Errorf("the line holds %q: %s", bad, got)
		}
	}
	if n := strings.Count(got, "\n"); n != 1 {
		t.Errorf("%d lines, want 1: %s", n, got)
	}
}

func TestLogLevels(t *testing.T) {
	log, lines := newTestLog()
	s := New(Config{Logger: log})
	for path, err := range map[string]error{"/404": wire.ErrNoAgent, "/429": wire.ErrRateLimited, "/500": errors.New("x"), "/503": wire.ErrPaused} {
		s.Echo().GET(path, func(echo.Context) error { return err })
	}
	s.Echo().GET("/200", ok)
	s.Echo().POST("/200", ok)
	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/200", "DEBUG"}, {"POST", "/200", "INFO"}, {"GET", "/404", "INFO"},
		{"GET", "/429", "DEBUG"}, {"GET", "/500", "ERROR"}, {"GET", "/503", "WARN"},
	} {
		before := len(lines.String())
		do(s.Handler(), tt.method, tt.path, "")
		if got := lines.String()[before:]; !strings.Contains(got, "level="+tt.want) {
			t.Errorf("%s %s logs %q, want level %s", tt.method, tt.path, got, tt.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"/v1/agents": "/v1/agents", "a\nb": `"a\nb"`, "\x1b[0m": `"\x1b[0m"`, "é": `"\u00e9"`, "\xff": `"\xff"`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %s, want %s", in, got, want)
		}
	}
	if got := printable(strings.Repeat("x", 10_000)); len(got) != 256 {
		t.Errorf("a long text is cut to %d bytes, want 256", len(got))
	}
}
