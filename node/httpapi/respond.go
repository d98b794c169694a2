package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// JSON responds with v as the standard library encodes it, but without escapes for < > &.
func JSON(c echo.Context, status int, v any) error {
	data, err := Encode(v)
	if err != nil {
		return err
	}
	return Raw(c, status, data)
}

// Encode returns v as [JSON] writes it.
func Encode(v any) ([]byte, error) {
	data, err := wire.Encode(v)
	if err != nil {
		return nil, fmt.Errorf("write answer: %w", err)
	}
	return data, nil
}

// Raw responds with encoded JSON, byte for byte.
func Raw(c echo.Context, status int, body []byte) error {
	w := c.Response()
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	// An error here means that the client has gone.
	_, _ = w.Write(body)
	return nil
}

// ServeDocument answers with a document that caches may keep, or with 304 if the client has it. It also answers HEAD.
func ServeDocument(c echo.Context, contentType, cacheControl string, data []byte) {
	h := c.Response().Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", cacheControl)
	h.Set("Etag", EntityTag(data))
	c.Request().Header.Del("Range") // documents are small
	http.ServeContent(c.Response(), c.Request(), "", time.Time{}, bytes.NewReader(data))
}

// EntityTag returns a strong entity tag for the concatenation of parts.
func EntityTag(parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write(part)
	}
	return `"` + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:15]) + `"`
}

// Private keeps caches from storing the response. Responses to the owner, or to a request with a bearer token, are private (AM-59).
func Private(c echo.Context) { c.Response().Header()["Cache-Control"] = noStore }

// KeepOpen lets this request take until d from now, whatever the time-outs of the listener are. A handler that may take longer than
// fifteen seconds must call it after it has read the body. Otherwise the read time-out cancels the request's context
// although the body is complete, and the write time-out loses the response.
func KeepOpen(c echo.Context, d time.Duration) error {
	deadline := time.Now().Add(d)
	rc := http.NewResponseController(c.Response())
	err := errors.Join(rc.SetReadDeadline(deadline), rc.SetWriteDeadline(deadline))
	if errors.Is(err, http.ErrNotSupported) { // a request that came over no connection
		return nil
	}
	return err
}
