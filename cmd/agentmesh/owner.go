package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/owner"
)

// connect returns a client of the owner API. If serve is running, serve answers the client's calls, or else this
// process does (see [daemon.Connect]). With --agent-socket, connect returns a client of the agent's door, the part of
// the owner API that reads and sends but decides nothing. The caller closes the client.
func (a *app) connect(ctx context.Context) (*daemon.Client, error) {
	if a.globals.AgentSocket != "" {
		return daemon.ConnectAgent(ctx, a.globals.AgentSocket)
	}
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	o, err := daemon.Connect(ctx, datadir.Dir(dir), a.options)
	if err != nil || o.Local != nil || len(a.globals.Set) == 0 {
		return o, err
	}
	if _, err := a.options(); err != nil { // serve would not notice a wrong setting
		return nil, errors.Join(err, o.Close())
	}
	a.Note("serve runs here, and --set does not change its configuration")
	return o, nil
}

// requireServe returns an error if serve is not running. reason tells the user what needs serve.
func requireServe(o *daemon.Client, reason string) error {
	if o.Local == nil {
		return nil
	}
	return exit.FailHint(exit.Unavailable, errors.New("no agentmesh serve runs here, and "+reason), "start it with: agentmesh serve")
}

// withClient calls f with a client of the owner API, and closes the client afterwards.
func (a *app) withClient(ctx context.Context, f func(*daemon.Client) error) error {
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(o), o.Close())
}

// withResult is like [app.withClient], and returns the result of f.
func withResult[T any](ctx context.Context, a *app, f func(*daemon.Client) (T, error)) (v T, err error) {
	defer a.AwaitAnswer("waiting for the answer")()
	err = a.withClient(ctx, func(o *daemon.Client) (err error) { v, err = f(o); return err })
	return v, err
}

// withDelivery is like [withResult]. If serve is not running, this process delivers the outbox while f runs.
func (a *app) withDelivery(ctx context.Context, f func(*daemon.Client) (json.RawMessage, error)) (json.RawMessage, error) {
	return withResult(ctx, a, func(o *daemon.Client) (json.RawMessage, error) {
		if o.Local != nil {
			defer o.Local.Deliver(ctx)()
		}
		return f(o)
	})
}

// callRaw makes one call to the owner API and returns the JSON of the answer.
func callRaw[T any](ctx context.Context, a *app, c owner.Call[T]) (json.RawMessage, error) {
	return withResult(ctx, a, func(o *daemon.Client) (json.RawMessage, error) { return daemon.Raw(ctx, o, c) })
}

// callAndShow makes one call to the owner API and shows the answer: as JSON with --json, or else with show.
func callAndShow[T any](ctx context.Context, a *app, c owner.Call[T], show func(T)) error {
	_, err := fetchAndShow(ctx, a, c, show)
	return err
}

// fetchAndShow is like [callAndShow], and also returns the answer.
func fetchAndShow[T any](ctx context.Context, a *app, c owner.Call[T], show func(T)) (T, error) {
	raw, err := callRaw(ctx, a, c)
	return showAnswer(a, raw, err, show)
}

// showAnswer parses an answer of the owner API, shows it like [callAndShow], and returns it. It returns err if err is
// not nil.
func showAnswer[T any](a *app, raw json.RawMessage, err error, show func(T)) (T, error) {
	var zero T
	if err != nil {
		return zero, err
	}
	if len(raw) == 0 { // the operation has no answer
		raw = json.RawMessage("{}")
	}
	v, err := daemon.Decode[T](raw)
	if err != nil {
		return zero, err
	}
	return v, a.report(raw, func() { show(v) })
}

// callAndShowList makes a call to the owner API and shows the list that the call returns: as JSON with --json, or else
// as a table with one row for each item. Instead of a table without rows, it prints emptyText.
func callAndShowList[T any](ctx context.Context, a *app, c owner.Call[owner.List[T]], emptyText string, heads []string, row func(T) []string) error {
	return callAndShow(ctx, a, c, func(page owner.List[T]) { showList(a, page, emptyText, heads, row) })
}

// showList prints a page of a list as a table. If the list is empty, it prints emptyText to standard error. If another
// page follows, it says so; the command must then have the flag --limit.
func showList[T any](a *app, page owner.List[T], emptyText string, heads []string, row func(T) []string) {
	rows := [][]string{heads}
	for _, item := range page.Items {
		rows = append(rows, row(item))
	}
	a.List(rows, emptyText)
	a.NoteMore(page.Next != "")
}

// report writes a result: as JSON with --json, or else with show.
func (a *app) report(result any, show func()) error {
	if a.globals.JSON {
		return a.JSON(result)
	}
	show()
	return nil
}

// fetch makes one call to the owner API and returns the answer.
func fetch[T any](ctx context.Context, a *app, c owner.Call[T]) (T, error) {
	return withResult(ctx, a, func(o *daemon.Client) (T, error) { return daemon.Fetch(ctx, o, c) })
}

// getCall returns a GET call for an operation that has no [owner.Endpoint].
func getCall[T any](path string, query url.Values) owner.Call[T] {
	return owner.Call[T]{Method: http.MethodGet, Path: path, Query: query}
}

// postCall returns a POST call for an operation that has no [owner.Endpoint].
func postCall[T any](path string, body any) owner.Call[T] {
	return owner.Call[T]{Method: http.MethodPost, Path: path, Body: body}
}
