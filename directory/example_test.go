package directory_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Example shows that a directory consists of a store, an HTTP server and the routes between them.
func Example() {
	dir, err := os.MkdirTemp("", "agentmesh")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := bolt.Open(context.Background(), filepath.Join(dir, "mesh.db"), bolt.Config{})
	if err != nil {
		panic(err)
	}
	defer db.Close()
	edge := httpapi.New(httpapi.Config{PublicURL: "https://directory.example"})
	reg := directory.New(directory.Config{Store: db, BaseURL: "https://directory.example/v1", Addresses: edge.Addresses()})
	reg.Mount(edge.Echo())

	card := `{"agentmesh":"0.1.0","agent_id":"am_sarah","name":"Sarah's Assistant",
		"endpoint":"https://sarah.example/agentmesh","capabilities":["scheduling"],"intents":["mesh.schedule"],
		"public_key":"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}`
	post := httptest.NewRequest("POST", "/v1/agents", strings.NewReader(card))
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("Authorization", "Bearer a-credential-of-sarahs")
	answer := httptest.NewRecorder()
	edge.Handler().ServeHTTP(answer, post)
	fmt.Println(answer.Code)

	found, err := directory.ListCards(context.Background(), reg, directory.Query{Text: "sarah", Capabilities: []string{"scheduling"}})
	if err != nil {
		panic(err)
	}
	fmt.Println(found.Cards[0].Name)
	// Output:
	// 201
	// Sarah's Assistant
}
