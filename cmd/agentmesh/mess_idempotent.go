package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messCallIdempotent makes a call that changes something, with an idempotency key. If serve ends before it answers, the
// call is repeated once. The second call returns the result of the first if the first had one. path is below the owner
// API, and includes messAPI if the call is for the exchange.
func messCallIdempotent(ctx context.Context, a *app, method, path string, body []byte, ifMatch string) (wire.Value, error) {
	header := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {rand.Text()}}
	if ifMatch != "" {
		header.Set("If-Match", ifMatch)
	}
	attempt := func() ([]byte, error) {
		return withResult(ctx, a, func(o *daemon.Client) ([]byte, error) {
			return o.Call(ctx, method, path, nil, owner.Upload{Header: header, Data: body})
		})
	}
	raw, err := attempt()
	_, lost := errors.AsType[*url.Error](err)
	if ctx.Err() == nil && (lost || errors.Is(err, io.ErrUnexpectedEOF)) {
		raw, err = attempt()
	}
	if err != nil {
		return wire.Value{}, err
	}
	return parseMessAnswer(raw)
}
