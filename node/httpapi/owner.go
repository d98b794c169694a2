package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/wire"
)

// OwnerConfig configures the owner's listener.
type OwnerConfig struct {
	// Dir is the data directory, which holds the socket and the token.
	Dir string
	// Listen is a loopback address ("127.0.0.1:0") that serves the same routes to clients with the token; "" for none.
	Listen string
	// ListenTCP opens the TCP listener; nil means net.Listen.
	ListenTCP func(address string) (net.Listener, error)
	// Agent configures the agent's door, the routes that the owner's agent may use.
	Agent AgentDoor
	// Hosts are the names that a request over TCP may have in Host, besides those of loopback.
	Hosts []string
	// LinkHost is a name that a request over TCP may have in Host for a path below [LinkPath]; "" for none.
	LinkHost string
	// Logger gets one line per request; nil discards them.
	Logger *slog.Logger
	// Metrics are served at /metrics; nil serves none.
	Metrics *Metrics
}

// Owner is the listener for the owner alone (AM-77). On the Unix socket, the permissions of the file authenticate
// the owner. Over TCP, a request must name an allowed host and have the token of [TokenFile] or, for a page, the
// session of a browser that has signed in. Pages below [LinkPath] check their links instead. Over both, a web page
// of another origin cannot change anything.
type Owner struct {
	cfg   OwnerConfig
	echo  *echo.Echo
	group *echo.Group
	pages *Pages

	phone     PhoneGate // of requests that came to the public address
	phoneHost string

	agentUsed atomic.Int64 // when the agent's door was last called, in Unix seconds
	agent     *echo.Echo   // the router of the agent's door

	socket       net.Listener
	hookDir      string            // the directory of the sockets for hooks
	hookSockets  map[int]string    // paths of the sockets for hooks, by the user who may open them
	agentSockets []net.Listener    // of the agent's door
	opened       chan net.Listener // a TCP listener that was opened while Serve runs

	mu         sync.Mutex // guards the fields below
	tcp        net.Listener
	token      tokenHash
	agentToken tokenHash // zero if no token is configured
}

// NewOwner returns an owner's listener without the routes of services.
func NewOwner(cfg OwnerConfig) *Owner {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	o := &Owner{
		cfg: cfg, opened: make(chan net.Listener, 1),
		// The name is random, because anybody could take a predictable one first.
		hookDir: filepath.Join(os.TempDir(), "agentmesh-"+rand.Text()[:12]), hookSockets: make(map[int]string),
	}
	cross := http.NewCrossOriginProtection()
	o.echo = newEcho(&gate{log: cfg.Logger, meter: cfg.Metrics.ownerRequests(), admit: func(c echo.Context) (done bool, err error) {
		Private(c)
		r := c.Request()
		if err := checkOrigin(cross, r); err != nil {
			return false, wire.ErrCrossOrigin.Because(err)
		}
		if isPage(echo.GetPath(r)) {
			setPageHeaders(c.Response().Header())
		}
		switch {
		case isPhone(r):
			return o.admitPhone(c)
		case r.Context().Value(overTCP{}) == nil:
			return false, nil
		}
		return o.admitTCP(c)
	}}, echo.ExtractIPDirect())
	o.pages = newPages(o.echo, cfg.Dir)
	o.echo.Use(unescapeParams)
	o.agent = o.newAgentEcho()
	o.group = o.echo.Group("/owner")
	o.mountPages()
	if cfg.Metrics != nil {
		o.echo.GET("/metrics", cfg.Metrics.serve)
	}
	return o
}

// unescapeParams makes Param return the text that a segment of the path stands for, such as "mew:lab/bob" for
// "mew:lab%2Fbob". The router leaves the segments of a path with an escaped slash as they are. The rest of a path, "*",
// stays escaped, because it may have several segments.
func unescapeParams(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawPath != "" {
			values := slices.Clone(c.ParamValues())
			for i, name := range c.ParamNames() {
				if text, err := url.PathUnescape(values[i]); err == nil && name != "*" {
					values[i] = text
				}
			}
			c.SetParamValues(values...)
		}
		return next(c)
	}
}

// overTCP marks requests that came over TCP and not through the socket.
type overTCP struct{}

// LinkPath is the path of the pages that a link opens without a sign-in. Their handlers must check the link.
const LinkPath = "/owner/link"

func isLink(path string) bool { return strings.HasPrefix(path, LinkPath+"/") }

// Links returns the router for pages below [LinkPath], and their style.
func (o *Owner) Links() (*echo.Group, *PublicPages) {
	return o.echo.Group(LinkPath), newPublicPages(o.echo, LinkPath)
}

// admitTCP authenticates a request over TCP: by the token or, for pages, by the session of a browser that has signed
// in. A page below [LinkPath] authenticates its own requests. done reports whether admitTCP has answered the request.
func (o *Owner) admitTCP(c echo.Context) (done bool, err error) {
	r, path := c.Request(), echo.GetPath(c.Request())
	if err := o.checkHost(r, path); err != nil || isLink(path) {
		return false, err
	}
	o.mu.Lock()
	ownerToken := o.token
	o.mu.Unlock()
	if isPage(path) {
		return o.pages.admit(c, ownerToken)
	}
	token, ok := Bearer(r)
	if !ok {
		return false, wire.ErrNoBearer
	}
	if !ownerToken.matches(token) {
		return false, wire.ErrNoBearer.Because(errors.New("wrong owner token"))
	}
	return false, nil
}

// checkHost checks that a request over TCP names an allowed host and has no secret in its URL. For
// [OwnerConfig.LinkHost], it allows only link pages, and does not look for secrets in their URLs.
func (o *Owner) checkHost(r *http.Request, path string) error {
	host := withoutPort(r.Host)
	switch {
	case isLink(path) && strings.EqualFold(host, o.cfg.LinkHost):
	case !LoopbackHost(r.Host) && !slices.Contains(o.cfg.Hosts, host):
		return wire.ErrForeignHost
	case hasSecretInURL(r.URL):
		return errSecretInURL
	}
	return nil
}

// Group returns the group under /owner to which services add their routes.
func (o *Owner) Group() *echo.Group { return o.group }

// Pages returns the owner's page, to which services add their parts.
func (o *Owner) Pages() *Pages { return o.pages }

// Echo returns the router, for routes outside of /owner.
func (o *Owner) Echo() *echo.Echo { return o.echo }

// Handler serves the routes to callers in this process, without a token, as the socket does.
func (o *Owner) Handler() http.Handler { return o.echo }

// Addr returns the address of the TCP listener, or nil before [Owner.Listen] or [Owner.Open] opens one.
func (o *Owner) Addr() net.Addr {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tcp == nil {
		return nil
	}
	return o.tcp.Addr()
}

// Listen opens the sockets and the TCP address. A process calls it before Serve to fail early.
func (o *Owner) Listen() error {
	socket, err := listenSocket(o.cfg.Dir)
	if err != nil {
		return err
	}
	o.socket = socket
	if err = o.listenAgent(); err == nil {
		err = o.listenHooks()
	}
	switch {
	case err != nil || o.cfg.Listen == "":
	case !LoopbackHost(o.cfg.Listen):
		err = errors.New("listen for the owner: the address is not a loopback address")
	default:
		o.mu.Lock()
		err = o.listenTCP(o.cfg.Listen)
		o.mu.Unlock()
	}
	if err != nil {
		for _, l := range append(o.agentSockets, o.socket) {
			l.Close()
		}
		os.RemoveAll(o.hookDir)
		o.socket, o.agentSockets = nil, nil
	}
	return err
}

// listenTCP opens the TCP listener. The caller holds mu.
func (o *Owner) listenTCP(address string) error {
	token, err := loadToken(o.cfg.Dir)
	if err != nil {
		return err
	}
	if err := o.pages.sessions.load(token); err != nil {
		return err
	}
	listen := o.cfg.ListenTCP
	if listen == nil {
		listen = func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	tcp, err := listen(address)
	if err != nil {
		return err
	}
	o.token, o.tcp = token, tcp
	return nil
}

// pagePort is the address of the owner's page if none is configured. The port is fixed, so that an open page finds the
// process again after a restart. If another process uses it, Open takes a free port.
const pagePort = "127.0.0.1:3149"

// Open returns the address of the owner's page. Without [OwnerConfig.Listen], the first call starts to listen on
// loopback until the process ends.
func (o *Owner) Open() (net.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tcp != nil {
		return o.tcp.Addr(), nil
	}
	if o.socket == nil {
		return nil, errNotServing
	}
	err := o.listenTCP(pagePort)
	if err != nil {
		err = o.listenTCP("127.0.0.1:0")
	}
	if err != nil {
		return nil, wire.ErrUnavailable.Because(err)
	}
	o.opened <- o.tcp // does not block: the channel has room
	return o.tcp.Addr(), nil
}

// errNotServing means that this process is a command that does not serve. Its status is not 503, which the log of
// requests would print as a warning beside the error of the command.
var errNotServing = &wire.Error{
	Code: wire.AgentUnavailable, Status: http.StatusConflict,
	Message: "no agentmesh serve runs on this data directory; start it to open the page",
}

// Serve answers the owner until ctx ends. It calls Listen if the caller has not.
func (o *Owner) Serve(ctx context.Context) error {
	if o.socket == nil {
		if err := o.Listen(); err != nil {
			return err
		}
	}
	defer os.RemoveAll(o.hookDir)
	defer context.AfterFunc(ctx, o.pages.stop)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return Serve(ctx, http.HandlerFunc(o.pickDoor), o.socket, nil, o.cfg.Logger) })
	for _, l := range o.agentSockets {
		g.Go(func() error { return Serve(ctx, o.agent, l, nil, o.cfg.Logger) })
	}
	tcpHandler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.pickDoor(w, r.WithContext(context.WithValue(r.Context(), overTCP{}, true)))
	})
	o.mu.Lock()
	tcp := o.tcp
	o.mu.Unlock()
	g.Go(func() error {
		if tcp == nil {
			select {
			case tcp = <-o.opened:
			case <-ctx.Done():
				return nil
			}
		}
		return Serve(ctx, tcpHandler, tcp, nil, o.cfg.Logger)
	})
	return g.Wait()
}
