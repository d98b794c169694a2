package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// trustedLength is the largest declared length for which ReadBody allocates memory before the body arrives. A client can
// declare a hundred bodies on one connection at almost no cost.
const trustedLength = 8 << 10

// Body reads a JSON body of at most max bytes (line 1 of the receive table in docs/protocol.md). A larger body
// causes [wire.ErrTooLarge] (413); another media type, a charset other than UTF-8 or a content encoding causes a
// 415. For an empty body, Body returns nil.
func Body(c echo.Context, max int) ([]byte, error) {
	r := c.Request()
	if err := checkBodyHeaders(r.Header, r.ContentLength, max); err != nil {
		return nil, err
	}
	body, err := ReadBody(c.Response().Writer, r, int64(max))
	if err != nil || len(body) == 0 {
		return nil, err
	}
	return body, nil
}

// ReadBody reads a body of at most max bytes, whatever its headers say. A larger body causes [wire.ErrTooLarge], and a
// body that cannot be read causes [wire.ErrSyntax]. If w is the server's own ResponseWriter, the server closes the connection
// after a larger body instead of reading the rest.
func ReadBody(w http.ResponseWriter, r *http.Request, max int64) (body []byte, err error) {
	in := http.MaxBytesReader(w, r.Body, max)
	if r.ContentLength >= 0 && r.ContentLength <= trustedLength {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(in, body)
	} else {
		body, err = io.ReadAll(in) // grows with what arrives
	}
	if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
		return nil, wire.ErrTooLarge
	}
	if err != nil {
		return nil, wire.ErrSyntax.Because(err)
	}
	return body, nil
}

// Decode reads a JSON object of at most max bytes into dst. An empty body counts as an empty object.
func Decode(c echo.Context, max int, dst any) error {
	data, err := Body(c, max)
	if err != nil || len(data) == 0 {
		return err
	}
	if _, err := wire.ParseObject(data); err != nil { // encoding/json would accept duplicate members and invalid UTF-8
		return wire.ErrSyntax.Because(err)
	}
	if err := json.Unmarshal(data, dst); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	return nil
}

func checkBodyHeaders(h http.Header, length int64, max int) error {
	if length > int64(max) {
		return wire.ErrTooLarge
	}
	kind := h.Get("Content-Type")
	if kind != "application/json" && (kind != "" || length != 0) { // an empty body needs no media type
		media, params, err := mime.ParseMediaType(kind)
		if charset := params["charset"]; err != nil || media != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
			return wire.ErrMediaType
		}
	}
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return wire.ErrContentEncoding
	}
	return nil
}
