package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// PublicError returns the error that a client may see: the first *[wire.Error] in the chain, otherwise the wire
// error that corresponds to an error of echo, an error of the store or the end of a context, otherwise an internal
// error with err as its cause.
func PublicError(err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDamaged) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return wire.ErrUnavailable.Because(err)
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		switch e.Code {
		case http.StatusNotFound:
			return wire.ErrRoute
		case http.StatusMethodNotAllowed:
			return wire.ErrMethod
		case http.StatusRequestEntityTooLarge:
			return wire.ErrTooLarge
		case http.StatusUnsupportedMediaType:
			return wire.ErrMediaType
		case http.StatusBadRequest:
			return wire.ErrQuery.Because(err)
		}
	}
	return wire.ErrInternal.Because(err)
}

// respondError is echo's error handler. It writes the error body (protocol §8) with the headers of AM-28, unless the
// response has begun.
func respondError(err error, c echo.Context) {
	w := c.Response()
	if w.Committed {
		return
	}
	e := PublicError(err)
	SetErrorHeaders(w.Header(), e)
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(e.Status)
	// An error here means that the client has gone.
	_, _ = w.Write(e.AppendJSON(nil))
}

// SetErrorHeaders sets the headers of an error response (AM-28), and removes those of the handler's own response.
func SetErrorHeaders(h http.Header, e *wire.Error) {
	for _, name := range []string{"Etag", "Last-Modified", "Content-Encoding", wire.HeaderVerification} {
		h.Del(name)
	}
	h["Cache-Control"] = noStore
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if e.RetryAfter > 0 {
			h.Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(e.RetryAfter), 10))
		}
	case http.StatusUnauthorized:
		if e.Code == wire.Unauthorized {
			h.Set("WWW-Authenticate", "Bearer")
		}
	}
}
