package exchange

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestMemoryOfThreadsAndExecutors: the memory for each thread and each executor is small, whatever they contain.
func TestMemoryOfThreadsAndExecutors(t *testing.T) {
	s := newLab(t)
	large := strings.Repeat("x", 100<<10)
	ref := s.request("agent", "{intent: look, requires: [{dig: {note: "+large+"}}]}")
	for _, n := range s.index.get(ref).needs {
		if n.Value() != "dig" {
			t.Errorf("in memory: %s", n.Value())
		}
	}
	if n := s.thread(ref).Requires[0]; len(n.Meta.JSON()) < len(large) {
		t.Error("the metadata is lost")
	}
	register := func(body string, patch bool) error {
		v, err := wire.Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		reg, err := registry.ReadRegistration(v, patch)
		switch {
		case err != nil:
		case patch:
			err = s.Executors.Change(t.Context(), "eve", false, "eve", reg)
		default:
			_, _, err = s.Executors.Register(t.Context(), reg, "")
		}
		return err
	}
	for _, body := range []string{`{"executor_id":"eve","capabilities":[{"dig":{"note":"` + large + `"}}]}`, `{"executor_id":"eve","hooks":["` + large + `"]}`} {
		if err := register(body, false); statusOf(err) != http.StatusRequestEntityTooLarge {
			t.Errorf("%.40s: %v", body, err)
		}
	}
	if err := register(`{"executor_id":"eve","capabilities":["knife"]}`, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Executors.Admit(t.Context(), "eve", true, nil); err != nil {
		t.Fatal(err)
	}
	if err := register(`{"hooks":["`+large+`"]}`, true); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("a change: %v", err)
	}
	s.refuse(http.StatusRequestEntityTooLarge, "eve", "- config: {executor: {id: eve, capabilities: [{dig: {note: "+large+"}}]}}")
	s.refuse(http.StatusBadRequest, "eve", "- suggestion: {id: s, type: alternative, re: "+ref+", proposed: "+large+"}")
	if n := len(wire.MustMarshal(s.Executors.Get("eve"))); n > 32<<10 {
		t.Errorf("eve has %d bytes", n)
	}
}

// TestQueriesOfOneBlock: a block has a bounded number of queries, so a small block cannot ask for an endless answer.
func TestQueriesOfOneBlock(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	query := "- query: {type: executors}\n"
	if r := l.do("bob", strings.Repeat(query, maxQueries)); len(r.Answers) != maxQueries {
		t.Errorf("%d answers", len(r.Answers))
	}
	l.refuse(http.StatusBadRequest, "bob", strings.Repeat(query, maxQueries+1))
}

// TestNewestAfterAPurge: after the newest thread of a requester was purged, `last` is the thread that was made last,
// even if an older one changed later.
func TestNewestAfterAPurge(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	var refs []string
	for _, intent := range []string{"first", "second", "third"} {
		refs = append(refs, l.request("ann", "{intent: "+intent+"}"))
		time.Sleep(2 * time.Millisecond)
	}
	l.status("bob", refs[0], "claimed")
	if err := l.remove(t.Context(), refs[2], time.Now()); err != nil {
		t.Fatal(err)
	}
	if last, ok := l.index.newestOf("ann"); !ok || last != refs[1] {
		t.Errorf("last is %s, want %s of %v", last, refs[1], refs)
	}
}

// TestNoticeOfAnotherProcess: if another process has stored a notice under the same key, the unit conflicts and runs
// again, so that both notices are delivered.
func TestNoticeOfAnotherProcess(t *testing.T) {
	l, now := newLab(t), time.Now()
	for i, n := range []Notice{{To: "a", Ref: "r"}, {To: "b", Ref: "r"}} {
		err := l.records.Apply(t.Context(), []store.Change{n.change(now, 1)}, now)
		if errors.Is(err, store.ErrConflict) != (i == 1) {
			t.Errorf("notice %d: %v", i, err)
		}
	}
}
