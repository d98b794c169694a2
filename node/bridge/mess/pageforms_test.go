package mess

import (
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// formClient fills in the forms of the page without a browser.
type formClient struct {
	*lab
	owner *httpapi.Owner
}

func newFormClient(t *testing.T) *formClient {
	t.Helper()
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store), Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	c := &formClient{l, httpapi.NewOwner(httpapi.OwnerConfig{})}
	b.MountPage(c.owner.Pages())
	return c
}

func (c *formClient) page(path string) string {
	w := httptest.NewRecorder()
	c.owner.Handler().ServeHTTP(w, httptest.NewRequestWithContext(c.t.Context(), "GET", "http://localhost"+httpapi.PagePath+"/mess"+path, nil))
	if w.Code != 200 {
		c.t.Errorf("%s: %d", path, w.Code)
	}
	return w.Body.String()
}

// post sends a form about a thread that must get this answer.
func (c *formClient) post(status int, ref string, pairs ...string) string {
	c.t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	r := httptest.NewRequestWithContext(c.t.Context(), "POST", "http://localhost"+httpapi.PagePath+"/mess/"+ref, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	c.owner.Handler().ServeHTTP(w, r)
	if w.Code != status {
		c.t.Errorf("%v: %d, want %d\n%s", pairs, w.Code, status, w.Body)
	}
	return w.Body.String()
}

func (c *formClient) reason(ref string) string {
	c.t.Helper()
	list, err := c.Messages(c.t.Context(), ref)
	if err != nil {
		c.t.Fatal(err)
	}
	return list[len(list)-1].Mess.At(0).At(0).GetStr("reason")
}

// TestPageStates: the list can be filtered by each state that occurs, and by no other.
func TestPageStates(t *testing.T) {
	c := newFormClient(t)
	c.executor("bob")
	offered := func() (states []string) {
		for _, part := range strings.Split(c.page(""), "?state=")[1:] {
			state, _, _ := strings.Cut(part, `"`)
			states = append(states, state)
		}
		return states
	}
	if got := offered(); len(got) != 0 {
		t.Errorf("states of nothing: %v", got)
	}
	c.request("agent", "{intent: look, constraints: {timing: {not_before: '2100-01-01T00:00:00Z'}}}")
	for code, more := range map[thread.Code]string{thread.Retrying: ", attempt: 1, max_attempts: 2, next_attempt: 5m", thread.Partial: ", completed: [a], remaining: [b]",
		thread.Delegated: ", delegated_to: 'elsewhere:x'", thread.Declined: ", reason: no"} {
		ref := c.request("agent", "{intent: look}")
		c.status("bob", ref, "claimed")
		c.status("bob", ref, string(code)+more)
	}
	want := []string{"waiting", "retrying", "partial", "declined", "delegated"}
	if got := offered(); !slices.Equal(got, want) {
		t.Errorf("states = %v, want %v", got, want)
	}
	if text := c.page("?state=partial"); strings.Count(text, `class="tag`) != 1 || !strings.Contains(text, `aria-current="true">partial<`) {
		t.Errorf("partial ones:\n%s", text)
	}
	if text := c.page("?state=expired"); !strings.Contains(text, `aria-current="true">expired<`) {
		t.Errorf("a state that nothing is in:\n%s", text)
	}
}

// TestPageDoneSaysWhat: completing needs a result, or the tick that there is nothing else to say.
func TestPageDoneSaysWhat(t *testing.T) {
	c := newFormClient(t)
	ref := c.request("agent", "{intent: look}")
	c.post(303, ref, "do", "claim")
	if text := c.post(400, ref, "do", "complete", "text", " \n"); !goldentest.Page(t, "no result", text) {
		t.Errorf("refusal:\n%s", text)
	}
	c.want(ref, thread.Claimed)
	c.post(303, ref, "do", "complete", "bare", "yes")
	c.want(ref, thread.Completed)
}

// TestPageFailsWithAReason: the holder can fail or give back a request, with a reason.
func TestPageFailsWithAReason(t *testing.T) {
	for do, code := range map[string]thread.Code{"fail": thread.Failed, "giveback": thread.Declined} {
		c := newFormClient(t)
		ref := c.request("agent", "{intent: look}")
		if strings.Contains(c.page("/"+ref), `value="fail"`) {
			t.Error("it can fail before it is claimed")
		}
		c.post(303, ref, "do", "claim")
		c.status(thread.OwnerID, ref, "needs_input, questions: [{field: a, question: b}]")
		if text := c.page("/" + ref); !strings.Contains(text, `value="`+do+`"`) {
			t.Errorf("the page cannot say it:\n%s", text)
		}
		c.post(400, ref, "do", do, "text", " ")
		c.want(ref, thread.NeedsInput)
		c.post(303, ref, "do", do, "text", "the door\r\nis locked") // as a browser sends a line break
		c.want(ref, code)
		if got := c.reason(ref); got != "the door\nis locked" {
			t.Errorf("reason = %q", got)
		}
	}
}

// TestPageDeclineSaysWhat: a decline by the owner ends a request for everybody, so its form is apart from the claim,
// says so and takes a reason.
func TestPageDeclineSaysWhat(t *testing.T) {
	c := newFormClient(t)
	c.executor("bob")
	ref := c.request("agent", "{intent: look}")
	claim, decline, _ := strings.Cut(c.page("/"+ref), "<details")
	if !strings.Contains(claim, `value="claim"`) || strings.Contains(claim, `value="decline"`) || !strings.Contains(decline, "nobody else is asked") {
		t.Errorf("the page does not say what a decline is:\n%s%s", claim, decline)
	}
	c.post(303, ref, "do", "decline", "text", "we are away")
	c.want(ref, thread.Declined)
	if got := c.reason(ref); got != "we are away" {
		t.Errorf("reason = %q", got)
	}
	ref = c.request("agent", "{intent: look}")
	c.post(303, ref, "do", "decline")
	if got := c.reason(ref); got == "" {
		t.Error("a decline without a reason")
	}
}

// TestPageSuggestions: a suggestion about a request of the owner is shown in full, as untrusted text, and is answered
// as shown.
func TestPageSuggestions(t *testing.T) {
	c := newFormClient(t)
	c.executor("bob")
	c.executor("eve")
	one, two := c.request(thread.OwnerID, "{intent: look into the fridge}"), c.request(thread.OwnerID, "{intent: look into the cellar}")
	c.do("bob", "- suggestion: {id: m, type: merge, re: ["+one+", "+two+"], proposed: {intent: '<b>both</b>', note: "+strings.Repeat("much ", 1000)+"}, reason: \"one way\u202e\"}\n")
	text := c.page("/" + one)
	for _, want := range []string{"combining several requests into one", "look into the cellar", "&lt;b&gt;both", strings.Repeat("much ", 999) + "much", "one way", "Accept", "Refuse"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %.40q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "<b>both") || strings.Contains(text, "\u202e") {
		t.Error("a stranger's markup is in the page")
	}
	c.post(400, one, "do", "accept")
	c.post(400, one, "do", "accept", "turn", "answer/1")
	c.post(409, one, "do", "accept", "turn", "suggestion/2")
	c.want(one, thread.Received)
	c.post(303, one, "do", "accept", "turn", "suggestion/1", "text", "good idea")
	c.want(one, thread.Superseded)
	c.want(two, thread.Superseded)

	for kind, proposed := range map[string]string{"split": "[the top, {intent: the bottom, priority: urgent}]", "delegate": "{executor: eve}", "defer": "2h", "alternative": "tea"} {
		ref := c.request(thread.OwnerID, "{intent: look}")
		c.do("bob", "- suggestion: {id: s, type: "+kind+", re: "+ref+", proposed: "+proposed+"}\n")
		if text := c.page("/" + ref); !strings.Contains(text, suggestionTexts[kind]) || !strings.Contains(text, `value="suggestion/1"`) {
			t.Errorf("%s:\n%s", kind, text)
		}
		c.post(303, ref, "do", "turndown", "turn", "suggestion/1", "text", "as I said")
		if got := c.reason(ref); got != "as I said" {
			t.Errorf("reason = %q", got)
		}
		if strings.Contains(c.page("/"+ref), `name="turn"`) {
			t.Errorf("%s is asked again", kind)
		}
	}
}
