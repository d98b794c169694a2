package node

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Path is the HTTP path of a node's endpoint.
const Path = "/agentmesh"

// Mount adds the endpoint to e. addresses is the guard of the public listener, which implements line 2 of the receive
// table in docs/protocol.md; nil means no guard.
func (n *Node) Mount(e *echo.Echo, addresses *httpapi.Addresses) {
	e.Match([]string{http.MethodGet, http.MethodHead}, Path, n.getCard)
	e.POST(Path, func(c echo.Context) error { return n.postMessage(c, addresses) })
}

// getCard serves the node's card, so that a directory can compare it with its own copy (AM-63).
func (n *Node) getCard(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "public, max-age=300")
	return httpapi.Raw(c, http.StatusOK, n.Card().WithoutPrivateLists().JSON()) // AM-6
}

func (n *Node) postMessage(c echo.Context, addresses *httpapi.Addresses) error {
	body, err := httpapi.Body(c, wire.MaxMessage) // line 1
	if err != nil {
		return err
	}
	if err := addresses.Check(c); err != nil { // line 2
		return err
	}
	// The sender may wait for a hook; its client gives up after 30 s (AM-32).
	if err := httpapi.KeepOpen(c, n.cfg.SyncDeadline+10*time.Second); err != nil {
		return err
	}
	out, err := n.ReceiveFrom(c.Request().Context(), body, addresses.Sources(c))
	if err != nil {
		if isBadSignature(err) {
			addresses.Fault(c.Request().Context(), httpapi.ClientAddr(c))
		}
		return err
	}
	httpapi.Private(c)
	if out.Status == http.StatusServiceUnavailable { // no answer is stored, or it could not be read (AM-28)
		c.Response().Header().Set("Retry-After", "10")
	}
	return httpapi.Raw(c, out.Status, out.Raw)
}

// WellKnown returns the document in which the node publishes its limits (AM-81).
func (n *Node) WellKnown() wire.WellKnown {
	doc := wire.WellKnown{
		AgentMesh: wire.Version, AgentID: n.ID(), Endpoint: n.Card().Endpoint,
		MaxMessage: wire.MaxMessage, MaxCard: wire.MaxCard,
		WindowPast: int(n.cfg.Window.Past.Seconds()), WindowFuture: int(n.cfg.Window.Future.Seconds()),
	}
	for _, f := range signing.Forms() {
		doc.CanonicalForms = append(doc.CanonicalForms, f.String())
	}
	for _, k := range []signing.Kind{signing.KindEd25519, signing.KindAge, signing.KindOpenPGP} {
		doc.KeyKinds = append(doc.KeyKinds, string(k))
	}
	return doc
}
