package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The REST exchange of MESS section 10. One handler serves all routes, because the order of the checks is fixed:
// exchange id, key, exchange of the key, route, body (MESS-53).

const restPath = "/api/v1/exchanges/:ex"

// maxImport bounds the body of an import (MESS-58).
// Server serves an exchange over HTTP. It is safe for concurrent use once it is mounted.
type Server struct {
	Exchange *exchange.Exchange
	Local    bool // the node serves this machine only: the local profile (AM-82)
	Log      *slog.Logger
	Names    owner.Names // the names under which the owner sees agents; nil without a node
	// Withdraw returns the changes that withdraw the question about a registration; nil without a mesh.
	Withdraw func(ctx context.Context, id string) ([]store.Change, error)
}

// Mount adds the routes for executors and requesters, behind guards.
func (d *Server) Mount(e *echo.Echo, guards ...echo.MiddlewareFunc) {
	e.Any(restPath, d.servePublic, guards...)
	e.Any(restPath+"/*", d.servePublic, guards...)
}

// Operations returns the routes for the owner, who needs no key and may see and do everything. One of the routes
// imports a directory.
func (d *Server) Operations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodPost, "/mess/import", owner.Decide, d.importFiles),
		owner.Raw("" /* any method */, "/mess/exchange/*", owner.Decide, func(c echo.Context) error {
			path, err := segmentsOf(c.Request().URL.EscapedPath(), "/owner/mess/exchange/")
			if err != nil {
				return err
			}
			// errors get the form of the owner API
			return (&call{Server: d, c: c, who: exchange.Owner("cli"), path: path}).dispatch()
		}),
	}
}

// call is one HTTP call.
type call struct {
	*Server
	c    echo.Context
	who  exchange.Actor
	path []string // after the exchange id
}

// segmentsOf splits the path after prefix, then unescapes each segment, so that an escaped slash separates nothing.
func segmentsOf(escaped, prefix string) ([]string, error) {
	parts := strings.Split(strings.Trim(strings.TrimPrefix(escaped, prefix), "/"), "/")
	for i, p := range parts {
		var err error
		if parts[i], err = url.PathUnescape(p); err != nil {
			return nil, thread.Bad("", "the path has an escape sequence that is not valid")
		}
	}
	return parts, nil
}

// servePublic handles a call of an executor or a requester.
func (d *Server) servePublic(c echo.Context) error {
	h := c.Response().Header()
	if !d.Local { // in the local profile, only configured web pages may reach an open exchange
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Authorization, If-Match, Idempotency-Key")
		h.Set("Access-Control-Expose-Headers", "ETag, Retry-After")
	}
	httpapi.Private(c)
	if c.Request().Method == http.MethodOptions {
		return c.NoContent(http.StatusNoContent)
	}
	return d.WriteError(c, d.serve(c))
}

// serve authenticates the caller and calls the handler of the route.
func (d *Server) serve(c echo.Context) error {
	path, err := segmentsOf(c.Request().URL.EscapedPath(), "/api/v1/exchanges/")
	if err != nil {
		return err
	}
	ex := path[0]
	if !registry.ValidExchangeID(ex) {
		return thread.Bad("", "the exchange id must be 1 to 64 characters from A-Z a-z 0-9 -")
	}
	if path = path[1:]; len(path) == 0 {
		path = []string{""} // routeOf needs a segment
	}
	r := &call{Server: d, c: c, path: path}
	if len(r.path) == 1 && r.path[0] == "register" && c.Request().Method == http.MethodPost {
		if ex != d.Exchange.ID() {
			return thread.Missing("no such exchange")
		}
		return d.countFailures(r, r.register)
	}
	if ex == d.Exchange.ID() && routeOf(c.Request().Method, path) == sharedRoute {
		return d.countFailures(r, r.sharedFile)
	}
	err = d.countFailures(r, func() error {
		id, err := d.Exchange.Executors.Authenticate(c.Request().Header.Get("Authorization"), ex)
		r.who = exchange.Actor{ID: id, Channel: "rest"}
		return err
	})
	if err != nil {
		return err
	}
	return r.dispatch()
}

// countFailures calls check, which verifies a secret of the caller, and counts wrong secrets. An address with too many
// wrong secrets must wait, but a correct secret always passes, because an address may be shared. In the local profile
// all callers have the same address, and nothing is counted.
func (d *Server) countFailures(r *call, check func() error) error {
	err := check()
	if d.Local {
		return err
	}
	return d.Exchange.Executors.CountFailure(httpapi.ClientAddr(r.c), err)
}

// restError is the error body that existing clients read.
type restError struct {
	Error string `json:"error"`
}

// WriteError writes an error in the form of this protocol. Errors that are not refusals are logged here and answered as
// "internal error" or "unavailable".
func (d *Server) WriteError(c echo.Context, err error) error {
	if err == nil || c.Response().Committed {
		return err
	}
	if _, refused := errors.AsType[*wire.Error](err); !refused {
		d.Log.Error("a call to the exchange failed", "error", err)
	}
	e := httpapi.PublicError(err)
	httpapi.SetErrorHeaders(c.Response().Header(), e)
	return httpapi.JSON(c, e.Status, restError{e.Message})
}

type route struct {
	owner  string // what only the owner may do here; "" if everybody with a key may call the route
	handle func(*call) error
}

// routes are the routes below the exchange, except those that need no key; {} matches a segment. openapi.yaml describes
// the routes that are not for the owner alone.
var routes = map[string]route{
	"GET requests":                    {"", (*call).list},
	"POST requests":                   {"", (*call).create},
	"GET requests/{}":                 {"", (*call).show},
	"PATCH requests/{}":               {"", (*call).patch},
	"GET requests/{}/attachments/{}":  {"", (*call).attachment},
	"POST requests/{}/attachments/{}": {"upload; others send data inline", (*call).upload},
	"GET executors":                   {"", (*call).executors},
	"PATCH executors/{}":              {"", (*call).patchExecutor},
	"POST executors/{}/approve":       {"approve a registration", (*call).approve},
	"POST executors/{}/key":           {"give an executor another key", (*call).giveKey},
	"DELETE executors/{}/key":         {"take the key of an executor", (*call).takeKey},
	"GET capabilities":                {"", (*call).capabilities},
	"POST capabilities":               {"change the catalog", (*call).addCapabilities},
	"GET routing":                     {"read the routing rules", (*call).routing},
	"GET export/{}":                   {"", (*call).export},
	"POST messages":                   {"", (*call).messages},
}

// routeOf returns the key in routes of a call with this method and path. Every second segment of a path is an id or
// name.
func routeOf(method string, path []string) string {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var name strings.Builder
	name.WriteString(method + " " + path[0])
	for i, part := range path[1:] {
		if i%2 == 0 {
			part = "{}"
		}
		name.WriteString("/" + part)
	}
	return name.String()
}

// dispatch calls the handler of the route.
func (r *call) dispatch() error {
	found, ok := routes[routeOf(r.c.Request().Method, r.path)]
	switch {
	case !ok:
		return thread.Missing("no such route")
	case found.owner != "" && !r.who.Owner:
		return thread.Forbidden("only the owner may " + found.owner)
	}
	return found.handle(r)
}

// readBody reads the body of the call, which may have at most max bytes.
func (r *call) readBody(max int64) ([]byte, error) {
	req := r.c.Request()
	if req.ContentLength > max {
		return nil, thread.TooLarge(fmt.Sprintf("the body is larger than %d MiB", max>>20))
	}
	data, err := httpapi.ReadBody(r.c.Response().Writer, req, max)
	if errors.Is(err, wire.ErrTooLarge) {
		return nil, thread.TooLarge(fmt.Sprintf("the body is larger than %d MiB", max>>20))
	}
	if err != nil {
		return nil, thread.Bad("", "the body could not be read")
	}
	return data, nil
}

// readObject reads a JSON object from the body.
func (r *call) readObject() (wire.Value, error) {
	v, err := r.readJSON()
	if err == nil && v.Kind() != wire.Object {
		return v, thread.Bad("", "the body must be a JSON object")
	}
	return v, err
}

// readJSON reads JSON from the body.
func (r *call) readJSON() (wire.Value, error) {
	data, err := r.readBody(thread.MaxDocument)
	if err != nil {
		return wire.Value{}, err
	}
	return thread.ParseJSON(data)
}

// respond writes a value as the answer.
func (r *call) respond(status int, v wire.Value) error {
	return httpapi.Raw(r.c, status, append(v.JSON(), '\n'))
}

var replayKeyForm = regexp.MustCompile(`^[\x20-\x7e]+$`)

// readReplayKey returns the replay key for the Idempotency-Key of a call, or nil for a call without one. The replay key
// also depends on the caller, the route and the body.
func (r *call) readReplayKey(body wire.Value) (*exchange.ReplayKey, error) {
	list := r.c.Request().Header.Values("Idempotency-Key")
	if len(list) == 0 {
		return nil, nil
	}
	if len(list) > 1 || len(list[0]) > 255 || !replayKeyForm.MatchString(list[0]) {
		return nil, thread.Bad("Idempotency-Key", "must be a single value of 1 to 255 printable characters")
	}
	return exchange.NewCallReplay(r.who, list[0], wire.Arr(wire.Text(r.c.Request().Method), wire.Texts(r.path), body)), nil
}

// ReadBlock reads a block of the owner for the route that path names, and the replay key of the call.
func (d *Server) ReadBlock(c echo.Context, path ...string) (thread.Block, *exchange.ReplayKey, error) {
	r := &call{Server: d, c: c, who: exchange.Owner("cli"), path: path}
	v, err := r.readJSON()
	if err != nil {
		return nil, nil, err
	}
	replay, err := r.readReplayKey(v)
	if err != nil {
		return nil, nil, err
	}
	block, err := thread.FromTree(v)
	return block, replay, err
}
