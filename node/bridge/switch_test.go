package bridge

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSwitch: a switch that is set to off ends the requests in progress and what runs while it is on. Routes behind it
// do not exist until it is set to on again.
func TestSwitch(t *testing.T) {
	t.Parallel()
	var s Switch
	e := echo.New()
	entered := make(chan struct{})
	handle := s.Guard(func(c echo.Context) error {
		close(entered)
		<-c.Request().Context().Done()
		return c.Request().Context().Err()
	})
	call := func() error {
		return handle(e.NewContext(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), httptest.NewRecorder()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	runs, done := make(chan string), make(chan error, 1)
	go func() {
		done <- s.RunServing(ctx, func(ctx context.Context) error {
			runs <- "begins"
			<-ctx.Done()
			runs <- "ends"
			return nil
		})
	}()
	expect := func(want string) {
		t.Helper()
		if got := <-runs; got != want {
			t.Errorf("the work %s, and should: %s", got, want)
		}
	}
	if err := call(); err != wire.ErrRoute {
		t.Errorf("a call while the switch is off: %v", err)
	}
	s.Serve(true)
	s.Serve(true)
	expect("begins")
	called := make(chan error, 1)
	go func() { called <- call() }()
	<-entered
	s.Serve(false)
	if err := <-called; err != context.Canceled {
		t.Errorf("the call in progress ended with %v", err)
	}
	expect("ends")
	s.Serve(true)
	expect("begins")
	cancel()
	expect("ends")
	if err := <-done; err != nil || !s.Serving() {
		t.Errorf("RunServing() = %v, Serving() = %v", err, s.Serving())
	}
}
