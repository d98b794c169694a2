package mess

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

func (l *lab) refusalText(who, block string) string {
	l.t.Helper()
	_, err := l.try(who, block)
	if err == nil {
		l.t.Errorf("%s sends %s: it is taken", who, block)
		return ""
	}
	return err.Error()
}

// TestRefusalsNameWhatIsWrong: a refusal of a block names the entry and field at fault.
func TestRefusalsNameWhatIsWrong(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.request("agent", "{id: f1, intent: look}")
	duty := func(rest string) string { return "- config: {executor: {id: bob, " + rest + "}}" }
	for _, tt := range []struct{ who, block, want string }{
		{"agent", "- cancel: {re: [f1, f2]}", `MESS[0].cancel: re "f2" names nothing here`},
		{"agent", "- query: {type: status, filter: {re: [f1, f3]}}", `re "f3" names nothing here`},
		{"agent", "- cancel: {re: \"a\\tb <b>\"}", "MESS[0].cancel: re names nothing here"},
		{"agent", "- request: {intent: x, constraints: {depends_on: [f1, f4]}}", `constraints.depends_on[1]: "f4" is not a request of yours`},
		{"bob", duty("schedule: '61 * * * *'"), "executor.schedule: must be a cron expression of five fields: minute, hour, day of the month, month, day of the week"},
		{"bob", duty("availability: schedule, schedule: '0 9 * *'"), "executor.schedule: must be a cron expression of five fields: minute, hour, day of the month, month, day of the week"},
	} {
		if got := l.refusalText(tt.who, tt.block); !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.block, got, tt.want)
		}
	}
}

// TestRefusalsOverREST: over REST, fields have no prefix, and an exceeded limit is named with its size.
func TestRefusalsOverREST(t *testing.T) {
	s := newHTTPLab(t, nil)
	bob := s.register("bob")
	for _, tt := range []struct {
		want             int
		path, body, text string
	}{
		{400, "executors/bob", `{"schedule":"61 * * * *"}`, `"schedule: must be a cron expression of five fields: minute, hour, day of the month, month, day of the week"`},
		{400, "executors/bob", `{"timezone":"Mars"}`, `"timezone: must be a name such as Europe/Berlin"`},
		{413, "executors/bob", strings.Repeat(" ", thread.MaxDocument+1), `"the body is larger than 2 MiB"`},
	} {
		if code, text := s.call(bob, "PATCH", tt.path, tt.body); code != tt.want || !strings.Contains(text, tt.text) {
			t.Errorf("%.60s: %d %s, want %s", tt.body, code, text, tt.text)
		}
	}
	l := newLab(t)
	x := exchange.New(exchange.Config{Store: l.store, ThreadsPerHour: 2})
	for range 2 {
		if _, err := x.Do(t.Context(), actor("agent"), mustParse(t, "- request: {intent: x}"), exchange.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Do(t.Context(), actor("agent"), mustParse(t, "- request: {intent: x}"), exchange.Options{}); statusOf(err) != 429 || !goldentest.Refuses(t, "the third thread", err) {
		t.Errorf("the third thread: %v", err)
	}
}

// TestExpiryInThePastIsRefused: a request whose deadline has passed already is refused. That of a peer expires instead,
// because it may have been delayed on its way.
func TestExpiryInThePastIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		for _, when := range []string{"needed_by: '1999-01-01T00:00:00Z'", "constraints: {timing: {expires: '1999-01-01T00:00:00Z'}}"} {
			if got := l.refusalText("agent", "- request: {intent: x, "+when+"}"); !strings.Contains(got, "MESS[0].request.") || !strings.HasSuffix(got, "lies in the past") {
				t.Errorf("%s: %s", when, got)
			}
			r, err := l.Do(t.Context(), actor("am_peer"), mustParse(t, "- request: {intent: x, "+when+"}"), exchange.Options{Peer: &thread.Peer{Conv: "conv_1"}})
			if err != nil || len(r.Created) != 1 {
				t.Errorf("from the mesh: %v", err)
			}
		}
		soon := "- request: {id: a, intent: x, needed_by: '" + time.Now().Add(20*time.Millisecond).UTC().Format(time.RFC3339Nano) + "'}"
		first := l.do("agent", soon)
		time.Sleep(30 * time.Millisecond)
		if again := l.do("agent", soon); answerOf(again, "ack").GetStr("ref") != first.Created[0] { // MESS-16
			t.Errorf("the same again: %v", again)
		}
		l.status("bob", l.request("agent", "{id: b, intent: x, needed_by: '"+time.Now().Add(20*time.Millisecond).UTC().Format(time.RFC3339Nano)+"'}"), "claimed")
		time.Sleep(30 * time.Millisecond)
		l.executor("eve")
		l.status("bob", "b", "delegated, delegated_to: eve") // the holder decides (MESS-32)
	})
}

// TestSomeAnswersLeaveQuestionsOpen: an answer to one of several questions leaves the others open, with either entry;
// an unknown name is refused.
func TestSomeAnswersLeaveQuestionsOpen(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("agent", "{id: bread, intent: bake}")
	ask := "needs_input, questions: [{field: thick, question: How thick?}, {field: kind, question: Which kind?}]"
	l.status("bob", ref, ask)
	l.refuse(http.StatusNotFound, "agent", "- reply: {re: bread, answers: {thik: thin}}")
	l.refuse(http.StatusNotFound, "agent", "- reply: {re: bread, answers: {thick: thin, knid: rye}}")
	l.do("agent", "- reply: {re: bread, answers: {thick: thin}}")
	if th := l.want(ref, thread.NeedsInput); th.CountQuestions() != 1 {
		t.Errorf("%d questions are open", th.CountQuestions())
	}
	l.do("agent", "- reply: {re: bread, answers: {kind: rye, thick: thinner}}") // a question may be answered again
	l.want(ref, thread.InProgress)
	l.status("bob", ref, ask)
	l.do("agent", "- reply: {re: bread, answers: {thick: thin, kind: rye}}")
	l.want(ref, thread.InProgress)
	if _, err := l.Do(t.Context(), actor("bob"), mustParse(t, "- status: {code: needs_input, message: which one?}"), exchange.Options{Lax: true, Re: ref}); err != nil {
		t.Fatal(err)
	}
	l.do("agent", "- reply: {re: bread, answers: {whatever: the left one}}") // the only question has no name
	l.want(ref, thread.InProgress)
	l.status("bob", ref, ask)
	// shown as an image, without text
	l.do("agent", "- reply: {re: bread, answers: {}, context: [{image: 'https://bread.example/how.jpg'}]}")
	l.want(ref, thread.InProgress)
}

// TestFileSchemeInAnySpelling: a file of the owner is read however the scheme is written, and a malformed reference is
// not sent as text.
func TestFileSchemeInAnySpelling(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Exchange = exchange.New(exchange.Config{Store: l.store, Files: dir, ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1})
	for _, uri := range []string{"file://x.txt", "FILE://x.txt", "File://" + dir + "/x.txt"} {
		l.wantText(l.readRequest(thread.OwnerID, l.request(thread.OwnerID, "{intent: read, context: [{file: '"+uri+"'}]}")), `"file":"att-001-file-`)
	}
	for _, uri := range []string{"file:x.txt", "FILE:/x.txt"} {
		if got := l.refusalText(thread.OwnerID, "- request: {intent: read, context: [{file: '"+uri+"'}]}"); !strings.Contains(got, "file://NAME") {
			t.Errorf("%s: %s", uri, got)
		}
	}
}
