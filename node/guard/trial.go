package guard

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/hook"
)

// Trial is the outcome of a test run of a guard.
type Trial struct {
	Input   json.RawMessage `json:"input"` // the document for the guard; an A2A agent gets it inside a text
	Verdict Decision        `json:"verdict"`
	Reason  string          `json:"reason,omitempty"`
	OK      bool            `json:"ok"`                // the guard gave the verdict
	Failure string          `json:"failure,omitempty"` // why it did not
	Exit    int             `json:"exit_status,omitempty"`
	Stderr  string          `json:"stderr,omitempty"`
	Took    time.Duration   `json:"took_ns"`
}

// Try asks the guard once and reports what happened.
func (g *Guard) Try(ctx context.Context, t Text) Trial {
	began := time.Now()
	v, err := g.Judge(ctx, hook.Source{Key: t.Peer}, t)
	trial := Trial{Input: t.Document(g.Key(t)), Verdict: v.Decision, Reason: v.Reason, OK: err == nil, Took: time.Since(began)}
	if err != nil {
		trial.Failure = err.Error()
	}
	if e, ok := errors.AsType[*hook.Error](err); ok {
		trial.Exit, trial.Stderr = e.Exit, e.Stderr
	}
	return trial
}
