package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"

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

	socket net.Listener
	tcp    net.Listener
	token  tokenHash
}

// NewOwner returns an owner's edge without any route.
func NewOwner(cfg OwnerConfig) *Owner {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	o := &Owner{cfg: cfg}
	cross := http.NewCrossOriginProtection()
	o.echo = newEcho(&gate{log: cfg.Logger, meter: cfg.Metrics.ownerRequests(), admit: func(c echo.Context) (bool, error) {
		Private(c)
		r := c.Request()
		if err := sameOrigin(cross, r); err != nil {
			return false, wire.ErrCrossOrigin.Because(err)
		}
		if r.Context().Value(overTCP{}) == nil {
			return false, nil
		}
		return false, o.admitTCP(r)
	}}, echo.ExtractIPDirect())
	o.group = o.echo.Group("/owner")
	if cfg.Metrics != nil {
		o.echo.GET("/metrics", cfg.Metrics.serve)
	}
	return o
}

// overTCP marks requests that came over the network instead of through the socket.
type overTCP struct{}

func (o *Owner) admitTCP(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if !LoopbackHost(r.Host) && !slices.Contains(o.cfg.Hosts, host) {
		return wire.ErrForeignHost
	}
	token, ok := Bearer(r)
	if !ok {
		return wire.ErrNoBearer
	}
	if !o.token.matches(token) {
		return wire.ErrNoBearer.Because(errors.New("wrong owner token"))
	}
	return nil
}

// Group is where services add their routes, under /owner.
func (o *Owner) Group() *echo.Group { return o.group }

// Echo is for what lies beside /owner: metrics, the owner's page.
func (o *Owner) Echo() *echo.Echo { return o.echo }

// Handler serves the routes as the socket does, without a token: for callers inside the process.
func (o *Owner) Handler() http.Handler { return o.echo }

// Addr is the address that [OwnerConfig.Listen] led to, nil where there is none or before [Owner.Listen].
func (o *Owner) Addr() net.Addr {
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
	if err := o.listenTCP(); err != nil {
		socket.Close()
		o.socket = nil
		return err
	}
	return nil
}

func (o *Owner) listenTCP() error {
	if !LoopbackHost(o.cfg.Listen) {
		return errors.New("listen for the owner: the address is not a loopback one")
	}
	token, err := ownToken(o.cfg.Dir)
	if err != nil {
		return err
	}
	o.token = token
	o.tcp, err = net.Listen("tcp", o.cfg.Listen)
	return err
}

// Serve answers the owner until ctx ends. It calls Listen where the caller has not.
func (o *Owner) Serve(ctx context.Context) error {
	if o.socket == nil {
		if err := o.Listen(); err != nil {
			return err
		}
	}
	defer leaveShortDir(o.cfg.Dir, o.socket.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx, o.echo, o.socket, o.cfg.Logger) })
	if o.tcp != nil {
		marked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			o.echo.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), overTCP{}, true)))
		})
		g.Go(func() error { return serve(ctx, marked, o.tcp, o.cfg.Logger) })
	}
	return g.Wait()
}
