package mess

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// The owner gives a key to an executor that has none or lost it, and takes one away. Nobody else may.
func TestOwnerGivesAndTakesKeys(t *testing.T) {
	s := newSite(t, nil)
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
	s.want(200, bob, "GET", "requests", "") // nobody else's key was touched

	again := NewExchange(ExchangeConfig{Store: s.store, Registration: "open"}) // it outlives the process
	if who, err := again.Authenticate("Bearer "+third, "home"); err != nil || who.ID != "roomba" {
		t.Errorf("after a restart the key is of %q: %v", who.ID, err)
	}
	if _, err := again.Authenticate("Bearer "+second, "home"); err == nil {
		t.Error("after a restart a key that was taken works")
	}
}

// The owner sees when an executor is available; the others do not.
func TestOwnerSeesSchedules(t *testing.T) {
	s := newSite(t, nil)
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

// A key that the owner gives or takes answers the question about the registration too: a later no to it would remove an
// executor that works.
func TestKeyAnswersTheRegistration(t *testing.T) {
	s := newSite(t, func(c *ExchangeConfig) { c.Registration = "approval" })
	var withdrawn []string
	s.door.answered = func(_ context.Context, id string) ([]store.Change, error) {
		withdrawn = append(withdrawn, id)
		return []store.Change{{Record: store.Record{NS: nsMeta, Key: "withdrawn/" + id, Body: []byte("x")}, IfRev: store.Any}}, nil
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
		if _, err := s.store.Records().Get(t.Context(), nsMeta, "withdrawn/"+id, time.Now()); err != nil {
			t.Errorf("the question about %s was not withdrawn with the key: %v", id, err)
		}
	}
}
