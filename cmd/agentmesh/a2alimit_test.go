//go:build slow

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
)

// TestA2AContextsOfAToken (AM-97): a caller with a token opens a hundred contexts in an hour, or as many as the
// configuration says.
func TestA2AContextsOfAToken(t *testing.T) {
	for args, want := range map[string]int{"": 100, "--set=limits.a2a_contexts=3": 3} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			t.Parallel()
			c := newCrash(t)
			c.serve(append([]string{"--set=access.mode=open", "--set=a2a.serve=on"}, strings.Fields(args)...)...)
			raw, err := c.owner.Call(t.Context(), "POST", "a2a/tokens/ci", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			token, err := daemon.Decode[a2a.Token](raw)
			if err != nil {
				t.Fatal(err)
			}
			caller := a2aCaller{t, strings.TrimSuffix(c.server.info.Directory, "/v1") + "/a2a/v1", token.Token}
			for i := range want + 1 {
				task, text := caller.do("POST", "/message:send", a2aMessage(fmt.Sprint("m", i), "hi", true))
				if served := task.ID != ""; served != (i < want) {
					t.Fatalf("message %d: %s", i, text)
				}
			}
		})
	}
}
