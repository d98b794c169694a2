package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// measureDoors measures one call for each of two doors, which are protocols other than AgentMesh: an A2A message, whose
// task waits in the inbox, and a call of the MCP tool that lists the newest items of that inbox. It compares them with a
// bare HTTP server that returns the same bytes, and the A2A message with the A2A SDK, which keeps the task in memory.
func (s *study) measureDoors(ctx context.Context) (err error) {
	data, tokenFile := filepath.Join(s.dir, "doors"), filepath.Join(s.dir, "agent.token")
	srv, err := s.mesh.serve(ctx, data, "--set", "a2a.serve=on", "--set", "limits.a2a_contexts=0", "--set", "owner_api.listen=127.0.0.1:0", "--set", "agent_door.token_file="+tokenFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	mcp, err := url.Parse(srv.OwnerAPI)
	if err != nil {
		return err
	}
	callers := make([]string, s.Concurrency)
	for i := range callers {
		s.p.say("doors: token %d", i+1)
		token, err := exec.CommandContext(ctx, s.mesh.program, "--data", data, "a2a", "token", "add", fmt.Sprintf("caller-%d", i)).Output()
		if err != nil {
			return fmt.Errorf("make the token of an A2A caller: %w", err)
		}
		callers[i] = strings.TrimSpace(string(token))
	}
	for _, protocol := range []struct {
		name string
		traffic
	}{
		{"a2a", newTasks(srv.url(), "/a2a/v1", callers)},
		{"mcp", newToolCalls(mcp, strings.TrimSpace(string(token)))},
	} {
		o, err := s.measure(ctx, protocol.name, protocol.traffic, srv.cpu)
		if err != nil {
			return err
		}
		s.add(newFigure(protocol.name+": server CPU vs. bare", o.CPURatio, "×", "%.1f µs; %.0f/s, p50 %.0f µs, p99 %.0f µs, %d errors %s", o.CPU, o.Rate, o.P50, o.P99, o.Errors, o.Fault))
	}
	sdk, err := startA2A(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sdk.stop()) }()
	ours, theirs := newTasks(srv.url(), "/a2a/v1", callers), newTasks(sdk.url(), "", callers)
	samples := interleave(ctx, s.p, s.Rounds, s.Duration,
		contender{"a2a", s.Concurrency, ours.operation(ours.base, s.Concurrency, ours.check), srv.cpu},
		contender{"a2a (SDK)", s.Concurrency, theirs.operation(theirs.base, s.Concurrency, theirs.check), sdk.cpu})
	o, control := summarize(samples[0], samples[1]), summarize(samples[1], nil)
	s.add(newFigure("a2a: server CPU vs. the A2A SDK in memory", o.CPURatio, "×", "%.1f µs beside %.1f µs; %d and %d errors %s%s", o.CPU, control.CPU, o.Errors, control.Errors, o.Fault, control.Fault).withMax(1.4))
	return ctx.Err()
}

// newTasks returns the traffic of A2A callers, one for each worker. Each request is a message that opens a task, to the
// interface at path.
func newTasks(base *url.URL, path string, bearers []string) traffic {
	sent, run := make([]int, len(bearers)), time.Now().UnixNano()
	return traffic{base: base, status: http.StatusOK, check: requireText(`"TASK_STATE_`), request: func(worker int) ([]byte, error) {
		sent[worker]++
		body := fmt.Appendf(nil, `{"message":{"messageId":"m%x-%d","role":"ROLE_USER","parts":[{"text":"Shall we meet at the old mill?"}]},"configuration":{"returnImmediately":true}}`, run, sent[worker])
		return request(http.MethodPost, base, path+"/message:send", body, "Authorization", "Bearer "+bearers[worker]), nil
	}}
}

// newToolCalls returns the traffic of MCP clients that read the newest item of the inbox. It repeats one request.
func newToolCalls(base *url.URL, bearer string) traffic {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mesh_inbox","arguments":{"limit":1},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"meshbench","version":"1"}}}}`)
	call := request(http.MethodPost, base, "/mcp", body, "Authorization", "Bearer "+bearer, "Accept", "application/json, text/event-stream",
		"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "mesh_inbox")
	return traffic{base: base, status: http.StatusOK, check: requireText(`"structuredContent":{"items":[`), request: func(int) ([]byte, error) { return call, nil }}
}

// requireText returns a check that a response contains text.
func requireText(text string) func(int, answer) error {
	return func(_ int, a answer) error {
		if !bytes.Contains(a.Body, []byte(text)) {
			return fmt.Errorf("the response does not contain %s: %.200s", text, a.Body)
		}
		return nil
	}
}
