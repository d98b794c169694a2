package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ownerClient is the owner API: of the serve that runs on the data directory, or of the same handlers in this process.
type ownerClient struct {
	owner.Client
	close func() error
	here  *process // the process behind it if that is this one
	home  home
	quiet bool // it is another process, and has not answered yet
}

// ownerPatience is how long a running process may take to answer the first call.
const ownerPatience = 10 * time.Second

// awaitAnswer returns an error if the running process has the owner's socket and does not answer. Calls themselves are
// not bounded: one may wait for a peer, or for the owner.
func (o *ownerClient) awaitAnswer(ctx context.Context) error {
	if !o.quiet {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/owner/version", nil)
	if err != nil {
		return fmt.Errorf("ask the running agentmesh: %w", err)
	}
	resp, err := o.HTTP.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return failHint(exitUnavailable, fmt.Errorf("%s has the data directory %s and has not answered for %s", o.home.user(), o.home.dir, ownerPatience),
			"look at its log, and stop it if it hangs")
	}
	if err != nil {
		return fail(exitUnavailable, fmt.Errorf("ask the running agentmesh: %w", err))
	}
	o.quiet = false
	return resp.Body.Close()
}

// owner finds the owner API. Where another process has the data directory it waits for that to answer, or to let go.
// The caller closes it.
func (a *app) owner(ctx context.Context) (*ownerClient, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	if o := running(ctx, dir); o != nil {
		return o, nil
	}
	cfg, err := a.checkedConfig()
	if err != nil {
		return nil, err
	}
	h := home{dir}
	switch {
	case h.lostDatabase():
		return nil, failHint(exitConfig, fmt.Errorf("%s: %w", h.path(fileDatabase), errNoDatabase),
			"restore a backup into a new directory, or let agentmesh serve start with an empty one")
	case !h.hasDatabase():
		return nil, noAgent(dir)
	case !h.initialised():
		cfg.Roles = []string{roleDirectory} // a directory alone ran here
	}
	var o *ownerClient
	err = a.untilFree(ctx, h, commandWait, func() (done bool, err error) {
		if o = running(ctx, dir); o == nil { // a serve that starts has the database before it answers
			o, err = a.inProcess(ctx, cfg)
		}
		return o != nil, err
	})
	return o, err
}

// running returns the owner API of the serve that has the directory, nil where none answers.
func running(ctx context.Context, dir string) *ownerClient {
	socket, err := httpapi.OwnerSocket(dir)
	if err != nil {
		return nil
	}
	var dialer net.Dialer
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}
	conn, err := dial(ctx, "", "")
	if err != nil {
		return nil
	}
	conn.Close()
	transport := &http.Transport{DialContext: dial}
	return &ownerClient{
		home:   home{dir},
		quiet:  true,
		Client: owner.Client{HTTP: &http.Client{Transport: transport}, Door: "cli"},
		close:  func() error { transport.CloseIdleConnections(); return nil },
	}
}

// inProcess opens the data directory and answers the owner API from here, as serve would.
func (a *app) inProcess(ctx context.Context, cfg Config) (*ownerClient, error) {
	p, err := a.open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	base, err := p.home.base(cfg)
	if err == nil {
		err = p.assemble(ctx, base)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &ownerClient{
		Client: owner.Client{HTTP: &http.Client{Transport: client.InProcess(p.owner.Handler())}, Door: "cli"},
		close:  p.Close,
		here:   p,
		home:   p.home,
	}, nil
}

// do makes one call and returns the answer, which the caller closes. Its errors carry an exit code.
func (o *ownerClient) do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if err := o.awaitAnswer(ctx); err != nil {
		return nil, err
	}
	resp, err := o.Do(ctx, method, path, query, body)
	return resp, o.explain(err)
}

// call makes one call and returns the JSON of the answer, empty if it has none.
func (o *ownerClient) call(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	if err := o.awaitAnswer(ctx); err != nil {
		return nil, err
	}
	raw, err := o.Raw(ctx, method, path, query, body)
	return raw, o.explain(err)
}

// explain gives an error of the owner API its exit code and says what to do.
func (o *ownerClient) explain(err error) error {
	e, refused := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, owner.ErrNotServed) && o.here != nil && o.here.node == nil:
		return noAgent(o.home.dir)
	case errors.Is(err, owner.ErrNotServed):
		return failHint(exitUnavailable, err, "its configuration may lack the role node or directory, a link of the kind, or mess.serve, moltspeak.serve or agentrelay.serve: docs/config.md")
	case !refused:
		return fail(exitUnavailable, err)
	case e.Status == http.StatusNotFound && e.Code == wire.AgentUnavailable:
		return failHint(exitCode(e), errors.New(e.Message), "find agents with: agentmesh discover, or take a card that you were given with: agentmesh peers add")
	}
	return fail(exitCode(e), errors.New(e.Message))
}

// decode reads an answer of the owner API into the parts that a command shows.
func decode[T any](raw json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
	}
	return v, nil
}

// ask makes one call to the owner API and shows the answer: as it came with asJSON, or else with show.
func ask[T any](ctx context.Context, a *app, asJSON bool, c owner.Call[T], show func(T)) error {
	_, err := answer(ctx, a, asJSON, c, show)
	return err
}

// answer is [ask] for a command that also wants to know what the answer was.
func answer[T any](ctx context.Context, a *app, asJSON bool, c owner.Call[T], show func(T)) (T, error) {
	o, err := a.owner(ctx)
	if err != nil {
		var none T
		return none, err
	}
	raw, err := raw(ctx, o, c)
	return present(a, asJSON, raw, errors.Join(err, o.close()), show)
}

// raw makes a call and returns its answer as it came.
func raw[T any](ctx context.Context, o *ownerClient, c owner.Call[T]) (json.RawMessage, error) {
	return o.call(ctx, c.Method, c.Path, c.Query, c.Body)
}

// fetch makes a call and returns its answer.
func fetch[T any](ctx context.Context, o *ownerClient, c owner.Call[T]) (T, error) {
	raw, err := raw(ctx, o, c)
	if err != nil {
		var none T
		return none, err
	}
	return decode[T](raw)
}

// present shows an answer of the owner API.
func present[T any](a *app, asJSON bool, raw json.RawMessage, err error, show func(T)) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	v, err := decode[T](raw)
	if err != nil {
		return none, err
	}
	if asJSON {
		return v, a.json(raw)
	}
	show(v)
	return v, nil
}

// get and post make calls of operations that have no endpoint, because their services define none.
func get[T any](path string, query url.Values) owner.Call[T] {
	return owner.Call[T]{Method: http.MethodGet, Path: path, Query: query}
}

func post[T any](path string, body any) owner.Call[T] {
	return owner.Call[T]{Method: http.MethodPost, Path: path, Body: body}
}

// params makes query parameters of pairs, leaving out empty values.
func params(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Add(pairs[i], pairs[i+1])
		}
	}
	return q
}
