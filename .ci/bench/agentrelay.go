package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

type agentrelayCmd struct{ fanout }

// agentRelayThought is a message of type thought to everybody on an AgentRelay relay. The relay adds id, from and ts.
var agentRelayThought = messageKind{
	path: "/arc", greets: true,
	message: func(mark, number string) string {
		return padMessage(`{"to":["*"],"type":"thought","payload":"`+mark+number, `"}`)
	},
	delivered: func(sent string) string {
		return `{"id":"msg_` + strings.Repeat("0", 32) + `","from":"` + benchAgent(0) + `",` + sent[1:len(sent)-1] + `,"ts":1700000000000}`
	},
}

func (c *agentrelayCmd) Run(ctx context.Context, s streams) error {
	return c.compare(ctx, s, entrant{messageKind: agentRelayThought, start: startAgentRelay})
}

// benchAgent returns the agent id of client i. Client 0 is the sender.
func benchAgent(i int) string { return fmt.Sprintf("bench-%d", i) }

// startAgentRelay starts a relay without limits on messages. It registers n+2 clients: the sender, n receivers, and the
// one that reads nothing in some rounds (see [host]).
func startAgentRelay(ctx context.Context, program, dir string, n int, env ...string) (_ *host, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := agentmesh{program, dir}.serveWith(ctx, env, filepath.Join(dir, "data"),
		"--set", "agentrelay.serve=on",
		"--set", "agentrelay.per_minute=0", "--set", "agentrelay.per_hour=0", "--set", "agentrelay.registrations_per_hour=0",
		"--set", "network.max_connections_per_address=0", "--set", "network.max_connections=0")
	if err != nil {
		return nil, err
	}
	tokens := make([]string, n+2)
	for i := range tokens {
		if tokens[i], err = registerAgent(ctx, server.URL, benchAgent(i)); err != nil {
			return nil, errors.Join(err, server.stop())
		}
	}
	return &host{server, func(i int) string { return tokens[i] }}, nil
}

func registerAgent(ctx context.Context, base, id string) (token string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/register", bytes.NewReader([]byte(`{"agent_id":"`+id+`"}`)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return "", err
	}
	var got struct{ Token string }
	if err := json.Unmarshal(body, &got); err != nil || got.Token == "" {
		return "", fmt.Errorf("register %s: status %d, %.100q", id, resp.StatusCode, body)
	}
	return got.Token, nil
}
