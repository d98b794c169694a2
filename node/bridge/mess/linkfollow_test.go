package mess

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// offerRequest opens a request there that our owner may claim.
func (a *foreignLink) offerRequest(body string) (there, here string, task node.Item) {
	a.t.Helper()
	there = a.want(201, a.register("carol"), "POST", "requests", body).GetStr("ref")
	a.wakePoll()
	here = a.home.waitMeshThread()
	return there, here, a.home.task(here, "work/0")
}

// TestEndedThereWhileWeWork: if the exchange there or its owner ends a thread, it ends here: its executor gets a
// notice, and the task goes.
func TestEndedThereWhileWeWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(a *foreignLink, there string)
		why string
	}{
		"cancelled by its owner": {func(a *foreignLink, there string) {
			a.do(thread.OwnerID, "- cancel: {re: "+there+", reason: we move out}")
		}, "we move out"},
		"superseded": {func(a *foreignLink, there string) {
			a.do("us", "- suggestion: {id: s1, type: split, re: "+there+", proposed: [{intent: y}, {intent: z}], reason: two jobs}")
			a.do("carol", "- reply: {re: s1, accept: true}")
		}, "superseded"},
		"held, and expired": {func(a *foreignLink, there string) {
			a.set(there, `{"status":"held"}`)
			time.Sleep(time.Until(a.thread(there).Deadline) + time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go a.Work.Run(ctx, exchange.NSThreads)
			eventually(t, "the end of the thread", func() bool { return a.thread(there).Status == thread.Expired })
		}, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newForeignLink(t, nil)
			bob := a.bob
			body := `{"intent":"mow the lawn"}`
			if strings.HasPrefix(name, "held") {
				body = `{"intent":"mow the lawn","needed_by":"` + time.Now().Add(6*time.Second).UTC().Format(time.RFC3339Nano) + `"}`
			}
			there, here, task := a.offerRequest(body)
			a.home.reply(task.ID, `{"action":"accept"}`, 200)
			eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
			a.bob = a.us
			c.end(a, there)
			a.bob = bob
			a.wakePoll()
			a.home.waitStatus(here, thread.Cancelled)
			a.home.waitItem(task, owner.ItemWithdrawn)
			if text := a.home.allText(here); !strings.Contains(text, c.why) {
				t.Errorf("it says %s", text)
			}
			if n := a.home.countNotices("mess", "refused"); n != 0 {
				t.Errorf("%d notices of a refusal, and nothing was said", n)
			}
		})
	}
}

// TestForeignRefIsAnotherThreadHere: a ref of a foreign exchange may be that of another thread here.
func TestForeignRefIsAnotherThreadHere(t *testing.T) {
	a := newForeignLink(t, nil)
	ours := a.home.request("claude", "{intent: paint the fence}")
	carol := a.register("carol")
	there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn"}`).GetStr("ref")
	if there != ours {
		t.Fatalf("%s there and %s here: the test needs one ref for both", there, ours)
	}
	a.wakePoll()
	here := a.home.waitThread("mow the lawn")
	a.home.status(thread.OwnerID, here, "claimed")
	eventually(t, "the claim over there", func() bool { return a.thread(there).Holder != "" })
	a.want(200, carol, "PATCH", "requests/"+there, `{"status":"cancelled","message":"it rains"}`)
	a.wakePoll()
	a.home.waitStatus(here, thread.Cancelled)
	a.home.want(ours, thread.Received)
}

func (p *meshNode) waitThread(intent string) (ref string) {
	p.t.Helper()
	eventually(p.t.(*testing.T), intent, func() bool {
		ref = p.findThread(intent)
		return ref != ""
	})
	return ref
}

func (p *meshNode) findThread(intent string) string {
	p.t.Helper()
	page, err := p.List(p.t.Context(), exchange.Owner("test"), "", "", 100)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, th := range page.Threads {
		if th.Intent == intent {
			return th.Ref
		}
	}
	return ""
}

// sharedFolder is a shared directory and a node with a link to it. Every participant writes through its own dirRemote.
type sharedFolder struct {
	t    *testing.T
	home *meshNode
	side func(name string) *dirRemote
}

func newSharedFolder(t *testing.T, inGit bool, before func(side func(string) *dirRemote)) *sharedFolder {
	t.Helper()
	s := &sharedFolder{t: t}
	base := t.TempDir()
	options := map[string]string{"as": "us"}
	s.side = func(name string) *dirRemote { return &dirRemote{dir: filepath.Join(base, "shared"), name: name} }
	if inGit {
		run := git(t)
		options["git"] = "true"
		run(base, "init", "-q", "--bare", "-b", "main", "origin")
		s.side = func(name string) *dirRemote {
			dir := filepath.Join(base, name)
			if !exists(dir) {
				run(base, "clone", "-q", "origin", name)
			}
			return &dirRemote{dir: dir, name: name, git: true}
		}
	}
	if before != nil {
		before(s.side)
	}
	dir := s.side("us").dir
	s.home = newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.Links = []bridge.Link{{Name: "shed", Kind: Kind, Dir: dir, Options: options}}
	})
	return s
}

func (s *sharedFolder) wakePoll() { s.home.bridge.links.All()[0].wakePoll() }

func (s *sharedFolder) create(name, request string) (there string) {
	s.t.Helper()
	there, err := s.side(name).create(s.t.Context(), "", mustParse(s.t, "- request: "+request)[0].Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.wakePoll()
	return there
}

func (s *sharedFolder) say(name, there, block string) {
	s.t.Helper()
	r := s.side(name)
	if _, err := r.list(s.t.Context()); err != nil { // pulled
		s.t.Fatal(err)
	}
	if err := r.post(s.t.Context(), "", there, mustParse(s.t, block)); err != nil {
		s.t.Fatal(err)
	}
	s.wakePoll()
}

// TestTheirOwnerAnswers: the owner of a foreign exchange may answer for the requester.
func TestTheirOwnerAnswers(t *testing.T) {
	const answer = "the left one"
	a := newForeignLink(t, nil)
	there, here, task := a.offerRequest(`{"intent":"mow the lawn"}`)
	a.home.reply(task.ID, `{"mess":[{"status":{"code":"needs_input","questions":[{"field":"side","question":"Which side?"}]}}]}`, 200)
	eventually(t, "the question over there", func() bool { return a.thread(there).Status == thread.NeedsInput })
	a.do(thread.OwnerID, "- reply: {re: "+there+", answers: {side: "+answer+"}}")
	a.wakePoll()
	a.home.waitStatus(here, thread.InProgress)
	if text := a.home.allText(here); !strings.Contains(text, answer) {
		t.Errorf("it says %s", text)
	}
}
