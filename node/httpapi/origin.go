package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// publicGate returns the gate of the public listener. In the local profile a request must name a loopback host, which
// defeats DNS rebinding, and a web page of another origin cannot change anything (AM-82).
func publicGate(cfg Config, clients *clients) *gate {
	cross := http.NewCrossOriginProtection()
	for _, origin := range cfg.CORSOrigins {
		if err := cross.AddTrustedOrigin(origin); err != nil {
			panic("httpapi: cors origin: " + err.Error()) // not of the form https://app.example.com
		}
	}
	strict := usesStrictTransport(cfg)
	return &gate{log: cfg.Logger, meter: cfg.Metrics.publicRequests(), admit: func(c echo.Context) (done bool, err error) {
		r := c.Request()
		if strict {
			c.Response().Header()[headerStrictTransport] = strictTransport
		}
		// hasCaller exempts requests that did not come over this listener. It is slow, because it searches the chain
		// of the request's contexts, so it runs only after another check has failed.
		if cfg.Local {
			if !LoopbackHost(r.Host) && !hasCaller(r) {
				return false, wire.ErrForeignHost
			}
			if err := checkOrigin(cross, r); err != nil && !hasCaller(r) {
				return false, wire.ErrCrossOrigin.Because(err)
			}
		} else {
			clients.noteUnknown(r, cfg.Logger)
		}
		return cors(c, cfg.CORSOrigins), nil
	}}
}

// checkOrigin calls cross.Check, which accepts every GET. checkOrigin also refuses an upgrade from another origin,
// because a page of that origin could read and write the upgraded connection.
func checkOrigin(cross *http.CrossOriginProtection, r *http.Request) error {
	if r.Header.Get("Upgrade") == "" {
		return cross.Check(r)
	}
	asWrite := *r
	asWrite.Method = http.MethodPost
	return cross.Check(&asWrite)
}

// withoutPort returns a host without its port, if it has one.
func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// LoopbackHost reports whether a host is localhost or a loopback address, with or without a port.
func LoopbackHost(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(withoutPort(host), "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// cors lets pages of the listed origins read our responses. It answers their preflight requests, and then returns
// true.
func cors(c echo.Context, origins []string) (done bool) {
	r, h := c.Request(), c.Response().Header()
	origin := r.Header.Get("Origin")
	if origin == "" || len(origins) == 0 {
		return false
	}
	h.Add("Vary", "Origin")
	if !slices.Contains(origins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" { // not a preflight request
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE")
	h.Set("Access-Control-Allow-Headers", allowedHeaders)
	h.Set("Access-Control-Max-Age", "600")
	c.Response().WriteHeader(http.StatusNoContent)
	return true
}

const (
	exposedHeaders = "ETag, Retry-After, X-Request-Id, " + wire.HeaderVerification
	allowedHeaders = "Authorization, Content-Type, If-None-Match, " +
		wire.HeaderKeyProof + ", " + wire.HeaderPreviousKeyProof + ", " + wire.HeaderInvite
)

var (
	anyOrigin    = []string{"*"}
	exposedValue = []string{exposedHeaders}
)

// AnyOrigin lets pages of every origin read the response, for routes with public content.
func AnyOrigin(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		if h.Get("Access-Control-Allow-Origin") == "" {
			h["Access-Control-Allow-Origin"] = anyOrigin
			h["Access-Control-Expose-Headers"] = exposedValue
		}
		return next(c)
	}
}
