package main

import (
	"context"
	"net/http"
	"net/url"
)

// messKeyCmd makes the API key with which an executor calls the exchange over HTTP. An executor that the owner set up
// has no key, and an executor may lose its key. --take revokes a key that was leaked.
type messKeyCmd struct {
	Executor string `arg:"" help:"Id of the executor."`
	Take     bool   `help:"Revoke the key. The executor gets no offers until it has a new key."`
}

func (c *messKeyCmd) Run(ctx context.Context, a *app) error {
	method := http.MethodPost
	if c.Take {
		method = http.MethodDelete
	}
	return a.showMess(messCall(ctx, a, method, "executors/"+url.PathEscape(c.Executor)+"/key", nil, nil))
}
