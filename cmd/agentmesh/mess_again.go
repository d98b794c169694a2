package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/node/owner"
)

// messOnce makes a call that changes something, under a name of its own. Where the running agentmesh goes away before it has
// answered, the same call is made once more: what came of it the first time counts.
func messOnce(ctx context.Context, a *app, method, path string, body []byte, header map[string]string) ([]byte, error) {
	name := rand.Text()
	attempt := func() (raw []byte, err error) {
		o, err := a.owner(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, o.Close()) }()
		req, err := http.NewRequestWithContext(ctx, method, "http://localhost/owner/"+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set(owner.DoorHeader, "cli")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", name)
		for key, value := range header {
			req.Header.Set(key, value)
		}
		return readBytes(o, req)
	}
	raw, err := attempt()
	_, lost := errors.AsType[*url.Error](err)
	if ctx.Err() == nil && (lost || errors.Is(err, io.ErrUnexpectedEOF)) {
		return attempt()
	}
	return raw, err
}
