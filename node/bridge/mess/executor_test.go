package mess

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// A key that the owner takes away stays away, whatever its executor does at that moment: claim, change itself, or both.
func TestTakenKeyStaysAway(t *testing.T) {
	l := newLab(t)
	for round := range 20 {
		id := "eve" + strconv.Itoa(round)
		key, err := l.Register(t.Context(), Registration{ID: id}, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		refs := make([]string, 8)
		for i := range refs {
			refs[i] = l.request("agent", "{intent: look}")
		}
		var busy sync.WaitGroup
		busy.Go(func() {
			for _, ref := range refs {
				_, _ = l.try(id, "- status: {re: "+ref+", code: claimed}\n- config: {executor: {id: "+id+", capabilities: [more]}}\n")
			}
		})
		busy.Go(func() {
			for range refs {
				_ = l.ChangeExecutor(t.Context(), actor(id), id, Registration{Name: "Eve", present: []string{"display_name"}})
			}
		})
		busy.Go(func() {
			if err := l.TakeKey(t.Context(), id, nil); err != nil {
				t.Error(err)
			}
		})
		busy.Wait()
		if _, err := l.Authenticate("Bearer "+key, l.id); err == nil {
			t.Fatalf("round %d: the key works", round)
		}
		if c := l.crew.get(id); !c.Pending || c.KeyHash != "" {
			t.Fatalf("round %d: in memory %+v", round, c.Executor)
		}
		if e, err := l.stored(t.Context(), id); err != nil || !e.Pending || e.KeyHash != "" {
			t.Fatalf("round %d: stored %+v, %v", round, e, err)
		}
	}
}

// What comes late is older: it takes the place of nothing, and a claim changes nothing but the claims.
func TestRosterKeepsTheNewest(t *testing.T) {
	r := newRoster()
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 1})
	r.put(&Executor{ID: "eve", Pending: true, Version: 3})
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 2})
	if c := r.get("eve"); !c.Pending || c.KeyHash != "" || r.byKey("abc") != nil {
		t.Errorf("eve = %+v", c.Executor)
	}
	r.claimed(claimTime{"eve", time.Second, time.Now()})
	if c := r.get("eve"); !c.Pending || !slices.Equal(c.Claims, []time.Duration{time.Second}) {
		t.Errorf("after a claim: %+v", c.Executor)
	}
}

// A block that sets up the same thing twice is the sender's mistake, and so is one with the same picture twice in a message.
func TestTwiceInOneBlock(t *testing.T) {
	s := newSite(t, nil)
	bob := s.register("bob")
	s.refuse(http.StatusBadRequest, "bob", strings.Repeat("- config: {executor: {id: bob, capabilities: [a]}}\n", 2))
	s.refuse(http.StatusBadRequest, thread.OwnerID, strings.Repeat("- config: {routing: {rules: []}}\n", 2))
	ref := s.request("agent", "{intent: look}")
	s.status("bob", ref, "claimed")
	picture := `{"response":{"re":"` + ref + `","content":[{"image":{"uri":"data:image/png;base64,` + strings.Repeat("A", 2*thread.MaxInline) + `","name":"a.png"}}]}}`
	s.want(http.StatusOK, bob, "PATCH", "requests/"+ref, `{"mess":[`+picture+`,`+picture+`]}`)
	long := `{"image":{"uri":"data:image/png;base64,` + strings.Repeat("A", 2*thread.MaxInline) + `","name":"` + strings.Repeat("n", 200) + `.png"}}`
	s.want(http.StatusOK, bob, "PATCH", "requests/"+ref, `{"mess":[{"response":{"re":"`+ref+`","content":[`+long+`,`+long+`]}}]}`)
	if names, err := s.attachments(t.Context(), ref); err != nil || len(names) != 4 {
		t.Errorf("attachments: %v, %v", names, err)
	}
}

// Who acts in thread files alone has no key. Nobody else registers under its name and has its threads.
func TestNamesInFilesAreTaken(t *testing.T) {
	s := newSite(t, nil)
	s.want(http.StatusCreated, "", "POST", "/owner/mess/exchange/import", sample)
	anonymous := strings.NewReplacer("2026-02-01-001-a7xk", "2026-02-01-002", "requestor: claude-desktop\n", "").Replace(sample)
	s.want(http.StatusCreated, "", "POST", "/owner/mess/exchange/import", anonymous)
	for id, want := range map[string]int{"claude-desktop": 409, "teague-phone": 409, "unknown": 400, "roomba": 201} {
		if status, v := s.call("", "POST", "/api/v1/exchanges/home/register", `{"executor_id":"`+id+`"}`); status != want {
			t.Errorf("%s: %d %s, want %d", id, status, v, want)
		}
	}
	s.executor("teague-phone") // by the owner
	key, err := s.GiveKey(t.Context(), "teague-phone", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.want(http.StatusOK, key, "PATCH", "requests/2026-02-01-001-a7xk", `{"status":"in_progress"}`)
}

// A file cannot use up the numbers of a day.
func TestNumbersOfADay(t *testing.T) {
	s := newSite(t, nil)
	today := time.Now().UTC().Format(time.DateOnly)
	for _, number := range []string{"999999999", "100000000"} {
		s.want(http.StatusCreated, "", "POST", "/owner/mess/exchange/import", strings.ReplaceAll(sample, "2026-02-01-001-a7xk", today+"-"+number))
	}
	for range 3 {
		if ref := s.request("agent", "{intent: look}"); !thread.IsThreadRef(ref) {
			t.Errorf("ref = %s", ref)
		}
	}
}
