package httpapi

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// gate is the one wrapper around every request: its id, the listener's checks, panics, the error body, the
// metrics, the log line. Everything that costs something is in here once.
type gate struct {
	log   *slog.Logger
	meter *requests // nil measures nothing
	// admit refuses requests that this listener must not answer, or answers them itself (done).
	admit func(c echo.Context) (done bool, err error)
}

// Shared header values: assigning them to a header map costs no allocation. They are never changed.
var (
	noSniff  = []string{"nosniff"}
	jsonType = []string{"application/json"}
	noStore  = []string{"no-store"}
)

const (
	headerRequestID = "X-Request-Id"
	headerNoSniff   = "X-Content-Type-Options"
)

func (g *gate) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		g.meter.enter()
		defer g.meter.leave()
		h := c.Response().Header()
		h[headerRequestID] = []string{newRequestID()}
		h[headerNoSniff] = noSniff
		done, err := g.admit(c)
		if err == nil && !done {
			err = calm(next, c)
		}
		var told *wire.Error
		if err != nil {
			told = public(err)
			answer(c, told)
		}
		took := time.Since(start)
		g.meter.ended(c.Path(), c.Request().Method, c.Response().Status, took)
		g.record(c, told, took)
		if p, ok := errors.AsType[*panicked](err); ok && p.halfway {
			panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
		}
		return nil
	}
}

// fail is echo's error handler. The gate answers errors itself; this is for what echo calls around it.
func (g *gate) fail(err error, c echo.Context) { answer(c, public(err)) }

// panicked is a handler's panic as an error. Its stack goes to the log and nowhere else (AM-78).
type panicked struct {
	value   any
	stack   []byte
	halfway bool // the answer had begun
}

func (p *panicked) Error() string { return "handler panicked" }

// calm calls next and turns its panic into an error.
func calm(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			err = &panicked{value: p, stack: debug.Stack(), halfway: c.Response().Committed}
		}
	}()
	return next(c)
}

// newRequestID returns an id for log lines. It needs no secrecy, only to differ.
func newRequestID() string {
	var b [8]byte
	for i, n := 0, rand.Uint64(); i < len(b); i, n = i+1, n>>8 {
		b[i] = byte(n)
	}
	return hex.EncodeToString(b[:])
}

// RequestID returns the id of this request, which the answer carries in X-Request-Id.
func RequestID(c echo.Context) string {
	if ids := c.Response().Header()[headerRequestID]; len(ids) == 1 {
		return ids[0]
	}
	return ""
}
