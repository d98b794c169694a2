package mess

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

const question = `"mess":[{"status":{"re":"last","code":"needs_input","questions":[{"field":"much","question":"How much?"}]}}]`

func result(text string) string {
	return `,"mess":[{"response":{"re":"last","content":["` + text + `"]}}]`
}

// countAsks returns the number of questions of a thread that the owner got.
func (p *meshNode) countAsks(here string) (n int) {
	p.t.Helper()
	for _, e := range p.thread(here).History {
		if thread.Code(e.Action) == thread.NeedsInput {
			n++
		}
	}
	return n
}

// TestQuestionThenResult: an executor behind a link asks something and then completes without waiting for the
// answer. The exchange there allows that, so our thread completes and has the result.
func TestQuestionThenResult(t *testing.T) {
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.home.waitStatus(here, thread.Claimed)
		w.set("bob", there, thread.NeedsInput, ","+question)
		th := w.home.waitStatus(here, thread.NeedsInput)
		if len(th.Questions) != 1 || th.Questions[0].Question != "How much?" {
			t.Errorf("the questions are %+v", th.Questions)
		}
		w.set("bob", there, thread.Completed, result("wet"))
		w.home.waitStatus(here, thread.Completed)
		eventually(t, "the result", func() bool { return strings.Contains(w.home.allText(here), "wet") })
		if n := w.home.countAsks(here); n != 1 {
			t.Errorf("the owner was asked %d times", n)
		}
	})
}

// TestQuestionRightAfterAnswer: the executor asks again before the server has confirmed the state that our link set,
// and the link checks the thread before its next answer is there. Each question is asked once.
func TestQuestionRightAfterAnswer(t *testing.T) {
	t.Parallel()
	s := &publicServer{php: true, keys: map[string][2]string{}}
	var w *publicLink
	var here, there string
	wait := func(n int) { // for question n, or for as long as a check may take
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		for tick := time.Tick(10 * time.Millisecond); ctx.Err() == nil && w.home.countAsks(here) < n; <-tick {
		}
	}
	w = newPublicLink(t, s, serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"when"`)) && bytes.Contains(body, []byte("now")) {
			w.wakePoll()
			wait(3)
		}
		s.ServeHTTP(rw, r)
		if bytes.Contains(body, []byte(`"in-progress"`)) && w.home.countAsks(here) == 1 {
			w.set("bob", there, thread.NeedsInput, `,"mess":[{"status":{"re":"last","code":"needs_input","questions":[{"field":"when","question":"When?"}]}}]`)
			wait(2)
		}
	})), nil)
	here, there = w.ask("water")
	w.set("bob", there, thread.Claimed, "")
	w.set("bob", there, thread.NeedsInput, ","+question)
	w.home.waitStatus(here, thread.NeedsInput)
	w.home.do(thread.OwnerID, "- reply: {re: water, answers: {much: a lot}}")
	eventually(t, "the second question", func() bool { return w.home.countAsks(here) == 2 })
	w.home.do(thread.OwnerID, "- reply: {re: water, answers: {when: now}}")
	eventually(t, "the answer over there", func() bool {
		return strings.Contains(string(w.thread(there).JSON()), "now") && w.status(there) == thread.InProgress
	})
	w.set("bob", there, thread.Completed, result("wet"))
	w.home.waitStatus(here, thread.Completed)
	if n := w.home.countAsks(here); n != 2 {
		t.Errorf("the owner was asked %d times, want 2", n)
	}
}

// TestOldQuestionIsNotAskedAgain: a server that accepts our answer and no change of state shows the same question as
// before. The owner is not asked again.
func TestOldQuestionIsNotAskedAgain(t *testing.T) {
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.set("bob", there, thread.NeedsInput, ","+question)
		w.home.waitStatus(here, thread.NeedsInput)
		w.home.do(thread.OwnerID, "- reply: {re: water, answers: {much: a lot}}")
		eventually(t, "the answer over there", func() bool { return strings.Contains(string(w.thread(there).JSON()), "a lot") })
		w.set("bob", there, "", `"mess":[{"response":{"re":"last","content":["I have the can"]}}]`)
		eventually(t, "what was said after it", func() bool { return strings.Contains(w.home.allText(here), "the can") })
		if n := w.home.countAsks(here); n != 1 {
			t.Errorf("the owner was asked %d times", n)
		}
	})
}

// TestWorkOnAPublicServer: before our executor works on a foreign thread, the claim is posted in a call of its own,
// whatever the server thinks of the rest. A state that the server does not know is posted as a message.
func TestWorkOnAPublicServer(t *testing.T) {
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		there, here := w.offerRequest("mow")
		w.home.status(thread.OwnerID, here, "needs_input, questions: [{field: side, question: Which side?}]")
		eventually(t, "the question over there", func() bool { return w.status(there) == thread.NeedsInput })
		if th := w.thread(there); th.GetStr("executor_id") != "us" || !strings.Contains(string(th.JSON()), "Which side?") {
			t.Errorf("there it is %s", th.JSON())
		}
		w.set("carol", there, "", `"mess":[{"answer":{"re":"last","value":"the left one"}}]`)
		w.home.waitStatus(here, thread.InProgress)
		w.home.status(thread.OwnerID, here, "held, reason: it rains")
		eventually(t, "what the server may have no word for", func() bool { return strings.Contains(string(w.thread(there).JSON()), "it rains") })
		w.home.status(thread.OwnerID, here, "in_progress")
		eventually(t, "that work goes on", func() bool {
			return w.server == nil || strings.HasSuffix(strings.ReplaceAll(w.server.statusCalls("us"), "-", "_"), ","+string(thread.InProgress))
		})
		w.home.do(thread.OwnerID, "- status: {re: "+here+", code: completed}\n- response: {re: "+here+", content: [mown]}")
		eventually(t, "the result over there", func() bool {
			return w.status(there) == thread.Completed && strings.Contains(string(w.thread(there).JSON()), "mown")
		})
		w.home.want(here, thread.Completed)
		if n := w.home.countTitles("mess", "refused"); n != 0 {
			t.Errorf("%d notices of a refusal", n)
		}
		if w.server == nil {
			return
		}
		want := "claimed,needs_input,held,in_progress,completed"
		if w.server.php { // the code is tried once, and then known
			want = "claimed,needs_input,needs-input,held,,in-progress,completed"
		}
		if got := w.server.statusCalls("us"); got != want {
			t.Errorf("we said %s, want %s", got, want)
		}
	})
}

// TestSpellingIsRemembered: the link remembers the status codes that a server knows, also after a restart.
func TestSpellingIsRemembered(t *testing.T) {
	w := newPublicServerLink(t, true)
	there, here := w.offerRequest("mow")
	w.home.status(thread.OwnerID, here, "in_progress")
	eventually(t, "the work over there", func() bool { return w.status(there) == thread.InProgress })
	l := newLink(w.home.bridge.links.All()[0].cfg)
	eventually(t, "that it is kept", func() bool {
		var kept restState
		_, _, err := store.ReadRecord(t.Context(), l.records, exchange.NSMeta, l.remote.(*restRemote).stateKey(), &kept, time.Now())
		return err == nil && kept.LegacyCodes
	})
	if err := l.remote.post(t.Context(), "", there, mustParse(t, "- status: {re: x, code: needs_input, questions: [{field: a, question: b}]}")); err != nil {
		t.Fatal(err)
	}
	if got, want := w.server.statusCalls("us"), "claimed,in_progress,in-progress,needs-input"; got != want {
		t.Errorf("we said %s, want %s", got, want)
	}
}

func newPublicServerLink(t *testing.T, php bool) (w *publicLink) {
	t.Helper()
	s := &publicServer{php: php, keys: map[string][2]string{}}
	return newPublicLink(t, s, serve(t, s), nil)
}

// TestLateClaimOnAPublicServer: somebody else has claimed the thread before our claim. Public servers enforce nothing,
// so the link looks before it claims.
func TestLateClaimOnAPublicServer(t *testing.T) {
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		there, here := w.offerRequest("mow")
		l := w.home.bridge.links.All()[0]
		l.createMu.Lock() // the link receives nothing
		if status, v := w.call("bob", http.MethodPatch, "requests/"+there, `{"status":"claimed"}`); status != http.StatusOK {
			t.Fatalf("%d %s", status, v.JSON())
		}
		w.home.status(thread.OwnerID, here, "claimed")
		l.createMu.Unlock()
		w.home.waitStatus(here, thread.Cancelled)
		if by := w.thread(there).GetStr("executor_id"); by != "bob" {
			t.Errorf("there it is held by %s", by)
		}
	})
}

// TestUnfollowedIsShown: a message about a thread that has ended here cannot be followed. It stays in the thread, and
// the owner gets a notice.
func TestUnfollowedIsShown(t *testing.T) {
	const said = "wet all the same"
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.home.waitStatus(here, thread.Claimed)
		w.home.do(thread.OwnerID, "- cancel: {re: water, reason: it rains}")
		eventually(t, "the cancel over there", func() bool { return w.status(there) == thread.Cancelled })
		w.set("bob", there, thread.Completed, result(said))
		eventually(t, "the notice", func() bool {
			return w.home.countTitles("mess", here) > 0 && w.home.countTitles("mess", "cannot follow") > 0
		})
		eventually(t, "the result", func() bool { return strings.Contains(w.home.allText(here), said) })
		w.home.want(here, thread.Cancelled)
	})
}

// TestTwoMessagesInOneSecond: a server that dates in whole seconds may add a message under a date that the link has
// seen.
func TestTwoMessagesInOneSecond(t *testing.T) {
	w := newPublicServerLink(t, true)
	here, there := w.ask("water")
	w.set("bob", there, thread.Claimed, "")
	w.home.waitStatus(here, thread.Claimed)
	for _, text := range []string{"one", "two", "three"} {
		w.set("bob", there, "", `"mess":[{"response":{"re":"last","content":["`+text+`"]}}]`)
		eventually(t, text, func() bool { return strings.Contains(w.home.allText(here), text) })
	}
}
