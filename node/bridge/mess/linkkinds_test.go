package mess

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/store"
)

// linkKind is a kind of partner behind a link, with the participants bob and carol.
type linkKind struct {
	name  string
	begin func(t *testing.T) *farSide
}

// farSide is a node with a link, and the exchange behind it as its participants use it.
type farSide struct {
	t      *testing.T
	home   *meshNode
	as     func(who string) remote
	reader string // bob or carol, who reads the thread of the moment
}

// linkKinds are the kinds of partners: an exchange like ours, the two public servers, and a folder. The slow tests add a
// folder in git.
var linkKinds = []linkKind{
	{"exchange", func(t *testing.T) *farSide {
		a := newForeignLink(t, func(c *Config) { c.Links[0].Options = map[string]string{"as": "us"} })
		keys := map[string]string{"bob": a.bob, "carol": a.register("carol")}
		return &farSide{t: t, home: a.home, as: asRESTClient(a.home, a.srv.URL, "home", keys)}
	}},
	{"public Node server", func(t *testing.T) *farSide { return newPublicFarSide(t, false) }},
	{"public PHP server", func(t *testing.T) *farSide { return newPublicFarSide(t, true) }},
	{"folder", func(t *testing.T) *farSide { return newFolderFarSide(t, false) }},
}

func newPublicFarSide(t *testing.T, php bool) *farSide {
	s := &publicServer{php: php, keys: map[string][2]string{}}
	w := newPublicLink(t, s, serve(t, s), func(c *Config) { c.Links[0].Options = map[string]string{"as": "us"} })
	return &farSide{t: t, home: w.home, as: asRESTClient(w.home, w.base, w.exchange, w.keys)}
}

func newFolderFarSide(t *testing.T, inGit bool) *farSide {
	s := newSharedFolder(t, inGit, nil)
	return &farSide{t: t, home: s.home, as: func(who string) remote { return s.side(who) }}
}

// asRESTClient returns the participants of an exchange over REST, each with the client that links use.
func asRESTClient(home *meshNode, base, exchange string, keys map[string]string) func(who string) remote {
	var mu sync.Mutex
	made := map[string]remote{}
	return func(who string) remote {
		mu.Lock()
		defer mu.Unlock()
		if made[who] == nil {
			made[who] = &restRemote{
				base: base, exchange: exchange, as: who, token: client.Credential(keys[who]), http: client.NewHTTP(client.HTTPConfig{Local: true}),
				cfg: &LinkConfig{Link: bridge.Link{Name: "of-" + who}, Records: home.store.Records()},
			}
		}
		return made[who]
	}
}

// view returns a thread there as its participant sees it.
func (f *farSide) view(there string) remoteView {
	f.t.Helper()
	r := f.as(f.reader)
	if _, err := r.list(f.t.Context()); err != nil { // pulls
		f.t.Fatal(err)
	}
	v, err := r.view(f.t.Context(), there)
	if e, ok := errors.AsType[*client.SendError](err); err != nil && (!ok || e.Status == http.StatusNotFound) {
		f.t.Fatal(err)
	}
	return v
}

// says counts the messages of a thread there that have a text.
func (f *farSide) says(there, text string) (n int) {
	f.t.Helper()
	for _, m := range f.view(there).messages {
		if strings.Contains(string(m.Mess.JSON()), text) {
			n++
		}
	}
	return n
}

// say posts blocks there, each in a call of its own, as public clients do.
func (f *farSide) say(who, there string, blocks ...string) {
	f.t.Helper()
	for _, block := range blocks {
		r := f.as(who)
		_, err := r.list(f.t.Context())
		if err == nil {
			err = r.post(f.t.Context(), "", there, mustParse(f.t, strings.ReplaceAll(block, "re: last", "re: "+there)))
		}
		if err != nil {
			f.t.Fatalf("%s says %s: %v", who, block, err)
		}
	}
	f.wakePoll()
}

func (f *farSide) wakePoll() { f.home.bridge.links.All()[0].wakePoll() }

// find returns the threads there with an intent.
func (f *farSide) find(intent string) (refs []string) {
	f.t.Helper()
	r := f.as("bob")
	list, err := r.list(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, th := range list {
		v, err := r.view(f.t.Context(), th.ref)
		if err != nil {
			f.t.Fatal(err)
		}
		if len(v.messages) > 0 && strings.Contains(string(v.messages[0].Mess.JSON()), intent) {
			refs = append(refs, th.ref)
		}
	}
	return refs
}

func (f *farSide) waitStatus(there string, code thread.Code) {
	f.t.Helper()
	eventually(f.t, there+" is "+string(code)+" there", func() bool { return f.view(there).status == code })
}

const (
	firstQuestion  = "- status: {re: last, code: needs_input, questions: [{field: much, question: How much?}]}"
	secondQuestion = "- status: {re: last, code: needs_input, questions: [{field: time, question: When?}]}"
)

// play plays a request of ours with two questions of bob, and then one of carol with a question of our owner. Everybody
// learns everything once.
func (f *farSide) play() {
	f.t.Helper()
	home := f.home
	f.reader = "bob"
	here := home.request(thread.OwnerID, "{id: water, intent: water the roses}")
	home.sendThrough(here)
	var there string
	eventually(f.t, "the request over there", func() bool {
		refs := f.find("water the roses")
		if len(refs) > 1 {
			f.t.Fatalf("it was sent %d times", len(refs))
		}
		there = strings.Join(refs, "")
		return there != ""
	})
	f.say("bob", there, "- status: {re: last, code: claimed}")
	home.waitStatus(here, thread.Claimed)
	for i, question := range []string{firstQuestion, secondQuestion} {
		field, answer := []string{"much", "time"}[i], []string{"a-lot", "at-noon"}[i]
		f.say("bob", there, question)
		eventually(f.t, "question "+field, func() bool {
			th := home.thread(here)
			return th.Status == thread.NeedsInput && len(th.Questions) == 1 && th.Questions[0].ID == field
		})
		home.do(thread.OwnerID, "- reply: {re: "+here+", answers: {"+field+": "+answer+"}}")
		f.waitStatus(there, thread.InProgress)
		if n := f.says(there, answer); n != 1 {
			f.t.Errorf("the answer %s is there %d times", answer, n)
		}
	}
	f.say("bob", there, "- response: {re: last, content: [soaked]}", "- status: {re: last, code: completed}")
	home.waitStatus(here, thread.Completed)
	eventually(f.t, "the result", func() bool { return strings.Contains(home.allText(here), "soaked") })
	if n := home.countAsks(here); n != 2 {
		f.t.Errorf("the owner was asked %d times", n)
	}
	if n := len(f.find("water the roses")); n != 1 {
		f.t.Errorf("the request is there %d times", n)
	}

	f.reader = "carol"
	theirs, err := f.as("carol").create(f.t.Context(), "", mustParse(f.t, "- request: {id: mow, intent: mow the lawn}")[0].Body)
	if err != nil {
		f.t.Fatal(err)
	}
	f.wakePoll()
	ours := home.waitThread("mow the lawn")
	home.status(thread.OwnerID, ours, "claimed")
	home.status(thread.OwnerID, ours, "needs_input, questions: [{field: side, question: Which side?}]")
	f.waitStatus(theirs, thread.NeedsInput)
	f.say("carol", theirs, "- answer: {re: last, value: left-hand}")
	home.waitStatus(ours, thread.InProgress)
	home.do(thread.OwnerID, "- status: {re: "+ours+", code: completed}\n- response: {re: "+ours+", content: [mown]}")
	f.waitStatus(theirs, thread.Completed)
	for text, n := range map[string]int{"Which side?": f.says(theirs, "Which side?"), "left-hand": strings.Count(home.allText(ours), "left-hand"), "mown": f.says(theirs, "mown")} {
		if n != 1 {
			f.t.Errorf("%q was said %d times", text, n)
		}
	}
	home.want(ours, thread.Completed)
	list, _, err := home.node.Notices.List(f.t.Context(), "", 100, time.Now())
	for _, notice := range list {
		if strings.Contains(notice.Title, "refused") {
			f.t.Errorf("%s: %s", notice.Title, notice.Text)
		}
	}
	if err != nil {
		f.t.Error(err)
	}
}

// TestQuestionsOverLinks: requests, questions, answers and results in both directions, over each kind of link.
func TestQuestionsOverLinks(t *testing.T) {
	for _, kind := range linkKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			kind.begin(t).play()
		})
	}
}

// dyingRecords is the store of a link that dies at its call number dies: that call and all later ones fail.
type dyingRecords struct {
	store.Records
	dies  int64
	calls atomic.Int64
}

func (r *dyingRecords) check() error {
	if r.calls.Add(1) >= r.dies {
		return errors.New("the link has died")
	}
	return nil
}

func (r *dyingRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if err := r.check(); err != nil {
		return store.Record{}, err
	}
	return r.Records.Get(ctx, ns, key, now)
}

func (r *dyingRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := r.check(); err != nil {
		return store.RecordPage{}, err
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

func (r *dyingRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := r.check(); err != nil {
		return err
	}
	return r.Records.Apply(ctx, changes, now)
}

// restart replaces the link by a new one, which knows only what is stored.
func (f *farSide) restart(records store.Records) {
	cfg := f.home.bridge.links.All()[0].cfg
	cfg.Records = records
	f.home.bridge.links.Put(newLink(cfg))
}

// playWithDeath plays with a link that dies at its call number n of the store and then starts again. It reports whether
// the link died.
func (f *farSide) playWithDeath(n int64) bool {
	f.t.Helper()
	records := &dyingRecords{Records: f.home.store.Records(), dies: n}
	f.restart(records)
	ended, watching := make(chan struct{}), make(chan bool, 1)
	go func() {
		for tick := time.Tick(time.Millisecond); ; {
			select {
			case <-tick:
			case <-ended:
				watching <- false
				return
			}
			if records.calls.Load() >= n {
				f.restart(f.home.store.Records())
				watching <- true
				return
			}
		}
	}()
	f.play()
	close(ended)
	return <-watching
}
