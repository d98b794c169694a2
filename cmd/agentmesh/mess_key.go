package main

import (
	"context"
	"net/http"
	"net/url"
)

// messKeyCmd gives an executor the key that the REST of the exchange asks for: one that the owner set up has none, and
// one may lose its own. --take ends a key that got into wrong hands.
type messKeyCmd struct {
	messOut
	Executor string `arg:"" help:"Id of the executor."`
	Take     bool   `help:"Take the key away; nothing is offered to the executor until it is given one."`
}

func (c *messKeyCmd) Run(ctx context.Context, a *app) error {
	method := http.MethodPost
	if c.Take {
		method = http.MethodDelete
	}
	v, err := messCall(ctx, a, method, "executors/"+url.PathEscape(c.Executor)+"/key", nil, nil)
	if err != nil {
		return err
	}
	return c.show(a, v)
}
