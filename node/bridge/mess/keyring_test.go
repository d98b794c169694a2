package mess

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
	"github.com/agentmesh/agentmesh/store"
)

// TestOwnerGivesAndTakesKeys: the owner gives a key to an executor that has none or has lost it, and removes one.
// Nobody else may do so.
func TestOwnerGivesAndTakesKeys(t *testing.T) {
	s := newHTTPLab(t, nil)
	const owner = "/owner/mess/exchange/"
	bob := s.register("bob")
	s.executor("roomba", "vacuum-floor")
	ref := s.request("alice", "{intent: vacuum the kitchen, requires: [vacuum-floor]}")
	if code, text := s.call("", "POST", "register", `{"executor_id":"roomba"}`); code != 409 {
		t.Fatalf("somebody registered the owner's executor: %d %s", code, text)
	}
	for _, call := range [][2]string{{"POST", "executors/bob/key"}, {"POST", "executors/roomba/key"}, {"DELETE", "executors/roomba/key"}} {
		s.want(403, bob, call[0], call[1], "")
	}
	s.want(404, "", "POST", owner+"executors/nobody/key", "")
	s.want(404, "", "DELETE", owner+"executors/nobody/key", "")

	first := s.want(201, "", "POST", owner+"executors/roomba/key", "").GetStr("api_key")
	if !strings.HasPrefix(first, "mess_home_") {
		t.Fatalf("key = %q", first)
	}
	s.want(200, first, "GET", "requests/"+ref, "")
	second := s.want(201, "", "POST", owner+"executors/roomba/key", "").GetStr("api_key")
	s.want(401, first, "GET", "requests", "")
	s.want(200, second, "GET", "requests/"+ref, "")

	s.want(200, "", "DELETE", owner+"executors/roomba/key", "")
	s.want(401, second, "GET", "requests", "")
	s.refuse(404, "roomba", "- status: {re: "+ref+", code: claimed}\n")
	if code, _ := s.call("", "POST", "register", `{"executor_id":"roomba"}`); code != 409 {
		t.Error("the id of an executor without a key is free to take")
	}
	third := s.want(201, "", "POST", owner+"executors/roomba/key", "").GetStr("api_key")
	s.want(200, third, "PATCH", "requests/"+ref, `{"status":"claimed"}`)
	s.want(200, bob, "GET", "requests", "") // no other key has changed

	again := exchange.New(exchange.Config{Store: s.store, Registration: "open"}) // the change survives a restart
	if who, err := again.Executors.Authenticate("Bearer "+third, "home"); err != nil || who != "roomba" {
		t.Errorf("after a restart the key is of %q: %v", who, err)
	}
	if _, err := again.Executors.Authenticate("Bearer "+second, "home"); err == nil {
		t.Error("after a restart a key that was taken works")
	}
}

// TestOwnerSeesSchedules: the owner sees when an executor is available; others do not.
func TestOwnerSeesSchedules(t *testing.T) {
	s := newHTTPLab(t, nil)
	bob := s.register("bob")
	s.do(thread.OwnerID, "- config:\n    executor: {id: roomba, availability: schedule, schedule: \"0 8-22 * * *\", timezone: Europe/Berlin}\n")
	list, _ := s.want(200, "", "GET", "/owner/mess/exchange/executors", "").Get("executors")
	roomba := list.At(1)
	if roomba.GetStr("id") != "roomba" || roomba.GetStr("schedule") != "0 8-22 * * *" || roomba.GetStr("timezone") != "Europe/Berlin" {
		t.Errorf("the owner sees %s", roomba.JSON())
	}
	if first := list.At(0); strings.Contains(string(first.JSON()), "schedule") {
		t.Errorf("an executor without a schedule shows one: %s", first.JSON())
	}
	if _, text := s.call(bob, "GET", "executors", ""); strings.Contains(text, "8-22") {
		t.Errorf("an executor sees when another one is available: %s", text)
	}
}

// TestKeyAnswersTheRegistration: giving or removing a key also answers the question about the registration. A later no
// to that question would remove an executor that works.
func TestKeyAnswersTheRegistration(t *testing.T) {
	s := newHTTPLab(t, func(c *exchange.Config) { c.Registration = "approval" })
	var withdrawn []string
	s.server.Withdraw = func(_ context.Context, id string) ([]store.Change, error) {
		withdrawn = append(withdrawn, id)
		return []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: "withdrawn/" + id, Body: []byte("x")}, IfRev: store.Any}}, nil
	}
	waiting := s.register("alice")
	s.register("bob")
	key := s.want(201, "", "POST", "/owner/mess/exchange/executors/alice/key", "").GetStr("api_key")
	s.want(200, key, "GET", "requests", "")
	s.want(401, waiting, "GET", "requests", "")
	s.want(200, "", "DELETE", "/owner/mess/exchange/executors/bob/key", "")
	if !slices.Equal(withdrawn, []string{"alice", "bob"}) {
		t.Errorf("questions withdrawn: %q", withdrawn)
	}
	for _, id := range withdrawn {
		if _, err := s.store.Records().Get(t.Context(), exchange.NSMeta, "withdrawn/"+id, time.Now()); err != nil {
			t.Errorf("the question about %s was not withdrawn with the key: %v", id, err)
		}
	}
}

// TestNamesInFilesAreTaken: an actor of thread files alone has no key. Nobody can register under its name and get its
// threads.
func TestNamesInFilesAreTaken(t *testing.T) {
	s := newHTTPLab(t, nil)
	s.importFile("", threadtest.Sample)
	anonymous := strings.NewReplacer("2026-02-01-001-a7xk", "2026-02-01-002", "requestor: claude-desktop\n", "").Replace(threadtest.Sample)
	s.importFile("", anonymous)
	for id, want := range map[string]int{"claude-desktop": 409, "teague-phone": 409, "unknown": 400, "roomba": 201} {
		if status, v := s.call("", "POST", "/api/v1/exchanges/home/register", `{"executor_id":"`+id+`"}`); status != want {
			t.Errorf("%s: %d %s, want %d", id, status, v, want)
		}
	}
	s.executor("teague-phone") // by the owner
	key, err := s.Executors.GiveKey(t.Context(), "teague-phone", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.want(http.StatusOK, key, "PATCH", "requests/2026-02-01-001-a7xk", `{"status":"in_progress"}`)
}

// TestNumbersOfADay: a thread file cannot use up the numbers of a day.
func TestNumbersOfADay(t *testing.T) {
	s := newHTTPLab(t, nil)
	today := time.Now().UTC().Format(time.DateOnly)
	for _, number := range []string{"999999999", "100000000"} {
		s.importFile("", strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", today+"-"+number))
	}
	for range 3 {
		if ref := s.request("agent", "{intent: look}"); !thread.IsThreadRef(ref) {
			t.Errorf("ref = %s", ref)
		}
	}
}

// TestTwiceInOneBlock: a block that configures the same thing twice is refused; the same picture twice in a message is
// not.
func TestTwiceInOneBlock(t *testing.T) {
	s := newHTTPLab(t, nil)
	bob := s.register("bob")
	s.refuse(http.StatusBadRequest, "bob", strings.Repeat("- config: {executor: {id: bob, capabilities: [a]}}\n", 2))
	s.refuse(http.StatusBadRequest, thread.OwnerID, strings.Repeat("- config: {routing: {rules: []}}\n", 2))
	ref := s.request("agent", "{intent: look}")
	s.status("bob", ref, "claimed")
	picture := `{"response":{"re":"` + ref + `","content":[{"image":{"uri":"data:image/png;base64,` + strings.Repeat("A", 2*thread.MaxInline) + `","name":"a.png"}}]}}`
	s.want(http.StatusOK, bob, "PATCH", "requests/"+ref, `{"mess":[`+picture+`,`+picture+`]}`)
	long := `{"image":{"uri":"data:image/png;base64,` + strings.Repeat("A", 2*thread.MaxInline) + `","name":"` + strings.Repeat("n", 200) + `.png"}}`
	s.want(http.StatusOK, bob, "PATCH", "requests/"+ref, `{"mess":[{"response":{"re":"`+ref+`","content":[`+long+`,`+long+`]}}]}`)
	if names, err := s.Attachments(t.Context(), ref); err != nil || len(names) != 4 {
		t.Errorf("attachments: %v, %v", names, err)
	}
}
