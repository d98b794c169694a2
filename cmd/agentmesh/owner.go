package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/owner"
)

// owner finds the owner API. Where another process has the data directory it waits for that to answer, or to let go.
// The caller closes it.
func (a *app) owner(ctx context.Context) (*daemon.Client, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	return daemon.Connect(ctx, datadir.Dir(dir), a.options)
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
	raw, err := daemon.Raw(ctx, o, c)
	return present(a, asJSON, raw, errors.Join(err, o.Close()), show)
}

// present shows an answer of the owner API.
func present[T any](a *app, asJSON bool, raw json.RawMessage, err error, show func(T)) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	v, err := daemon.Decode[T](raw)
	if err != nil {
		return none, err
	}
	if asJSON {
		return v, a.JSON(raw)
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
