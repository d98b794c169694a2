package bridge

import (
	"context"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Switched is a [Service] that begins and stops serving its protocol to others while it runs. Links do not depend on it.
type Switched interface {
	Serve(on bool)
	Serving() bool
}

// Switch implements [Switched]. The zero value is off. A Switch is safe for concurrent use.
type Switch struct {
	mu      sync.Mutex
	serving context.Context // ends when the switch is set to off; nil while it is off
	stop    context.CancelFunc
	changed waiting.Signal
}

// Serve implements [Switched].
func (s *Switch) Serve(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.serving == nil:
		s.serving, s.stop = context.WithCancel(context.Background())
	case !on && s.serving != nil:
		s.stop()
		s.serving = nil
	}
	s.changed.Broadcast()
}

// Serving implements [Switched].
func (s *Switch) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving != nil
}

// whileServing returns a context that ends with ctx, and when the switch is set to off. It returns nil while it is off.
func (s *Switch) whileServing(ctx context.Context) (work context.Context, cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		return nil, nil
	}
	work, stop := context.WithCancel(ctx)
	release := context.AfterFunc(s.serving, stop)
	return work, func() { release(); stop() }
}

// Guard is a middleware for the routes that foreign clients call. While the switch is off, they do not exist
// for a caller. When it is set to off, the requests in progress are canceled.
func (s *Switch) Guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, cancel := s.whileServing(c.Request().Context())
		if ctx == nil {
			return wire.ErrRoute
		}
		defer cancel()
		c.SetRequest(c.Request().WithContext(ctx))
		return next(c)
	}
}

// RunServing calls run each time when the switch is set to on, until ctx ends or run fails. The context of run ends when
// the switch is set to off.
func (s *Switch) RunServing(ctx context.Context, run func(ctx context.Context) error) error {
	for ctx.Err() == nil {
		changed := s.changed.Wait()
		if work, cancel := s.whileServing(ctx); work != nil {
			err := run(work)
			cancel()
			if err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}
