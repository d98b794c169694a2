package owner

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Right is what a caller must be allowed to do for an operation.
type Right string

// The rights. Each includes the ones before it.
const (
	Read   Right = "read"   // see what is there, and mark it as seen
	Send   Right = "send"   // speak in the owner's name, where the owner's rules let messages out
	Decide Right = "decide" // change what others may do, and the node itself
)

// None is the request or answer of an operation that has none.
type None struct{}

// Operation is one call of the owner API.
type Operation struct {
	Method  string
	Path    string // below /owner; ":name" is a parameter, "*" the rest
	Right   Right
	Request reflect.Type // of the JSON body; nil if the operation takes none, or reads something else
	Answer  reflect.Type // of the JSON answer; nil if there is none, or it is something else, such as a stream
	Handle  echo.HandlerFunc
}

// Raw returns an operation that reads its request and writes its answer itself.
func Raw(method, path string, right Right, handle echo.HandlerFunc) Operation {
	return Operation{Method: method, Path: path, Right: right, Handle: handle}
}

// Mount adds operations to the routes below /owner.
func Mount(g *echo.Group, operations ...Operation) {
	for _, op := range operations {
		if op.Method == "" { // it looks at the method itself
			g.Any(op.Path, op.Handle)
			continue
		}
		g.Add(op.Method, op.Path, op.Handle)
	}
}

// Endpoint is an operation without its handler: what the two sides of a call agree on. In is the JSON body of the request,
// Out that of the answer; [None] stands for no body.
type Endpoint[In, Out any] struct {
	Method string
	Path   string // as in [Operation]
	Right  Right
}

// Serve returns the operation that do answers.
func (e Endpoint[In, Out]) Serve(do func(c echo.Context, in In) (Out, error)) Operation {
	op := Operation{Method: e.Method, Path: e.Path, Right: e.Right, Request: bodyType[In](), Answer: bodyType[Out]()}
	op.Handle = func(c echo.Context) error {
		var in In
		if op.Request != nil {
			if err := decode(c, &in); err != nil {
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

// bodyType returns the type of a body, nil for [None].
func bodyType[T any]() reflect.Type {
	if t := reflect.TypeFor[T](); t != reflect.TypeFor[None]() {
		return t
	}
	return nil
}

// Call returns a call of the operation. Each parameter of the path is replaced by one of params, escaped.
func (e Endpoint[In, Out]) Call(params ...string) Call[Out] {
	return Call[Out]{Method: e.Method, Path: strings.TrimPrefix(fillPath(e.Path, params), "/")}
}

// With returns a call of the operation with a body.
func (e Endpoint[In, Out]) With(in In, params ...string) Call[Out] {
	c := e.Call(params...)
	c.Body = in
	return c
}

// fillPath puts parameters into a path.
func fillPath(path string, params []string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if !strings.HasPrefix(part, ":") {
			continue
		}
		if len(params) == 0 {
			panic("owner: " + path + " lacks a parameter") // a mistake of the caller
		}
		parts[i], params = escape(params[0]), params[1:]
	}
	return strings.Join(parts, "/")
}
