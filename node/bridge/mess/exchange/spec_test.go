package exchange

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestAppendixConversation runs the appendix of the specification, with a real image, and with the executor that its
// examples have.
func TestAppendixConversation(t *testing.T) {
	l := newLab(t)
	l.executor("teague-phone", "take-photo", "check-visual")
	l.executor("kitchen-helper", "operate-appliance", "home-kitchen-access")

	r := l.do("agent", `MESS:
  - v: 1.0.0
  - request:
      id: dinner-check
      intent: check what ingredients we have
      context:
        - Planning dinner for 4
        - Kids prefer pasta or rice dishes
      response_hint:
        - text
        - image
`)
	ack := answerOf(r, "ack")
	dinner := ack.GetStr("ref")
	if ack.GetStr("re") != "dinner-check" || !thread.IsThreadRef(dinner) || ack.GetStr("received_at") == "" {
		t.Fatalf("ack = %s", ack.JSON())
	}
	l.do("teague-phone", "MESS:\n  - status:\n      re: dinner-check\n      code: claimed\n      executor: household:teague-phone\n")
	l.want(dinner, thread.Claimed)
	l.do("teague-phone", `MESS:
  - response:
      re: dinner-check
      content:
        - image: data:image/jpeg;base64,/9j/4AAQSkZJRg==
        - |
          Fridge: chicken thighs (1lb, exp tomorrow), broccoli, carrots
          Pantry: rice, pasta, soy sauce, honey
      notes: chicken should be used tonight
`)
	l.want(dinner, thread.Completed)
	rice := l.request("agent", `
      id: start-rice
      intent: start rice cooker with 2 cups rice
      precision: exact
      context:
        - ref: dinner-check
        - Making stir fry with the chicken
      requires:
        - operate-appliance
        - home-kitchen-access
`)
	// lacks the capabilities, so the thread does not exist for it
	l.refuse(404, "teague-phone", "- status: {re: "+rice+", code: claimed}")
	l.do("kitchen-helper", `MESS:
  - status:
      re: start-rice
      code: needs_confirmation
      executor: household:kitchen-helper
      action: start rice cooker (2 cups white rice, 2.5 cups water)
      consequences: rice will be ready in ~25 minutes
`)
	if th := l.want(rice, thread.NeedsConfirmation); th.Holder != "kitchen-helper" {
		t.Errorf("holder is %q", th.Holder)
	}
	l.do("agent", "MESS:\n  - reply:\n      re: start-rice\n      confirm: true\n")
	l.want(rice, thread.InProgress)
	l.do("kitchen-helper", `MESS:
  - response:
      re: start-rice
      content:
        - confirmation: true
        - Rice cooker started, will be ready at 5:30pm
`)
	th := l.want(rice, thread.Completed)
	var walked []string
	for _, e := range th.History {
		walked = append(walked, e.Action+" "+e.By)
	}
	want := "created agent, claimed kitchen-helper, needs_confirmation kitchen-helper, in_progress agent, completed kitchen-helper"
	if got := strings.Join(walked, ", "); got != want {
		t.Errorf("history = %s, want %s", got, want)
	}
	messages, err := l.Messages(t.Context(), dinner)
	if err != nil || len(messages) != 3 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	if got := messages[0].Mess.At(0).JSON(); !strings.Contains(string(got), "Kids prefer pasta") {
		t.Errorf("request is kept as %s", got)
	}
}

// TestOnions runs the batch of the specification with three executors: each request waits for the one before.
func TestOnions(t *testing.T) {
	l := newLab(t)
	l.executor("instacart-proxy", "buy")
	l.executor("courier", "deliver")
	l.executor("kitchen-robot", "precision-knife-work", "home-kitchen-access")
	r := l.do("agent", `MESS:
  - request:
      id: dice-onions
      intent: dice the onions, medium dice
      requires: [precision-knife-work, home-kitchen-access]
      constraints: {depends_on: [deliver-onions]}
  - request:
      id: get-onions
      intent: buy yellow onions
      requires: [buy]
      constraints: {location: grocery store near home}
  - request:
      id: deliver-onions
      intent: deliver onions to home
      requires: [deliver]
      constraints: {depends_on: [get-onions]}
`)
	list, _ := answerOf(r, "ack").Get("requests")
	if list.Len() != 3 || list.At(1).GetStr("id") != "get-onions" {
		t.Fatalf("ack = %s", answerOf(r, "ack").JSON())
	}
	dice, get, deliver := list.At(0).GetStr("ref"), list.At(1).GetStr("ref"), list.At(2).GetStr("ref")
	l.want(dice, thread.Waiting)
	l.want(deliver, thread.Waiting)
	l.refuse(404, "courier", "- status: {re: deliver-onions, code: claimed}") // hidden while it waits
	l.status("instacart-proxy", "get-onions", "claimed, eta: 45m")
	l.do("instacart-proxy", "- status: {re: get-onions, code: completed}\n- response: {re: get-onions, content: [{confirmation: true}]}\n")
	l.want(get, thread.Completed)
	l.want(deliver, thread.Received)
	l.want(dice, thread.Waiting)
	l.do("courier", "- status: {re: deliver-onions, code: claimed}\n- response: {re: deliver-onions, content: [done]}\n- status: {re: deliver-onions, code: completed}\n")
	l.want(dice, thread.Received)
	l.status("kitchen-robot", "dice-onions", "in_progress, progress_pct: 40")
	l.do("kitchen-robot", "- response: {re: dice-onions, content: [{confirmation: {confirmed: true, units: 3}}]}\n")
	l.want(dice, thread.Completed)
}
