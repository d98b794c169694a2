// Package remote calls agents over A2A: for links, for addresses with a URL, and for the hook that is an A2A agent of
// the owner.
package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of the JSON of an answer.
const (
	maxDepth  = 64
	maxValues = 50_000
)

// Agent is where and how an agent is called.
type Agent struct {
	Interface message.Interface
	Token     client.Credential // "" for none
	Reach     client.Reach      // of the interface
}

// Call makes one call and returns its result. The error is a *[message.Error] if the agent refused the call, and a
// *[client.SendError] if the call failed on the way or its answer cannot be read. Every other error is final.
func (a Agent) Call(ctx context.Context, h *client.HTTP, method string, params wire.Value) (wire.Value, error) {
	verb, target, body := a.Interface.Request(method, params)
	req, err := http.NewRequestWithContext(ctx, verb, target, bytes.NewReader(body))
	if err != nil {
		return wire.Value{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, "+message.MediaType)
	req.Header.Set(message.HeaderVersion, a.Interface.SpokenVersion())
	req.Header.Set(message.HeaderExtensions, message.Extension)
	if a.Token != "" {
		req.Header.Set("Authorization", "Bearer "+string(a.Token))
	}
	resp, err := h.Do(ctx, a.Reach, req)
	if _, refused := errors.AsType[*client.GuardError](err); refused {
		return wire.Value{}, err
	}
	if err != nil {
		return wire.Value{}, &client.SendError{Retry: true, Processed: true, Cause: err}
	}
	data, err := client.ReadAll(resp, message.MaxBody)
	if err != nil {
		return wire.Value{}, &client.SendError{Retry: !errors.Is(err, client.ErrAnswerTooLarge), Processed: true, Status: resp.StatusCode, Cause: err}
	}
	v, err := wire.ParseForeign(data, maxDepth, maxValues)
	result, fault, ok := a.Interface.Answer(method, v)
	succeeded := resp.StatusCode/100 == 2 // agents of 0.3 answer 201, too
	switch {
	case err == nil && fault.Kind() == wire.Object:
		return wire.Value{}, message.ReadError(resp.StatusCode, fault)
	case err == nil && ok && succeeded:
		return result, nil
	}
	return wire.Value{}, &client.SendError{
		Retry: client.IsRetryStatus(resp.StatusCode), Processed: succeeded, Status: resp.StatusCode,
		Cause: fmt.Errorf("the answer with HTTP %d is neither a result nor an error of A2A", resp.StatusCode),
	}
}
