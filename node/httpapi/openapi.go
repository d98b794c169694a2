package httpapi

import (
	_ "embed"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
)

// openAPI is the OpenAPI document. It is in this directory because a package can embed only its own files, and because
// this package defines the error body and the common routes. Package apitest checks services against it.
//
//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the description of the public API, as it is served at /openapi.yaml.
func OpenAPI() []byte { return slices.Clone(openAPI) }

func serveOpenAPI(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", cacheBriefly)
	return c.Blob(http.StatusOK, "application/yaml", openAPI)
}
