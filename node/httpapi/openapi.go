package httpapi

import (
	_ "embed"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
)

// The document stands here and not in docs/ because it can only be embedded from its package's folder, and because
// this package has the error body and the common routes of which most of it consists. Package apitest holds the
// answers of the services against it.
//
//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the description of the public API, as it is served at /openapi.yaml.
func OpenAPI() []byte { return slices.Clone(openAPI) }

func serveOpenAPI(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", wellKnownAge)
	return c.Blob(http.StatusOK, "application/yaml", openAPI)
}
