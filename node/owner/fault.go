package owner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// maxBody bounds a request of the owner: a payload or a card.
const maxBody = wire.MaxMessage + 4<<10

// Fault returns an error for the owner, who may see more than a stranger. hint is optional: what to do next.
func Fault(status int, message, hint string) error {
	if hint != "" {
		message += "; " + hint
	}
	return &wire.Error{Code: wire.InvalidMessage, Status: status, Message: message}
}

// Explain translates errors of lower packages into texts for the owner. It returns other errors unchanged.
func Explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return Fault(http.StatusNotFound, "there is no such entry", "list the entries first; an id may be shortened to a unique prefix")
	case errors.Is(err, client.ErrNoKeyChange):
		return Fault(http.StatusConflict, client.ErrNoKeyChange.Error(), "see: agentmesh approvals list")
	case errors.Is(err, acl.ErrAskGone), errors.Is(err, acl.ErrHashMismatch), errors.Is(err, acl.ErrNotShown), errors.Is(err, acl.ErrChoice):
		return Fault(http.StatusConflict, err.Error(), "")
	case errors.Is(err, store.ErrConflict):
		return Fault(http.StatusConflict, "the entry was changed meanwhile", "read it again and retry")
	}
	return err
}

// doorForm is the form of a name in [httpapi.DoorHeader].
var doorForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Door returns the name of the interface through which a request came, from [httpapi.DoorHeader]: "api" if the header
// has no valid name.
func Door(c echo.Context) string { return doorOf(c, "") }

// Author returns who wrote a message that came through a door: "agent" or "owner".
func Author(door string) string {
	if door == httpapi.DoorOfAgent {
		return door
	}
	return "owner"
}

// doorOf is [Door] for a request whose body may also name the door: bodyName, which takes precedence over the header.
func doorOf(c echo.Context, bodyName string) string {
	for _, name := range []string{bodyName, c.Request().Header.Get(httpapi.DoorHeader)} {
		if doorForm.MatchString(name) {
			return name
		}
	}
	return "api"
}

// ReadRequest reads a JSON request strictly, because a misspelled field may change a decision. An empty body is an
// empty request.
func ReadRequest(c echo.Context, v any) error {
	body, err := httpapi.Body(c, maxBody)
	if err != nil || len(body) == 0 {
		return err
	}
	tree, err := wire.ParseObject(body)
	if err != nil {
		return wire.ErrSyntax.Because(err)
	}
	in := json.NewDecoder(bytes.NewReader(tree.JSON()))
	in.DisallowUnknownFields()
	if err := in.Decode(v); err != nil {
		return explainDecode(err)
	}
	return nil
}

// explainDecode translates an error of the JSON decoder into a text without the names of Go types.
func explainDecode(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return Fault(http.StatusBadRequest, fmt.Sprintf("%s has the wrong type: %s", e.Field, e.Value), "")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return Fault(http.StatusBadRequest, "there is no field "+name, "")
	}
	return Fault(http.StatusBadRequest, "the request is not valid: "+err.Error(), "")
}
