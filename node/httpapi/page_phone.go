package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// PhonePath is the path of the page on which a phone signs in, see [PhoneGate].
const PhonePath = PagePath + "/phone"

// PhoneGate decides which requests for the owner's page that came to the public address are admitted. done is as in
// [Owner.admitTCP].
type PhoneGate interface {
	Admit(c echo.Context) (done bool, err error)
}

// overPhone marks requests that came to the public address. Its value is the address of the client.
type overPhone struct{}

// PhoneClient returns the client of a request that came to the public address.
func PhoneClient(r *http.Request) netip.Addr {
	client, _ := r.Context().Value(overPhone{}).(netip.Addr)
	return client
}

func isPhone(r *http.Request) bool { return r.Context().Value(overPhone{}) != nil }

// IsPageAsset reports whether a path is that of a style, a script or an icon of the owner's page.
func IsPageAsset(path string) bool { return strings.HasPrefix(path, staticPath) }

// MountPhone adds the owner's page to the router of the public listener, for requests that name host. Only pages are
// reachable, and only through the gate.
func (o *Owner) MountPhone(public *echo.Echo, host string, gate PhoneGate) {
	o.phone, o.phoneHost = gate, host
	serve := func(c echo.Context) error {
		r := c.Request()
		o.echo.ServeHTTP(c.Response(), r.WithContext(context.WithValue(r.Context(), overPhone{}, ClientAddr(c))))
		return nil
	}
	public.Any(PagePath, serve)
	public.Any(PagePath+"/*", serve)
}

// admitPhone admits a request that came to the public address.
func (o *Owner) admitPhone(c echo.Context) (done bool, err error) {
	r := c.Request()
	switch {
	case !isPage(echo.GetPath(r)):
		return false, wire.ErrRoute
	case !strings.EqualFold(withoutPort(r.Host), o.phoneHost):
		return false, wire.ErrForeignHost
	case hasSecretInURL(r.URL):
		return false, errSecretInURL
	}
	return o.phone.Admit(c)
}
