package mess

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

const question = `"mess":[{"status":{"re":"last","code":"needs_input","questions":[{"field":"much","question":"How much?"}]}}]`

// result is the response of an executor.
func result(text string) string {
	return `,"mess":[{"response":{"re":"last","content":["` + text + `"]}}]`
}

// asked counts the questions of a thread that were put to the owner.
func (p *party) asked(here string) (n int) {
	p.t.Helper()
	for _, e := range p.thread(here).History {
		if thread.Code(e.Action) == thread.NeedsInput {
			n++
		}
	}
	return n
}

// An executor behind a link asks something and then completes without waiting for the answer: the exchange there allows it,
// so our thread completes and has the result. The link used to drop the result, and the thread stayed needs_input for good.
func TestQuestionThenResult(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.home.reaches(here, thread.Claimed)
		w.set("bob", there, thread.NeedsInput, ","+question)
		th := w.home.reaches(here, thread.NeedsInput)
		if len(th.Questions) != 1 || th.Questions[0].Question != "How much?" {
			t.Errorf("the questions are %+v", th.Questions)
		}
		w.set("bob", there, thread.Completed, result("wet"))
		w.home.reaches(here, thread.Completed)
		eventually(t, "the result", func() bool { return strings.Contains(w.home.said(here), "wet") })
		if n := w.home.asked(here); n != 1 {
			t.Errorf("the owner was asked %d times", n)
		}
	})
}

// The same with our answer in between. The answer alone does not move the thread there, so the link says that the work goes
// on; the owner is not asked again, by nothing, and a second question of the executor comes through.
func TestQuestionAnswerResult(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.set("bob", there, thread.NeedsInput, ","+question)
		w.home.reaches(here, thread.NeedsInput)
		w.home.do(thread.OwnerID, "- reply: {re: water, answers: {much: a lot}}")
		eventually(t, "the answer over there", func() bool { return w.status(there) == thread.InProgress })
		if text := string(w.thread(there).JSON()); !strings.Contains(text, "a lot") {
			t.Errorf("there it is %s", text)
		}
		w.poke()
		w.set("bob", there, thread.NeedsInput, `,"mess":[{"status":{"re":"last","code":"needs_input","questions":[{"field":"when","question":"When?"}]}}]`)
		eventually(t, "the second question", func() bool {
			th := w.home.thread(here)
			return th.Status == thread.NeedsInput && len(th.Questions) == 1 && th.Questions[0].Question == "When?"
		})
		w.home.do(thread.OwnerID, "- reply: {re: water, answers: {when: now}}")
		eventually(t, "the answer over there", func() bool { return w.status(there) == thread.InProgress })
		w.set("bob", there, thread.Completed, result("wet"))
		w.home.reaches(here, thread.Completed)
		eventually(t, "the result", func() bool { return strings.Contains(w.home.said(here), "wet") })
		if n := w.home.asked(here); n != 2 {
			t.Errorf("the owner was asked %d times", n)
		}
		if n := w.home.titled("mess", "refused"); n != 0 {
			t.Errorf("%d notices of a refusal", n)
		}
	})
}

// TestQuestionRightAfterAnswer: the executor asks again before the server has confirmed the state that our link set, and the
// link looks at the thread before its next answer is there. Each question is asked once.
func TestQuestionRightAfterAnswer(t *testing.T) {
	s := &standin{php: true, keys: map[string][2]string{}}
	var w *town
	var here, there string
	wait := func(n int) { // for question n, or for as long as a look may take
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		for tick := time.Tick(10 * time.Millisecond); ctx.Err() == nil && w.home.asked(here) < n; <-tick {
		}
	}
	w = newTown(t, s, serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"when"`)) && bytes.Contains(body, []byte("now")) {
			w.poke()
			wait(3)
		}
		s.ServeHTTP(rw, r)
		if bytes.Contains(body, []byte(`"in-progress"`)) && w.home.asked(here) == 1 {
			w.set("bob", there, thread.NeedsInput, `,"mess":[{"status":{"re":"last","code":"needs_input","questions":[{"field":"when","question":"When?"}]}}]`)
			wait(2)
		}
	})), nil)
	here, there = w.ask("water")
	w.set("bob", there, thread.Claimed, "")
	w.set("bob", there, thread.NeedsInput, ","+question)
	w.home.reaches(here, thread.NeedsInput)
	w.home.do(thread.OwnerID, "- reply: {re: water, answers: {much: a lot}}")
	eventually(t, "the second question", func() bool { return w.home.asked(here) == 2 })
	w.home.do(thread.OwnerID, "- reply: {re: water, answers: {when: now}}")
	eventually(t, "the answer over there", func() bool {
		return strings.Contains(string(w.thread(there).JSON()), "now") && w.status(there) == thread.InProgress
	})
	w.set("bob", there, thread.Completed, result("wet"))
	w.home.reaches(here, thread.Completed)
	if n := w.home.asked(here); n != 2 {
		t.Errorf("the owner was asked %d times, want 2", n)
	}
}

// A server that takes our answer and lets nobody say that the work goes on shows the same question as before: it is not
// asked again.
func TestOldQuestionIsNotAskedAgain(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.set("bob", there, thread.NeedsInput, ","+question)
		w.home.reaches(here, thread.NeedsInput)
		w.home.do(thread.OwnerID, "- reply: {re: water, answers: {much: a lot}}")
		eventually(t, "the answer over there", func() bool { return strings.Contains(string(w.thread(there).JSON()), "a lot") })
		w.set("bob", there, "", `"mess":[{"response":{"re":"last","content":["I have the can"]}}]`)
		eventually(t, "what was said after it", func() bool { return strings.Contains(w.home.said(here), "the can") })
		if n := w.home.asked(here); n != 1 {
			t.Errorf("the owner was asked %d times", n)
		}
	})
}

// We work on what somebody there asked for: the claim stands there before anything else is said, whatever the server thinks
// of the rest. What the server has no word for is said in a message.
func TestWorkOnAPublicServer(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		there, here := w.offered("mow")
		w.home.status(thread.OwnerID, here, "needs_input, questions: [{field: side, question: Which side?}]")
		eventually(t, "the question over there", func() bool { return w.status(there) == thread.NeedsInput })
		if th := w.thread(there); th.GetStr("executor_id") != "us" || !strings.Contains(string(th.JSON()), "Which side?") {
			t.Errorf("there it is %s", th.JSON())
		}
		w.set("carol", there, "", `"mess":[{"answer":{"re":"last","value":"the left one"}}]`)
		w.home.reaches(here, thread.InProgress)
		w.home.status(thread.OwnerID, here, "held, reason: it rains")
		eventually(t, "what the server may have no word for", func() bool { return strings.Contains(string(w.thread(there).JSON()), "it rains") })
		w.home.status(thread.OwnerID, here, "in_progress")
		w.home.do(thread.OwnerID, "- status: {re: "+here+", code: completed}\n- response: {re: "+here+", content: [mown]}")
		eventually(t, "the result over there", func() bool {
			return w.status(there) == thread.Completed && strings.Contains(string(w.thread(there).JSON()), "mown")
		})
		w.home.want(here, thread.Completed)
		if n := w.home.titled("mess", "refused"); n != 0 {
			t.Errorf("%d notices of a refusal", n)
		}
		if w.standin == nil {
			return
		}
		want := "claimed,needs_input,held,in_progress,completed"
		if w.standin.php { // the word is tried once, and then known
			want = "claimed,needs_input,needs-input,held,,in-progress,completed"
		}
		if got := w.standin.said("us"); got != want {
			t.Errorf("we said %s, want %s", got, want)
		}
	})
}

// The word that a server knows is remembered by the link, also after a start.
func TestSpellingIsRemembered(t *testing.T) {
	w := newStandinTown(t, true)
	there, here := w.offered("mow")
	w.home.status(thread.OwnerID, here, "in_progress")
	eventually(t, "the work over there", func() bool { return w.status(there) == thread.InProgress })
	l, err := newLink(w.home.bridge.links[0].cfg)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it is kept", func() bool {
		kept, err := l.remote.(*restRemote).memory.load(t.Context())
		return err == nil && kept.OtherWords
	})
	if err := l.remote.say(t.Context(), "", there, mustParse(t, "- status: {re: x, code: needs_input, questions: [{field: a, question: b}]}")); err != nil {
		t.Fatal(err)
	}
	if got, want := w.standin.said("us"), "claimed,in_progress,in-progress,needs-input"; got != want {
		t.Errorf("we said %s, want %s", got, want)
	}
}

func newStandinTown(t *testing.T, php bool) (w *town) {
	t.Helper()
	s := &standin{php: php, keys: map[string][2]string{}}
	return newTown(t, s, serve(t, s), nil)
}

// Somebody else took it before our claim came: nobody enforces anything there, so the link looks before it claims.
func TestLateClaimOnAPublicServer(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		there, here := w.offered("mow")
		l := w.home.bridge.links[0]
		l.making.Lock() // the link hears nothing
		if status, v := w.call("bob", http.MethodPatch, "requests/"+there, `{"status":"claimed"}`); status != http.StatusOK {
			t.Fatalf("%d %s", status, v.JSON())
		}
		w.home.status(thread.OwnerID, here, "claimed")
		l.making.Unlock()
		w.home.reaches(here, thread.Cancelled)
		if by := w.thread(there).GetStr("executor_id"); by != "bob" {
			t.Errorf("there it is held by %s", by)
		}
	})
}

// What the exchange says of a thread that has ended here cannot be followed. It is kept in the thread, and the owner hears
// of it; the link used to write it into the log alone.
func TestUnfollowedIsShown(t *testing.T) {
	towns(t, func(t *testing.T, begin func(func(*Config)) *town) {
		w := begin(nil)
		here, there := w.ask("water")
		w.set("bob", there, thread.Claimed, "")
		w.home.reaches(here, thread.Claimed)
		w.home.do(thread.OwnerID, "- cancel: {re: water, reason: it rains}")
		eventually(t, "the cancel over there", func() bool { return w.status(there) == thread.Cancelled })
		w.set("bob", there, thread.Completed, result("wet all the same"))
		eventually(t, "the notice", func() bool { return w.home.titled("mess", here) > 0 && w.home.titled("mess", "cannot follow") > 0 })
		eventually(t, "the result", func() bool { return strings.Contains(w.home.said(here), "wet all the same") })
		w.home.want(here, thread.Cancelled)
	})
}

// A server that dates in whole seconds may add to a thread under a date that the link has seen.
func TestTwoMessagesInOneSecond(t *testing.T) {
	w := newStandinTown(t, true)
	here, there := w.ask("water")
	w.set("bob", there, thread.Claimed, "")
	w.home.reaches(here, thread.Claimed)
	for _, text := range []string{"one", "two", "three"} {
		w.set("bob", there, "", `"mess":[{"response":{"re":"last","content":["`+text+`"]}}]`)
		eventually(t, text, func() bool { return strings.Contains(w.home.said(here), text) })
	}
}
