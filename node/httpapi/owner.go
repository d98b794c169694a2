package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/wire"
)

// OwnerConfig says where the owner reaches the process.
type OwnerConfig struct {
	// Dir is the data directory: it holds the socket and the token.
	Dir string
	// RuntimeDir takes the socket when its path in Dir would be too long ($XDG_RUNTIME_DIR); "" is a new
	// directory of our own below the system's temporary one.
	RuntimeDir string
	// Listen is a loopback address ("127.0.0.1:0") to serve the same routes on behind the token; "" for none.
	Listen string
	// Hosts are names beside the loopback ones that a request over TCP may carry in Host.
	Hosts []string
	// Logger gets one line per request; nil discards them.
	Logger *slog.Logger
	// Metrics are served at /metrics; nil serves none.
	Metrics *Metrics
}

// Owner is the listener for the owner alone (AM-77). On the Unix socket the permissions of the file are the
// authentication. Over TCP a request must carry the token of [TokenFile] and name an allowed host. On both, no
// web page of another origin may change anything.
type Owner struct {
	cfg   OwnerConfig
	echo  *echo.Echo
	group *echo.Group
	pages *Pages

	socket net.Listener
	late   chan net.Listener // opened while it serves

	mu    sync.Mutex // guards what follows
	tcp   net.Listener
	token tokenHash
}

// NewOwner returns an owner's edge without any route.
func NewOwner(cfg OwnerConfig) *Owner {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	o := &Owner{cfg: cfg, pages: newPages(cfg.Dir), late: make(chan net.Listener, 1)}
	cross := http.NewCrossOriginProtection()
	o.echo = newEcho(&gate{log: cfg.Logger, meter: cfg.Metrics.ownerRequests(), admit: func(c echo.Context) (bool, error) {
		Private(c)
		r := c.Request()
		if err := sameOrigin(cross, r); err != nil {
			return false, wire.ErrCrossOrigin.Because(err)
		}
		page := isPage(echo.GetPath(r))
		if page {
			shut(c.Response().Header())
		}
		if r.Context().Value(overTCP{}) == nil {
			return false, nil
		}
		return o.admitTCP(c, page)
	}}, echo.ExtractIPDirect())
	o.group = o.echo.Group("/owner")
	o.mountPages()
	if cfg.Metrics != nil {
		o.echo.GET("/metrics", cfg.Metrics.serve)
	}
	return o
}

// overTCP marks requests that came over the network instead of through the socket.
type overTCP struct{}

// admitTCP says who may ask over the network: whoever carries the token, and for pages a browser that has signed in.
func (o *Owner) admitTCP(c echo.Context, page bool) (done bool, err error) {
	r := c.Request()
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if !LoopbackHost(r.Host) && !slices.Contains(o.cfg.Hosts, host) {
		return false, wire.ErrForeignHost
	}
	if secretInURL(r.URL) {
		return false, errSecretInURL
	}
	o.mu.Lock()
	own := o.token
	o.mu.Unlock()
	if page {
		return o.pages.admit(c, own)
	}
	token, ok := Bearer(r)
	if !ok {
		return false, wire.ErrNoBearer
	}
	if !own.matches(token) {
		return false, wire.ErrNoBearer.Because(errors.New("wrong owner token"))
	}
	return false, nil
}

// Group is where services add their routes, under /owner.
func (o *Owner) Group() *echo.Group { return o.group }

// Pages is the owner's page, for services to add their parts to.
func (o *Owner) Pages() *Pages { return o.pages }

// Echo is for what lies beside /owner: metrics.
func (o *Owner) Echo() *echo.Echo { return o.echo }

// Handler serves the routes as the socket does, without a token: for callers inside the process.
func (o *Owner) Handler() http.Handler { return o.echo }

// Addr is the address that [OwnerConfig.Listen] led to, nil where there is none or before [Owner.Listen].
func (o *Owner) Addr() net.Addr {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tcp == nil {
		return nil
	}
	return o.tcp.Addr()
}

// Listen opens socket and address, so that a process can say early that it cannot.
func (o *Owner) Listen() error {
	socket, err := listenSocket(o.cfg.Dir, o.cfg.RuntimeDir)
	if err != nil {
		return err
	}
	o.socket = socket
	if o.cfg.Listen == "" {
		return nil
	}
	if !LoopbackHost(o.cfg.Listen) {
		err = errors.New("listen for the owner: the address is not a loopback one")
	} else {
		o.mu.Lock()
		err = o.listenTCP(o.cfg.Listen)
		o.mu.Unlock()
	}
	if err != nil {
		socket.Close()
		o.socket = nil
		return err
	}
	return nil
}

// listenTCP needs the lock.
func (o *Owner) listenTCP(address string) error {
	token, err := ownToken(o.cfg.Dir)
	if err != nil {
		return err
	}
	if err := o.pages.sessions.load(token); err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	o.token, o.tcp = token, tcp
	return nil
}

// pagePort is where the page is opened when the owner asks for it and the configuration names no address: the same
// port every time where it is free, so that a page which stays open finds the process again.
const pagePort = "127.0.0.1:3149"

// Open returns the address of the owner's page. Where [OwnerConfig.Listen] named none it starts to listen on loopback,
// until the process ends: a port that nobody asked for is not opened.
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
	if err != nil { // somebody else has it
		err = o.listenTCP("127.0.0.1:0")
	}
	if err != nil {
		return nil, wire.ErrUnavailable.Because(err)
	}
	o.late <- o.tcp // it has room for the one
	return o.tcp.Addr(), nil
}

// errNotServing: a command that runs without a serve has no listener.
var errNotServing = &wire.Error{
	Code: wire.AgentUnavailable, Status: http.StatusServiceUnavailable,
	Message: "the page is served by a running agentmesh serve; start one on this data directory",
}

// Serve answers the owner until ctx ends. It calls Listen where the caller has not.
func (o *Owner) Serve(ctx context.Context) error {
	if o.socket == nil {
		if err := o.Listen(); err != nil {
			return err
		}
	}
	defer leaveShortDir(o.cfg.Dir, o.socket.Addr().String())
	defer context.AfterFunc(ctx, o.pages.stop)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx, o.echo, o.socket, nil, o.cfg.Logger) })
	marked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.echo.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), overTCP{}, true)))
	})
	o.mu.Lock()
	tcp := o.tcp
	o.mu.Unlock()
	g.Go(func() error {
		if tcp == nil {
			select {
			case tcp = <-o.late:
			case <-ctx.Done():
				return nil
			}
		}
		return serve(ctx, marked, tcp, nil, o.cfg.Logger)
	})
	return g.Wait()
}
