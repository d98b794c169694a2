package node_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestDiscoverAsksTogether: the node asks all directories at the same time, so that a slow one delays no other.
func TestDiscoverAsksTogether(t *testing.T) {
	asked := make(chan bool)
	search := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/v1/agents" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		select { // the two requests meet
		case asked <- true:
		case <-asked:
		case <-time.After(10 * time.Second):
			w.WriteHeader(http.StatusGatewayTimeout)
			return
		}
		_, _ = io.WriteString(w, `{"agents":[]}`)
	})
	sarah := meshtest.New(t).Node("sarah", func(cfg *node.Config) {
		cfg.Directories = []*client.Directory{
			client.NewDirectory("https://one.test/v1", cfg.HTTP, client.InProcess(search)),
			client.NewDirectory("https://two.test/v1", cfg.HTTP, client.InProcess(search)),
		}
	})
	answers, err := sarah.OwnerAPI().Discover(t.Context(), "", client.Query{})
	if err != nil || len(answers) != 2 {
		t.Fatalf("Discover = %v, %v", answers, err)
	}
	for i, base := range []string{"https://one.test/v1", "https://two.test/v1"} {
		if answers[i].Directory != base || answers[i].Error != "" {
			t.Errorf("answer %d is of %s: %s", i, answers[i].Directory, answers[i].Error)
		}
	}
}
