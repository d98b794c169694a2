package exchange

import (
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestIDsOfOthersTakeNoName: executors choose the ids of their suggestions and questions. These ids never take the name
// of one of the requester's own requests.
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
	// Where a suggestion or question is meant, it is found, also with our namespace.
	l.do("agent", "- reply: {re: fridge, answers: {fridge: the left one}}")
	l.want(cellar, thread.InProgress)
	l.do("agent", "- reply: {re: 'home:fridge', accept: false}")
	if s := l.thread(cellar).Suggestions[0]; s.Decided != "refused" {
		t.Errorf("suggestion = %+v", s)
	}
}

// TestWaitingForOthersThreads: an executor that could once have claimed a thread cannot learn what became of it through
// a request that depends on it.
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
