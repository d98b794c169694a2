package exchange

import (
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// An executor chooses the ids of its suggestions and questions. They do not take the names of the requester's own requests:
// what is said to one of these goes nowhere else.
func TestIDsOfOthersTakeNoName(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("mallory")
	fridge := l.request("agent", "{id: fridge, intent: look into the fridge, confirm_before: true}")
	cellar := l.request("agent", "{id: cellar, intent: look into the cellar, confirm_before: true}")
	l.status("bob", fridge, "claimed")
	l.status("mallory", cellar, "claimed")
	l.do("mallory", "- suggestion: {id: fridge, type: alternative, re: "+cellar+", reason: why not}")
	l.status("mallory", cellar, "needs_confirmation, action: empty the cellar")
	l.status("bob", fridge, "needs_confirmation, action: open the fridge")
	l.do("agent", "- reply: {re: fridge, confirm: true}")
	l.want(cellar, thread.NeedsConfirmation)
	l.want(fridge, thread.InProgress)
	l.do("agent", "- reply: {re: cellar, confirm: true}")
	l.status("mallory", cellar, "needs_input, questions: [{field: fridge, question: which one?}]")
	l.do("agent", "- cancel: {re: fridge}")
	l.want(cellar, thread.NeedsInput)
	l.want(fridge, thread.Cancelled)
	// Where they are meant they are found, with our namespace too.
	l.do("agent", "- reply: {re: fridge, answers: {fridge: the left one}}")
	l.want(cellar, thread.InProgress)
	l.do("agent", "- reply: {re: 'home:fridge', accept: false}")
	if s := l.thread(cellar).Suggestions[0]; s.Decided != "refused" {
		t.Errorf("suggestion = %+v", s)
	}
}

// Who could once have claimed a thread does not learn from a request of its own what became of it.
func TestWaitingForOthersThreads(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("eve")
	ref := l.request("agent", "{id: secret, intent: look}")
	for _, on := range []string{ref, "secret"} {
		l.refuse(http.StatusBadRequest, "eve", "- request: {intent: peek, constraints: {depends_on: ["+on+"]}}")
	}
	l.status("bob", ref, "claimed")
	for _, on := range []string{ref, "secret"} {
		l.refuse(http.StatusBadRequest, "eve", "- request: {intent: peek, constraints: {depends_on: ["+on+"]}}")
		l.refuse(http.StatusBadRequest, "bob", "- request: {intent: peek, constraints: {depends_on: ["+on+"]}}")
	}
	own := l.request("eve", "{intent: first}")
	l.want(l.request("eve", "{intent: then, constraints: {depends_on: ["+own+"]}}"), thread.Waiting)
	l.want(l.request(thread.OwnerID, "{intent: then, constraints: {depends_on: ["+ref+"]}}"), thread.Waiting)
}
