package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Example finds an agent in a directory, sends it a signed message, and accepts the reply only if it verifies.
func Example() {
	mesh := startMesh() // a directory and Sarah's agent, for the example
	defer mesh.Close()
	ctx := context.Background()

	h := client.NewHTTP(client.HTTPConfig{Local: true}) // allows loopback peers; omit it on the internet
	defer h.Close()
	directory := client.NewDirectory(mesh.URL+"/v1", h, nil)

	page, err := directory.Search(ctx, client.Query{Text: "sarah", Capabilities: []string{"scheduling"}})
	if err != nil {
		log.Fatal(err)
	}
	id := wire.AgentID(page.Agents[0].GetStr("agent_id"))
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	pins, err := bolt.Open(ctx, filepath.Join(dir, "pins.db"), bolt.Config{}) // keeps the keys of agents
	if err != nil {
		log.Fatal(err)
	}
	defer pins.Close()
	cards := client.NewCards(client.CardsConfig{Directories: []*client.Directory{directory}, HTTP: h, Records: pins.Records()})
	sarah, err := cards.Find(ctx, id, time.Now())
	if err != nil {
		log.Fatal(err)
	}

	me := signing.NewEd25519FromSeed([]byte("an example seed of 32 bytes, no!"))
	draft := wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(),
		From: me.Public().AgentID(), To: id, Time: time.Now(), Intent: wire.Deliver,
		Payload: wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("deliver")},
			wire.Member{Key: "message", Value: wire.Obj(wire.Member{Key: "body", Value: wire.Text("Hello!")})},
		),
	}
	tree, err := me.SignValue(draft.Tree())
	if err != nil {
		log.Fatal(err)
	}
	answer, err := h.Send(ctx, sarah, tree.JSON())
	if err != nil {
		log.Fatal(err) // a *client.SendError, which reports whether to try again
	}
	reply, err := answer.Message()
	if err != nil {
		log.Fatal(err)
	}
	sent, _ := wire.ParseMessage(tree)
	verifier := client.Verifier{Cards: cards}
	if _, err := verifier.VerifyReply(ctx, sent, reply, sarah, time.Now()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(sarah.Card.Name, "answered:", reply.Action())
	// Output: Sarah's agent answered: received
}

// startMesh serves one card and answers every message with "received".
func startMesh() *httptest.Server {
	key := signing.NewEd25519FromSeed([]byte("Sarah's seed has 32 bytes, too.."))
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	card, err := wire.ValueOf(map[string]any{
		"agentmesh": wire.Version, "agent_id": key.Public().AgentID(), "name": "Sarah's agent",
		"endpoint": srv.URL + "/agentmesh", "public_key": key.PublicText(),
		"capabilities": []string{"scheduling"}, "intents": wire.StandardIntents(),
	})
	if err != nil {
		log.Fatal(err)
	}
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, _ *http.Request) {
		w.Write(wire.Obj(wire.Member{Key: "agents", Value: wire.Arr(card)}).JSON())
	})
	mux.HandleFunc("GET /v1/agents/{id}", func(w http.ResponseWriter, _ *http.Request) { w.Write(card.JSON()) })
	mux.HandleFunc("POST /agentmesh", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		tree, _ := wire.ParseObject(body)
		m, _ := wire.ParseMessage(tree)
		reply, _ := key.SignValue(wire.Draft{
			ID: wire.NewMessageID(), Conversation: m.Conversation, From: m.To, To: m.From, Time: time.Now(),
			Intent: m.Intent, Payload: wire.Obj(wire.Member{Key: "action", Value: wire.Text("received")}),
		}.Tree())
		w.Write(reply.JSON())
	})
	return srv
}
