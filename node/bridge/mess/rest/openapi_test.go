package rest

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestEveryRouteIsDescribed: the exchange has the routes that openapi.yaml describes, and no others except those for
// the owner.
func TestEveryRouteIsDescribed(t *testing.T) {
	var described []string
	for _, op := range apitest.Operations(t, "mess") {
		op = regexp.MustCompile(`/api/v1/exchanges/\{exchange\}/`).ReplaceAllString(op, "")
		described = append(described, regexp.MustCompile(`\{\w+\}`).ReplaceAllString(op, "{}"))
	}
	slices.Sort(described)
	served := []string{"POST register", sharedRoute} // these need no key
	for name, r := range routes {
		if r.owner == "" {
			served = append(served, name)
		}
	}
	slices.Sort(served)
	if diff := cmp.Diff(described, served); diff != "" {
		t.Errorf("routes (-openapi.yaml +served):\n%s", diff)
	}
}
