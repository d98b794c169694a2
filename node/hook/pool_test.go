package hook_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/node/hook"
)

// TestTurns: who waits takes turns, whatever the order in which the runs came. A source that has no run comes first: it
// waits for the end of one run at most, though a source that has one came earlier.
func TestTurns(t *testing.T) {
	source := func(name string) hook.Source { return hook.Source{Key: name[:1], Stranger: name < "a"} }
	for name, tt := range map[string]struct {
		come string // runs, in the order in which they come; a letter is a source, a capital one a stranger
		end  string // runs, in the order in which they end
		want string // the order in which they begin
	}{
		"alone":          {"a1 a2 a3", "a1 a2 a3", "a1 a2 a3"},
		"in turn":        {"a1 a2 a3 a4 b1 b2 b3", "a1 a2 b1 a3 b2 a4 b3", "a1 a2 b1 b2 a3 a4 b3"},
		"last place":     {"a1 a2 b1 b2 c1", "c1 a1 a2 b1 b2", "a1 a2 b1 c1 b2"},
		"new first":      {"a1 a2 a3 b1 c1 d1", "a1 a2 b1 c1 d1 a3", "a1 a2 b1 c1 d1 a3"},
		"strangers":      {"A1 A2 B1 C1 D1", "A1 B1 C1 D1 A2", "A1 B1 C1 D1 A2"},
		"strangers wait": {"A1 A2 A3 B1", "A1 B1 A2 A3", "A1 B1 A2 A3"},
		"new before old": {"a1 S1 b1 a2 T1", "S1 T1 a1 b1 a2", "a1 S1 b1 T1 a2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := hook.NewPool(4, 100)
				var order []string
				ends := make(map[string]chan struct{})
				for name := range strings.FieldsSeq(tt.come) {
					end := make(chan struct{})
					ends[name] = end
					go func() {
						endTurn, err := p.AwaitTurn(t.Context(), hook.Turn{Source: source(name)})
						if err != nil {
							t.Error(err)
							return
						}
						order = append(order, name)
						<-end
						endTurn()
					}()
					synctest.Wait()
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if running, _ := p.Load(""); running > 2 {
					if _, err := p.AwaitTurn(ctx, hook.Turn{Source: source("a")}); err == nil {
						t.Error("a run began although its context had ended")
					}
				}
				for name := range strings.FieldsSeq(tt.end) {
					close(ends[name])
					synctest.Wait()
				}
				if got := strings.Join(order, " "); got != tt.want {
					t.Errorf("order = %s, want %s", got, tt.want)
				}
				if running, waiting := p.Load(""); running+waiting > 0 {
					t.Errorf("%d run and %d wait at the end", running, waiting)
				}
			})
		})
	}
}
