package hook_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/node/hook"
)

// TestGoOnce: work does not start while work with the same key runs. Afterwards it does, and work with another key
// starts meanwhile.
func TestGoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hook.NewPool(1, 1)
		runs, end := make(map[string]int), make(chan struct{})
		start := func(key string) {
			p.GoOnce(key, func(context.Context) {
				runs[key]++
				<-end
			})
			synctest.Wait()
		}
		start("one")
		start("one")
		start("two")
		if runs["one"] != 1 || runs["two"] != 1 {
			t.Errorf("runs = %v, want each once", runs)
		}
		close(end)
		synctest.Wait()
		start("one")
		if runs["one"] != 2 {
			t.Errorf("runs = %v, want one again after it was done", runs)
		}
		p.Stop()
		start("two")
		if runs["two"] != 1 {
			t.Error("a pool that was stopped runs work")
		}
	})
}
