package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

// logRequest writes the log line of one request. Its level follows what an operator must see: our faults are errors,
// a 503 is a warning, changes and refusals are info. Responses that can go out by the thousand (to successful reads,
// and 429) are debug. The line leaves out the query, which may hold secrets, and makes the client's other texts
// printable.
func (g *gate) logRequest(c echo.Context, refusal *wire.Error, took time.Duration) {
	r, w := c.Request(), c.Response()
	level := slog.LevelInfo
	switch {
	case w.Status >= 500 && w.Status != http.StatusServiceUnavailable:
		level = slog.LevelError
	case w.Status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case w.Status == http.StatusTooManyRequests, w.Status < 400 && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		level = slog.LevelDebug
	}
	if !g.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", c.Response().Header().Get(headerRequestID)),
		slog.String("method", printable(r.Method)),
		slog.String("path", printable(r.URL.EscapedPath())),
		slog.String("route", c.Path()),
		slog.Int("status", w.Status),
		slog.Int64("bytes", w.Size),
		slog.Duration("took", took),
	}
	if client := ClientAddr(c); client == rate.Unknown {
		attrs = append(attrs, slog.String("client", "unknown"))
	} else if client.IsValid() { // a Unix socket has no client address
		attrs = append(attrs, slog.String("client", client.String()))
	}
	if refusal != nil {
		if row := refusal.Row(); row != "" { // errors that only the owner gets are not in the error table
			attrs = append(attrs, slog.String("refused", row))
		}
		if cause := errors.Unwrap(refusal); cause != nil {
			attrs = append(attrs, slog.String("cause", printable(cause.Error())))
		}
		if p, ok := errors.AsType[*handlerPanic](refusal); ok {
			attrs = append(attrs, slog.String("panic", printable(fmt.Sprint(p.value))), slog.String("stack", string(p.stack)))
		}
	}
	g.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// printable returns s, cut to 256 bytes. If s has anything except printable ASCII, printable quotes and escapes it,
// because people read logs on terminals (THREATS row 28).
func printable(s string) string {
	const maxBytes = 256
	if len(s) > maxBytes {
		s = s[:maxBytes]
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return s
	}
	return strconv.QuoteToASCII(s)
}
