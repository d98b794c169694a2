package daemon

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/owner"
)

// silentTransport stands for a process that accepts connections and never answers.
type silentTransport struct{}

func (silentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestCommandGivesUpOnASilentServe: a command once waited forever for a process that hangs.
func TestCommandGivesUpOnASilentServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Client{Client: owner.Client{HTTP: &http.Client{Transport: silentTransport{}}}, home: datadir.Dir("data")}
		o.unanswered.Store(true)
		began := time.Now()
		_, err := o.Call(t.Context(), http.MethodGet, "status", nil, nil)
		if err == nil || !strings.Contains(err.Error(), "has not answered for 10s") || exit.Code(err) != exit.Unavailable {
			t.Errorf("call = %v, want the exit code %d and how long it waited", err, exit.Unavailable)
		}
		if took := time.Since(began); took != firstAnswerTimeout {
			t.Errorf("call gave up after %v, want %v", took, firstAnswerTimeout)
		}
	})
}
