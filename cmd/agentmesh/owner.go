package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// owner is the owner API: of the serve that runs on the data directory, else of the same handlers in this process.
type owner struct {
	http  *http.Client
	close func() error
	here  *process // the process behind it where that is this one
	home  home
	quiet bool // it is another process, and has not answered yet
}

// ownerPatience is how long a running process may take to answer the first call.
const ownerPatience = 10 * time.Second

// awaitAnswer returns an error if the running process has the owner's socket and does not answer. Calls themselves are
// not bounded: one may wait for a peer, or for the owner.
func (o *owner) awaitAnswer(ctx context.Context) error {
	if !o.quiet {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/owner/version", nil)
	if err != nil {
		return fmt.Errorf("ask the running agentmesh: %w", err)
	}
	resp, err := o.http.Do(req)
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

// maxOwnerAnswer bounds an answer of the owner API; a backup is streamed past it.
const maxOwnerAnswer = 64 << 20

// owner finds the owner API. Where another process has the data directory it waits for that to answer, or to let go.
// The caller closes it.
func (a *app) owner(ctx context.Context) (*owner, error) {
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
	var o *owner
	err = a.untilFree(ctx, h, commandWait, func() (done bool, err error) {
		if o = running(ctx, dir); o == nil { // a serve that starts has the database before it answers
			o, err = a.inProcess(ctx, cfg)
		}
		return o != nil, err
	})
	return o, err
}

// running returns the owner API of the serve that has the directory, nil where none answers.
func running(ctx context.Context, dir string) *owner {
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
	return &owner{
		home:  home{dir},
		quiet: true,
		http:  &http.Client{Transport: transport},
		close: func() error { transport.CloseIdleConnections(); return nil },
	}
}

// inProcess opens the data directory and answers the owner API from here, as serve would.
func (a *app) inProcess(ctx context.Context, cfg Config) (*owner, error) {
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
	return &owner{
		http:  &http.Client{Transport: client.InProcess(p.owner.Handler())},
		close: p.Close,
		here:  p,
		home:  p.home,
	}, nil
}

// do makes one call and returns the answer, which the caller closes. A refusal is a *[wire.Error].
func (o *owner) do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if err := o.awaitAnswer(ctx); err != nil {
		return nil, err
	}
	target := "http://localhost/owner/" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set(node.DoorHeader, "cli")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := o.http.Do(req)
	if err != nil {
		return nil, fail(exitUnavailable, fmt.Errorf("ask the running agentmesh: %w", err))
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	err = refusal(resp)
	if errors.Is(err, errNotServed) && o.here != nil && o.here.node == nil {
		return nil, noAgent(o.home.dir)
	}
	return nil, err
}

var errNotServed = errors.New("the running agentmesh does not serve this")

// refusal reads what the owner API said instead of an answer.
func refusal(resp *http.Response) error {
	data, err := client.ReadAll(resp, maxOwnerAnswer)
	if err != nil {
		return fail(exitUnavailable, fmt.Errorf("read the refusal: %w", err))
	}
	v, err := wire.Parse(data)
	if err != nil {
		return fail(exitUnavailable, fmt.Errorf("the running agentmesh answered %s", resp.Status))
	}
	e, ok := wire.ParseError(resp.StatusCode, v)
	switch {
	case !ok:
		return fail(exitUnavailable, fmt.Errorf("the running agentmesh answered %s", resp.Status))
	case e.Status == http.StatusNotFound && e.Message == wire.ErrRoute.Message:
		return failHint(exitUnavailable, errNotServed, "its configuration may lack the role node or directory, a link of the kind, or mess.serve, moltspeak.serve or agentrelay.serve: docs/config.md")
	case e.Status == http.StatusNotFound && e.Code == wire.AgentUnavailable:
		return failHint(exitCode(e), errors.New(e.Message), "find agents with: agentmesh discover, or take a card that you were given with: agentmesh peers add")
	}
	return fail(exitCode(e), errors.New(e.Message))
}

// call makes one call and returns the JSON of the answer, nil where it has none.
func (o *owner) call(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	resp, err := o.do(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	data, err := client.ReadAll(resp, maxOwnerAnswer)
	if err != nil {
		return nil, fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
	}
	return data, nil
}

// decode reads an answer of the owner API into the parts that a command shows.
func decode[T any](raw json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fail(exitUnavailable, fmt.Errorf("read the answer: %w", err))
	}
	return v, nil
}

// ask makes one call to the owner API and shows the answer: as it came with asJSON, else with show.
func ask[T any](ctx context.Context, a *app, asJSON bool, c call, show func(T)) error {
	_, err := answer(ctx, a, asJSON, c, show)
	return err
}

// answer is [ask] for a command that also wants to know what the answer was.
func answer[T any](ctx context.Context, a *app, asJSON bool, c call, show func(T)) (T, error) {
	o, err := a.owner(ctx)
	if err != nil {
		var none T
		return none, err
	}
	raw, err := o.call(ctx, c.method, c.path, c.query, c.body)
	return present(a, asJSON, raw, errors.Join(err, o.close()), show)
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

// call is one question to the owner API.
type call struct {
	method string
	path   string // below /owner/, escaped
	query  url.Values
	body   any
}

func get(path string, query url.Values) call { return call{http.MethodGet, path, query, nil} }
func post(path string, body any) call        { return call{http.MethodPost, path, nil, body} }

// items is a page of a list.
type items[T any] struct {
	Items []T `json:"items"`
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
