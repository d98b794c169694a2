package owner

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Right is the permission that an operation requires.
type Right string

// The rights. Each includes the previous ones.
const (
	Read Right = "read" // see what exists, and mark it as seen
	Send Right = "send" // write in the owner's name, within the owner's rules for outgoing messages
	// Decide is for the owner alone: change the node and what others may do; send past the owner's rules; see what
	// waits for the owner's decision, the notices, the audit log and exports.
	Decide Right = "decide"
)

// None is the type of a missing request or answer body.
type None struct{}

// Operation is one call of the owner API.
type Operation struct {
	Method  string // empty if the handler accepts several methods and checks them itself
	Path    string // below /owner; ":name" stands for one segment, "*" for the rest of the path
	Right   Right
	Request reflect.Type // of the JSON body; nil if the request has no body or the handler reads it in another format
	Answer  reflect.Type // of the JSON answer; nil if the answer has no body or another format, such as a stream
	Handle  echo.HandlerFunc

	handleAgent echo.HandlerFunc // the handler for the owner's agent; nil: Handle
}

// Raw returns an operation without JSON bodies of a fixed type: handle itself reads the request and writes the answer.
func Raw(method, path string, right Right, handle echo.HandlerFunc) Operation {
	return Operation{Method: method, Path: path, Right: right, Handle: handle}
}

// Mount adds operations to the routes below /owner.
func Mount(g *echo.Group, operations ...Operation) {
	for _, op := range operations {
		if op.Method == "" {
			g.Any(op.Path, op.Handle)
			continue
		}
		g.Add(op.Method, op.Path, op.Handle)
	}
}

// Endpoint is the part of an operation that the server and its clients share. In is the type of the JSON body of the
// request, Out the type of the JSON body of the answer; [None] stands for a missing body.
type Endpoint[In, Out any] struct {
	Method string
	Path   string // as in [Operation]
	Right  Right
}

// Serve returns the operation with do as its handler.
func (e Endpoint[In, Out]) Serve(do func(c echo.Context, in In) (Out, error)) Operation {
	op := Operation{Method: e.Method, Path: e.Path, Right: e.Right, Request: bodyType[In](), Answer: bodyType[Out]()}
	op.Handle = func(c echo.Context) error {
		var in In
		if op.Request != nil {
			if err := ReadRequest(c, &in); err != nil {
				return err
			}
		}
		out, err := do(c, in)
		switch {
		case err != nil:
			return Explain(err)
		case op.Answer == nil:
			return c.NoContent(http.StatusNoContent)
		}
		return httpapi.JSON(c, http.StatusOK, out)
	}
	return op
}

func bodyType[T any]() reflect.Type {
	if t := reflect.TypeFor[T](); t != reflect.TypeFor[None]() {
		return t
	}
	return nil
}

// Call returns a call of the operation without a body. It fills the parameters of the path with params, in order and
// escaped.
func (e Endpoint[In, Out]) Call(params ...string) Call[Out] {
	return Call[Out]{Method: e.Method, Path: strings.TrimPrefix(fillPath(e.Path, params), "/")}
}

// With is [Endpoint.Call] for a call that has a body.
func (e Endpoint[In, Out]) With(body In, params ...string) Call[Out] {
	c := e.Call(params...)
	c.Body = body
	return c
}

// fillPath replaces each ":name" segment of a path with the next of params, escaped. It panics if params are too few.
func fillPath(path string, params []string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if !strings.HasPrefix(part, ":") {
			continue
		}
		if len(params) == 0 {
			panic("owner: " + path + ": too few parameters for the path") // a mistake in the calling code
		}
		parts[i], params = url.PathEscape(params[0]), params[1:]
	}
	return strings.Join(parts, "/")
}
