package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

type mewCmd struct {
	Spaces   mewSpacesCmd   `cmd:"" default:"withargs" aliases:"list" help:"List the spaces that run here and the spaces behind links."`
	Status   mewStatusCmd   `cmd:"" aliases:"show,peers" help:"Show a space with its participants, capabilities, proposals, reasoning and streams, or ask a participant for its status."`
	Tail     mewTailCmd     `cmd:"" help:"Print the envelopes of a space as they arrive."`
	Chat     mewChatCmd     `cmd:"" aliases:"send" help:"Send a chat message."`
	Propose  mewProposeCmd  `cmd:"" help:"Propose a tool call."`
	Approve  mewApproveCmd  `cmd:"" help:"Approve a proposal and send it as a request."`
	Reject   mewRejectCmd   `cmd:"" help:"Reject a proposal."`
	Cancel   mewCancelCmd   `cmd:"" help:"Ask a participant to stop reasoning."`
	Pause    mewPauseCmd    `cmd:"" help:"Pause a participant."`
	Resume   mewResumeCmd   `cmd:"" help:"Resume a paused participant."`
	Shutdown mewShutdownCmd `cmd:"" help:"Ask a participant to leave."`
	Grant    mewGrantCmd    `cmd:"" help:"Grant capabilities to a participant."`
	Revoke   mewRevokeCmd   `cmd:"" help:"Revoke capabilities of a participant."`
	Invite   mewInviteCmd   `cmd:"" help:"Invite a participant and print its token."`
	Kick     mewKickCmd     `cmd:"" help:"Remove a participant and revoke its token."`
	Connect  mewConnectCmd  `cmd:"" help:"Connect a link now, even after a shutdown or a kick."`
	Gateway  mewGatewayCmd  `cmd:"" help:"Serve the space of a space.yaml to MEW clients, in place of the reference gateway."`
}

// mewGatewayCmd serves one space from the files of the reference implementation. It needs no agent (MEW-D1).
type mewGatewayCmd struct {
	Action      string  `arg:"" optional:"" default:"start" enum:"start" hidden:"" help:"Accepted for compatibility with the reference gateway."`
	Port        uint16  `short:"p" default:"8080" help:"Port on the loopback addresses; 0 chooses a free port."`
	Listen      *string `placeholder:"HOST:PORT" help:"Also listen on this address."`
	LogLevel    string  `short:"l" default:"info" enum:"error,warn,info,debug" help:"Log level: error, warn, info or debug."`
	SpaceConfig string  `short:"s" default:"./space.yaml" placeholder:"FILE" help:"Configuration file of the space."`
	NoAutoStart bool    `help:"Accepted for compatibility: agentmesh never starts participants."`
}

// mewDatabase is the file in a gateway's state folder that stores the lasting state of the participants.
const mewDatabase = "gateway.db"

func (c *mewGatewayCmd) Run(ctx context.Context, a *app) (err error) {
	out, closeLog, err := c.console(a)
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return exit.Fail(exit.Usage, err)
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	dropIn, err := gateway.ReadDropIn(c.SpaceConfig, os.Getenv, log)
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	listeners, port, err := c.listen()
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dropIn.Dir, 0o700); err != nil {
		return exit.Fail(exit.Config, err)
	}
	st, err := datadir.OpenDatabase(ctx, filepath.Join(dropIn.Dir, mewDatabase), log)
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("open the gateway's database: %w", err))
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	audit := acl.NewAudit(st.Records(), acl.AuditConfig{Logger: log})
	g, err := gateway.New(ctx, gateway.Config{
		Spaces: []gateway.SpaceConfig{dropIn.Space}, Records: st.Records(), Audit: audit, AnyPath: true, // like the reference gateway
		PublicURL: "ws://localhost:" + strconv.Itoa(port), Journal: dropIn.Journal(),
		KeepToken: dropIn.KeepToken, Reload: dropIn.Reload, Logger: log,
	})
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	fmt.Fprintf(out, "Gateway listening on port %d\n", port)
	return serveGateway(ctx, g, audit, listeners, log)
}

// console returns the writer for what the gateway prints and logs: standard output, and the file in GATEWAY_LOG_FILE if
// that variable is set (MEW-D1). It also returns a function that closes the file.
func (c *mewGatewayCmd) console(a *app) (io.Writer, func() error, error) {
	name := os.Getenv("GATEWAY_LOG_FILE")
	if name == "" {
		return a.Out, func() error { return nil }, nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("GATEWAY_LOG_FILE: %w", err)
	}
	return io.MultiWriter(a.Out, f), f.Close, nil
}

// listen opens the address of --listen and, because clients connect to localhost, both loopback addresses (MEW-D2). A
// machine without ::1 is not an error. listen also returns the port of the loopback addresses. The caller closes the
// returned listeners, also after an error.
func (c *mewGatewayCmd) listen() ([]net.Listener, int, error) {
	loopback4, err := daemon.Listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(int(c.Port))), "--port")
	if err != nil {
		return nil, 0, err
	}
	out := []net.Listener{loopback4}
	port := loopback4.Addr().(*net.TCPAddr).Port
	loopback6, err := net.Listen("tcp", net.JoinHostPort("::1", strconv.Itoa(port)))
	switch {
	case err == nil:
		out = append(out, loopback6)
	case errors.Is(err, syscall.EADDRINUSE):
		return out, 0, exit.Fail(exit.Unavailable, fmt.Errorf("port %d of ::1 is in use", port))
	}
	if c.Listen != nil {
		l, err := daemon.Listen(*c.Listen, "--listen")
		if err != nil {
			return out, 0, err
		}
		out = append(out, l)
	}
	return out, port, nil
}

// serveGateway runs the gateway until ctx ends, and returns after all its parts have stopped.
func serveGateway(ctx context.Context, g *gateway.Gateway, audit *acl.Audit, listeners []net.Listener, log *slog.Logger) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return g.Run(ctx) })
	all.Go(func() error { audit.Run(ctx); return nil })
	for _, l := range listeners {
		all.Go(func() error { return httpapi.Serve(ctx, g, l, nil, log) })
	}
	return all.Wait()
}
