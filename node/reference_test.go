package node_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestOtherClients replays messages that other implementations sent, byte for byte and at the time of their signature:
// the canonical form of the reference and the defaults of Python and Go (AM-14). When they were recorded, the node took
// 1e21; now it refuses such a number (AM-12).
func TestOtherClients(t *testing.T) {
	files, err := filepath.Glob("testdata/reference/*.txtar")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d exchanges: %v", len(files), err)
	}
	for _, file := range files {
		exchanges := apitest.Read(t, file)
		t.Run(filepath.Base(file), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := firstMessage(t, exchanges)
				time.Sleep(time.Until(first.Time))
				mesh := meshtest.InMemory(t)
				card := recordedCard(t, exchanges, first.To)
				mesh.Import("sarah", card) // we do not have the key of the recorded id
				sarah := mesh.Node("sarah", func(cfg *node.Config) {
					cfg.Policy.Mode = acl.Open
					cfg.Identity.Card = card
				})
				for _, x := range exchanges {
					h := mesh.Public
					if strings.HasPrefix(x.Path, node.Path) {
						h = sarah.Public
					}
					if hasUnsafeNumber(x) {
						x.Status, x.Answer = http.StatusBadRequest, []byte(`{"error":{"code":"INVALID_MESSAGE","retry":false}}`)
					}
					x.Replay(t, h)
				}
			})
		})
	}
}

// hasUnsafeNumber reports whether a message holds a number beyond 2^53-1.
func hasUnsafeNumber(x apitest.Exchange) bool {
	_, err := wire.ParseObject(x.Body)
	return x.Path == node.Path && err != nil && strings.Contains(err.Error(), "number beyond 2^53-1")
}

func firstMessage(t *testing.T, exchanges []apitest.Exchange) wire.Message {
	t.Helper()
	for _, x := range exchanges {
		if x.Method != http.MethodPost || x.Path != node.Path || hasUnsafeNumber(x) {
			continue
		}
		tree, err := wire.ParseObject(x.Body)
		if err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
		m, err := wire.ParseMessage(tree)
		if err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
		return m
	}
	t.Fatal("no message")
	return wire.Message{}
}

// recordedCard returns the card that the client found for id, with one of our keys.
func recordedCard(t *testing.T, exchanges []apitest.Exchange, id wire.AgentID) wire.Card {
	t.Helper()
	for _, x := range exchanges {
		doc, err := wire.ParseObject(x.Answer)
		if err != nil {
			continue
		}
		agents, _ := doc.Get("agents")
		for tree := range agents.Elems() {
			if tree.GetStr("agent_id") != string(id) {
				continue
			}
			tree = tree.With("public_key", wire.Text(meshtest.Key("sarah").PublicText()))
			card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
			if err != nil {
				t.Fatalf("%s: %v", x.Name, err)
			}
			return card
		}
	}
	t.Fatalf("no card of %s", id)
	return wire.Card{}
}
