package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Client calls the owner API of the serve process on the data directory, or the same handlers in this process. It is
// safe for concurrent use.
type Client struct {
	owner.Client
	close      func() error
	Local      *Process    // this process if it answers the calls itself, else nil
	dataDir    datadir.Dir // empty if the client came through the agent's door
	socket     string      // of the other process that answers
	unanswered atomic.Bool // the calls go to another process, which has not answered one yet
}

// firstAnswerTimeout is how long a running process may take to answer the first call.
const firstAnswerTimeout = 10 * time.Second

// unreachableAfter is how long a command tries to reach a process that says that it serves.
const unreachableAfter = time.Second

// awaitAnswer returns an error if the running process has the owner's socket but does not answer. It makes a
// separate call with a time limit. Real calls have none, because they may wait for a peer or for the owner.
func (o *Client) awaitAnswer(ctx context.Context) error {
	if !o.unanswered.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/owner/version", nil)
	if err != nil {
		return fmt.Errorf("ask the running agentmesh: %w", err)
	}
	resp, err := o.HTTP.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		process := "the process at " + o.socket
		if o.dataDir != "" {
			process = o.dataDir.Holder() + " uses the data directory " + string(o.dataDir) + " and"
		}
		return exit.FailHint(exit.Unavailable, fmt.Errorf("%s has not answered for %s", process, firstAnswerTimeout), "look at its log, and stop it if it hangs")
	}
	if err != nil {
		return exit.Fail(exit.Unavailable, fmt.Errorf("ask the running agentmesh: %w", err))
	}
	o.unanswered.Store(false)
	return resp.Body.Close()
}

// Connect returns a client of the owner API. If serve is not running, Connect calls readOptions and opens the data
// directory in this process. If another process uses the directory, Connect waits up to commandWait until that process
// answers or releases the directory. The caller closes the client.
func Connect(ctx context.Context, dir datadir.Dir, readOptions func() (Options, error)) (c *Client, err error) {
	if c := Running(ctx, string(dir)); c != nil {
		return c, nil
	}
	o, err := readOptions()
	if err != nil {
		return nil, err
	}
	switch usesFile := o.Config.Store.Postgres == ""; {
	case usesFile && dir.HasLostDatabase():
		return nil, exit.FailHint(exit.Config, fmt.Errorf("%s: %w", dir.Path(datadir.FileDatabase), datadir.ErrNoDatabase),
			"restore a backup into a new directory, or let agentmesh serve start with an empty one")
	case usesFile && !dir.HasDatabase(), !usesFile && !dir.UsedPostgres():
		return nil, datadir.NoAgent(string(dir))
	case !dir.HasAgent():
		o.Config.Roles, o.Config.Links = []string{config.RoleDirectory}, nil // serve ran here with this role alone
	}
	start := time.Now()
	err = dir.WaitUntilFree(ctx, commandWait, o.Note, func() (done bool, err error) {
		if c = Running(ctx, string(dir)); c == nil { // the process may be serve, which opens the database before it answers
			c, err = openLocal(ctx, o)
		}
		if errors.Is(err, datadir.ErrInUse) && dir.IsServed() && time.Since(start) > unreachableAfter {
			socket := httpapi.OwnerSocket(string(dir))
			return true, exit.FailHint(exit.Unavailable, fmt.Errorf("%s serves the data directory %s, but nothing answers at its socket %s", dir.Holder(), string(dir), socket),
				"if the socket was deleted, start serve again; a command in another container needs the folder of the socket, too")
		}
		return c != nil, err
	})
	return c, err
}

// ConnectAgent returns a client of the agent's door at a socket. The door is the owner API without decisions, for the
// owner's own agent. The client needs no access to the data directory.
func ConnectAgent(ctx context.Context, socket string) (*Client, error) {
	c, err := dialSocket(ctx, socket, httpapi.DoorOfAgent)
	if err != nil {
		return nil, exit.FailHint(exit.Unavailable, fmt.Errorf("nothing answers at the agent's door %s", socket),
			"start agentmesh serve with agent_door.socket set to this path, and check that this user may open it")
	}
	return c, nil
}

// ConnectDoor returns a client of the agent's door: at a socket or, if socket is empty, at the owner's socket of the
// serve process on a data directory. There, too, the client gets only what the agent's door offers.
func ConnectDoor(ctx context.Context, socket, dir string) (*Client, error) {
	if socket != "" {
		return ConnectAgent(ctx, socket)
	}
	c, err := dialSocket(ctx, httpapi.OwnerSocket(dir), httpapi.DoorOfAgent)
	if err == nil {
		return c, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, exit.FailHint(exit.Forbidden, fmt.Errorf("this user may not open the data directory %s", dir), "name the agent's door with --agent-socket")
	}
	return nil, exit.FailHint(exit.Unavailable, errors.New("no agentmesh serve runs on this data directory"), "start it with: agentmesh serve, or name the agent's door with --agent-socket")
}

// Running returns a client of the serve process that uses the directory, or nil if no process listens on the owner's
// socket.
func Running(ctx context.Context, dir string) *Client {
	c, err := dialSocket(ctx, httpapi.OwnerSocket(dir), "cli")
	if err != nil {
		return nil
	}
	c.dataDir = datadir.Dir(dir)
	return c
}

// dialSocket returns a client of the process that listens on a socket. door names this client in the audit log, or is
// [httpapi.DoorOfAgent].
func dialSocket(ctx context.Context, socket, door string) (*Client, error) {
	var dialer net.Dialer
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}
	conn, err := dial(ctx, "", "")
	if err != nil {
		return nil, err
	}
	conn.Close()
	transport := &http.Transport{DialContext: dial}
	c := &Client{
		Client: owner.Client{HTTP: &http.Client{Transport: transport}, Door: door},
		close:  func() error { transport.CloseIdleConnections(); return nil },
		socket: socket,
	}
	c.unanswered.Store(true)
	return c, nil
}

// openLocal opens the data directory in this process and returns a client of its owner API.
func openLocal(ctx context.Context, o Options) (*Client, error) {
	p, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	base, err := lastBase(p.dataDir, o.Config)
	if err == nil {
		err = p.assemble(ctx, base)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &Client{
		Client:  owner.Client{HTTP: &http.Client{Transport: client.InProcess(p.owner.Handler())}, Door: "cli"},
		close:   p.Close,
		Local:   p,
		dataDir: p.dataDir,
	}, nil
}

// Close ends the connection to another process, or closes [Client.Local].
func (o *Client) Close() error { return o.close() }

// Do makes one call and returns the answer, which the caller closes. Its errors have an exit code.
func (o *Client) Do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if err := o.awaitAnswer(ctx); err != nil {
		return nil, err
	}
	resp, err := o.Client.Do(ctx, method, path, query, body)
	return resp, o.Explain(err)
}

// Call makes one call and returns the body of the answer, which may be empty.
func (o *Client) Call(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	if err := o.awaitAnswer(ctx); err != nil {
		return nil, err
	}
	raw, err := o.Raw(ctx, method, path, query, body)
	return raw, o.Explain(err)
}

// Explain adds an exit code to an error of the owner API and, if possible, a hint.
func (o *Client) Explain(err error) error {
	e, refused := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, owner.ErrNotServed) && o.Local != nil && o.Local.node == nil:
		return datadir.NoAgent(string(o.dataDir))
	case errors.Is(err, owner.ErrNotServed):
		return exit.FailHint(exit.Unavailable, err, "cards and codes need the role directory, and messages the role node; switch another network on with: agentmesh bridge enable KIND, or with: agentmesh links add KIND URL")
	case !refused:
		return exit.Fail(exit.Unavailable, err)
	case e.Status == http.StatusNotFound && e.Code == wire.AgentUnavailable:
		return exit.FailHint(exit.Code(e), errors.New(e.Message), "find agents with: agentmesh discover, or add a card that somebody gave you with: agentmesh peers add")
	case e.Status == http.StatusServiceUnavailable && e.Message == wire.ErrUnavailable.Message:
		return exit.FailHint(exit.Code(e), errors.New(e.Message), "the database does not answer or accepts no writes; the log of agentmesh serve says why")
	}
	return exit.Fail(exit.Code(e), errors.New(e.Message))
}

// Decode parses an answer of the owner API.
func Decode[T any](raw json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, exit.Fail(exit.Unavailable, fmt.Errorf("read the answer: %w", err))
	}
	return v, nil
}

// Raw makes a call and returns the JSON of the answer.
func Raw[T any](ctx context.Context, o *Client, c owner.Call[T]) (json.RawMessage, error) {
	return o.Call(ctx, c.Method, c.Path, c.Query, c.Body)
}

// Fetch makes a call and returns the parsed answer.
func Fetch[T any](ctx context.Context, o *Client, c owner.Call[T]) (T, error) {
	raw, err := Raw(ctx, o, c)
	if err != nil {
		var none T
		return none, err
	}
	return Decode[T](raw)
}
