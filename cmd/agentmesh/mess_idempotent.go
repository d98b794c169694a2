package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messCallIdempotent makes a call that changes something, with an idempotency key. If the running agentmesh goes away
// before it answers, the call is repeated once. The repetition returns the result of the first call if there is one.
func messCallIdempotent(ctx context.Context, a *app, method, path string, body []byte, header map[string]string) (wire.Value, error) {
	key := rand.Text()
	attempt := func() (raw []byte, err error) {
		o, err := a.connect(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, o.Close()) }()
		req, err := http.NewRequestWithContext(ctx, method, "http://localhost/owner/"+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set(httpapi.DoorHeader, "cli")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		for name, value := range header {
			req.Header.Set(name, value)
		}
		return o.Send(req)
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
