package hook

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Prober is a [Handler] that can check, without a message, whether its agent would accept a message.
type Prober interface {
	// Probe returns nil, or a *[ProbeError] that names the fix. It starts no run of the agent.
	Probe(ctx context.Context) error
}

// ProbeError reports why an agent would not accept a message.
type ProbeError struct {
	Why string // may quote the agent, made printable
	Fix string
}

func (e *ProbeError) Error() string { return e.Why + ": " + e.Fix }

const (
	probeTimeout = 5 * time.Second
	adviceStart  = "start the agent that the hook calls, or correct the URL"
)

// Probe asks the gateway for a run without a message. The gateway checks the token first and then refuses the empty
// message, before it looks at the agent. So a probe cannot find a wrong AgentID.
func (h OpenClaw) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	status, answer, err := h.gateway("probe-"+rand.Text()).postOnce(ctx, wire.Obj(wire.TextField("message", "")).JSON())
	switch {
	case err != nil:
		return &ProbeError{wire.OneLine(err.Error(), 300), adviceStart}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &ProbeError{"the gateway refuses the token", "put the gateway's hooks.token into the file that secret_file names"}
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return &ProbeError{"the gateway has no hook at this URL", "set hooks.enabled of the gateway to true, and compare its hooks.path with hooks[].openclaw"}
	case status == http.StatusBadRequest && bytes.Contains(answer, []byte("message")):
		return nil
	}
	return &ProbeError{fmt.Sprintf("the gateway answered HTTP %d: %s", status, wire.OneLine(string(answer), 300)), "look at the gateway's log"}
}

// Probe asks the agent about a task that does not exist.
func (h *A2A) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := h.agent.Call(ctx, h.http, message.GetTask, wire.Obj(wire.TextField("id", "agentmesh-probe")))
	status := 0
	if refusal, ok := errors.AsType[*message.Error](err); ok {
		status = refusal.Status
	} else if lost, ok := errors.AsType[*client.SendError](err); ok {
		status = lost.Status
	}
	switch {
	case errors.Is(err, message.ErrTaskNotFound):
		return nil
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &ProbeError{"the agent refuses the token", "put the token of the peer into the file that secret_file names; for OpenClaw it is channels.a2a.peers.NAME.token"}
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return &ProbeError{"the agent does not speak A2A at this URL", "for OpenClaw, set channels.a2a.enabled to true and add a peer; the URL ends in /a2a/v1"}
	case err == nil:
		err = errors.New("the agent has a task that nobody made")
	case status == 0:
		return &ProbeError{wire.OneLine(err.Error(), 300), adviceStart}
	}
	return &ProbeError{fmt.Sprintf("the agent answered HTTP %d: %s", status, wire.OneLine(err.Error(), 300)), "check that the URL is the JSON-RPC interface on its card"}
}
