package thread

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAnswerOfOneQuestion: an answer answers only the question that it names (MESS-33). In a directory, an answer in an
// earlier document still counts.
func TestAnswerOfOneQuestion(t *testing.T) {
	const file = "ref: 2026-02-01-001\nrequestor: alice\nexecutor: bob\nstatus: needs_input\nintent: look\n" +
		"---\nfrom: alice\nMESS: [{request: {intent: look}}]\n" +
		"---\nfrom: bob\nMESS: [{status: {code: needs_input, questions: [{field: '1', question: a}, {field: '2', question: b}]}}]\n"
	for name, c := range map[string]struct {
		earlier string
		ids     []string
	}{
		"in one block":        {"", []string{"1", "2"}},
		"after an answer":     {"---\nfrom: alice\nMESS: [{answer: {id: '1', value: x}}]\n", []string{"2"}},
		"after half a reply":  {"---\nfrom: alice\nMESS: [{reply: {answers: {'2': x}}}]\n", []string{"1"}},
		"asked a second time": {"---\nfrom: alice\nMESS: [{answer: {id: '1', value: x}}]\n---\nfrom: bob\nMESS: [{status: {code: needs_input, questions: [{field: '1', question: c}]}}]\n", []string{"1"}},
	} {
		f, err := ParseFiles([]byte(file + c.earlier))
		if err != nil {
			t.Fatal(err)
		}
		th, _ := f.Adopt()
		for _, id := range c.ids {
			if th.Status != NeedsInput {
				t.Errorf("%s: the thread is %s before the answer to %s", name, th.Status, id)
			}
			answer := NewEntry("answer", th.Ref, wire.TextField("id", id), wire.TextField("value", "x"))
			if err := th.Apply(answer, "alice", time.Now()); err != nil {
				t.Errorf("%s: the answer to %s: %v", name, id, err)
			}
		}
		if th.Status != InProgress {
			t.Errorf("%s: the thread is %s after all answers", name, th.Status)
		}
	}
}
