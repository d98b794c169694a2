package mcp

import (
	"encoding/json"
	"regexp"
	"testing"
)

// TestServerCard: the card has a reverse-DNS name, its remote is the server, and it
// lists no tools.
func TestServerCard(t *testing.T) {
	data, err := ServerCard("http://127.0.0.1:3149/mcp", "0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	var card map[string]any
	if err := json.Unmarshal(data, &card); err != nil {
		t.Fatal(err)
	}
	if name, _ := card["name"].(string); !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(name) {
		t.Errorf("name %q", card["name"])
	}
	if n := len(card["description"].(string)); n > 100 {
		t.Errorf("the description has %d characters", n)
	}
	remotes, _ := card["remotes"].([]any)
	if len(remotes) != 1 || remotes[0].(map[string]any)["url"] != "http://127.0.0.1:3149/mcp" || card["version"] != "0.1.0" || card["tools"] != nil {
		t.Errorf("card = %s", data)
	}
}
