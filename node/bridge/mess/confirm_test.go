package mess

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestConfirmationIsNotSwapped: the owner's yes to an executor's first question does not answer a later one.
func TestConfirmationIsNotSwapped(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	var asked []acl.Ask
	ask := func(action string) {
		t.Helper()
		home.status("bob", ref, "needs_confirmation, action: "+action)
		n := len(asked) + 1
		eventually(t, "the question to the owner", func() bool {
			asks, _, err := home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			for _, a := range asks {
				if !slices.ContainsFunc(asked, func(had acl.Ask) bool { return had.ID == a.ID }) {
					asked = append(asked, a)
				}
			}
			return err == nil && len(asked) == n
		})
	}
	ask("buy milk")
	ask("sell the house")
	if _, err := home.node.Asks().Decide(t.Context(), asked[0].ID, asked[0].Hash, acl.Approve, "test", time.Now()); err == nil {
		t.Error("the yes to the milk sold the house")
	}
	home.want(ref, thread.NeedsConfirmation)
	if _, err := home.node.Asks().Decide(t.Context(), asked[1].ID, asked[1].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	home.want(ref, thread.InProgress)
}

// TestDecisionAboutAnotherQuestion changes a stored question: approving it has no effect, and the question stays.
func TestDecisionAboutAnotherQuestion(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_confirmation, action: buy milk")
	waiting := func() (asks []acl.Ask) {
		t.Helper()
		eventually(t, "the question to the owner", func() bool {
			var err error
			asks, _, err = home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			return err == nil && len(asks) == 1
		})
		return asks
	}
	ask := waiting()[0]
	records := home.node.Store.Records()
	rec, err := records.Get(t.Context(), "asks", ask.ID, time.Now())
	if err != nil || !bytes.Contains(rec.Body, []byte("buy milk")) {
		t.Fatalf("the question is %s, %v", rec.Body, err)
	}
	rec.Body = bytes.ReplaceAll(rec.Body, []byte("buy milk"), []byte("buy silk"))
	if err := records.Apply(t.Context(), []store.Change{{Record: rec, IfRev: rec.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := home.node.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, acl.ErrNotShown) {
		t.Errorf("approve = %v, want %v", err, acl.ErrNotShown)
	}
	home.want(ref, thread.NeedsConfirmation)
	if _, err := home.node.Asks().Decide(t.Context(), ask.ID, waiting()[0].Hash, acl.Reject, "test", time.Now()); err != nil {
		t.Errorf("reject = %v", err)
	}
}

// TestPageAnswersWhatItShowed: an answer of the owner on the page is for the question that the page showed, and for no
// later one.
func TestPageAnswersWhatItShowed(t *testing.T) {
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store)})
	if err != nil {
		t.Fatal(err)
	}
	owner := httpapi.NewOwner(httpapi.OwnerConfig{})
	b.MountPage(owner.Pages())
	call := func(method, ref string, form url.Values) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+httpapi.PagePath+"/mess/"+ref, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		owner.Handler().ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	serial := regexp.MustCompile(`name="serial" value="(\d+)"`)
	// read returns the hidden field of the forms, as a browser would send it.
	read := func(ref string) string {
		t.Helper()
		_, text := call("GET", ref, nil)
		m := serial.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("the form does not say what it answers:\n%s", text)
		}
		return m[1]
	}
	l.executor("bob")
	for _, c := range []struct {
		do, first, second string
	}{
		{"confirm", "needs_confirmation, action: buy milk", "needs_confirmation, action: sell the house"},
		{"refuse", "needs_confirmation, action: sell the house", "needs_confirmation, action: buy milk"},
		{"answer", "needs_input, questions: [{field: a, question: How much milk?}]", "needs_input, questions: [{field: b, question: How many houses?}]"},
	} {
		t.Run(c.do, func(t *testing.T) {
			ref := l.request(thread.OwnerID, "{intent: look into the fridge}")
			l.status("bob", ref, "claimed")
			l.status("bob", ref, c.first)
			old := read(ref)
			l.status("bob", ref, c.second)
			before := l.thread(ref)
			for _, sent := range []string{old, "", "0", "-1", "x"} {
				if code, text := call("POST", ref, url.Values{"do": {c.do}, "q0": {"two"}, "serial": {sent}}); code < 400 {
					t.Errorf("serial %q: %d", sent, code)
				} else if sent == old && (code != http.StatusConflict || !goldentest.Page(t, "an old page", text)) {
					t.Errorf("serial %q: %d\n%s", sent, code, text)
				}
			}
			if th := l.thread(ref); th.Serial != before.Serial || th.Status != before.Status {
				t.Fatalf("the thread is %s with %d messages, was %s with %d", th.Status, th.Serial, before.Status, before.Serial)
			}
			if code, text := call("POST", ref, url.Values{"do": {c.do}, "q0": {"two"}, "serial": {read(ref)}}); code != http.StatusSeeOther {
				t.Fatalf("%d\n%s", code, text)
			}
			if th := l.thread(ref); th.Status == before.Status {
				t.Errorf("the thread is still %s", th.Status)
			}
		})
	}
}

// TestApplicantStaysAsShown: an executor that waits for the owner's approval cannot change its registration through any
// transport, because the owner approves what the question shows.
func TestApplicantStaysAsShown(t *testing.T) {
	l := newLab(t)
	reg := registry.Registration{ID: "eve", Name: "Eve", Capabilities: []thread.Need{{ID: "gardening"}}}
	if _, _, err := l.Executors.Register(t.Context(), reg, ""); err != nil {
		t.Fatal(err)
	}
	change, err := registry.ReadRegistration(wire.Obj(wire.Field("capabilities", wire.Texts([]string{"banking"}))), true)
	if err != nil {
		t.Fatal(err)
	}
	block := "- config:\n    executor: {id: eve, capabilities: [banking]}\n"
	eve := exchange.WriterOfFiles("eve")
	if err := l.Executors.Change(t.Context(), "eve", false, "eve", change); statusOf(err) != 403 {
		t.Errorf("a change while it waits: %v", err)
	}
	if _, err := l.Do(t.Context(), eve, mustParse(t, block), exchange.Options{}); statusOf(err) != 403 {
		t.Errorf("a config while it waits: %v", err)
	}
	if got := l.Executors.Get("eve"); len(got.Capabilities) != 1 || got.Capabilities[0].ID != "gardening" {
		t.Errorf("capabilities = %v", got.Capabilities)
	}
	asked := newMeshNode(t, meshtest.New(t), "home", nil)
	many := slices.Repeat([]thread.Need{{ID: "gardening"}}, maxShown+3)
	changes, err := asked.bridge.askRegistration(&registry.Executor{Account: credential.Account{ID: "eve"}, Name: "Eve", Capabilities: many})
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for _, c := range changes {
		shown.Write(c.Record.Body)
	}
	if s := shown.String(); strings.Count(s, "gardening") != maxShown || !strings.Contains(s, "Eve") || !strings.Contains(s, `"more":3`) {
		t.Errorf("the owner is shown %s", s)
	}
	if err := l.Executors.Admit(t.Context(), "eve", true, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Do(t.Context(), eve, mustParse(t, block), exchange.Options{}); err != nil {
		t.Errorf("a config of its own: %v", err)
	}
	if err := l.Executors.Change(t.Context(), "eve", false, "eve", change); err != nil {
		t.Errorf("a change of its own: %v", err)
	}
}
