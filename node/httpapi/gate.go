package httpapi

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// gate wraps every request: it assigns the id, makes the listener's checks, recovers panics, and writes the error body,
// the metrics and the log line.
type gate struct {
	log   *slog.Logger
	meter *requests // counts the requests; nil counts none
	// admit returns an error for a request that this listener must not answer. done reports that admit has answered.
	admit func(c echo.Context) (done bool, err error)
}

// Shared header values, which cost no allocation in a header map. They are never changed.
var (
	noSniff  = []string{"nosniff"}
	jsonType = []string{"application/json"}
	noStore  = []string{"no-store"}
)

const (
	headerRequestID = "X-Request-Id" // the id of the request in the log
	headerNoSniff   = "X-Content-Type-Options"
)

func (g *gate) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		g.meter.enter()
		defer g.meter.leave()
		h := c.Response().Header()
		h[headerRequestID] = []string{strconv.FormatUint(rand.Uint64()|1<<63, 16)} // 16 digits; unique, but not secret
		h[headerNoSniff] = noSniff
		done, err := g.admit(c)
		if err == nil && !done {
			err = recoverPanic(next, c)
		}
		var refusal *wire.Error
		_, panicked := errors.AsType[*handlerPanic](err)
		// An error response that the handler wrote itself is complete, although the handler also returned the error.
		isTruncated := err != nil && c.Response().Committed && (panicked || c.Response().Status < http.StatusBadRequest)
		if err != nil {
			refusal = PublicError(err)
			c.Echo().HTTPErrorHandler(refusal, c)
		}
		took := time.Since(start)
		g.meter.finish(c.Path(), c.Request().Method, c.Response().Status, took)
		g.logRequest(c, refusal, took)
		if isTruncated {
			panic(http.ErrAbortHandler) // so that the client does not mistake half a response for a complete one
		}
		return nil
	}
}

// handlerPanic is a handler's panic as an error. Its stack is logged and never sent (AM-78).
type handlerPanic struct {
	value any
	stack []byte
}

func (p *handlerPanic) Error() string { return "the handler panicked" }

// recoverPanic calls next and returns a panic of next as an error.
func recoverPanic(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			err = &handlerPanic{value: p, stack: debug.Stack()}
		}
	}()
	return next(c)
}
