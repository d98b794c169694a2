// Package web is the owner's page of a node: what waits, what was written, who may write. It shows and does the same
// as the owner API, with the same types and methods.
package web

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// Node is what the page needs from a node: the methods of the owner API, and some that only the page uses. Its counts
// stop at maxCount, the largest number that the page shows.
type Node interface {
	owner.Node
	// Overview returns what Status returns, with counts up to maxCount.
	Overview(ctx context.Context, maxCount int) (owner.Status, error)
	// CountApprovals counts the questions that wait for a decision, up to maxCount.
	CountApprovals(ctx context.Context, maxCount int) (int, error)
	// CountItems counts the inbox items in a state, or with [owner.NeedsOwner], up to maxCount.
	CountItems(ctx context.Context, state string, maxCount int) (int, error)
	// CheckTranscript returns an error if the hash chain of a transcript is broken.
	CheckTranscript(ctx context.Context, peer, id string) error
	// Audit returns the log of decisions.
	Audit() *acl.Audit
	Paused() bool
	Modes() owner.Modes
	// Refusals returns the newest refusals since the process started, newest first; equal ones are merged. The channel
	// closes at the next refusal.
	Refusals() (list []owner.Refusal, next <-chan struct{})
	// Watch returns a channel of events from now on, until stop is called.
	Watch() (events <-chan owner.Event, stop func())
}

// namedNode is a [Node] with names beside the ids of peers. Its owner.Node adds the names, and hides the methods of the
// same name in localNode, which embeds them one level deeper.
type namedNode struct {
	owner.Node
	localNode
}

type localNode struct{ Node }

// pages is the node's part of the owner's page.
type pages struct {
	n     Node
	says  reader
	setup Setup // nil without a process around the node
	log   *slog.Logger
	shell *httpapi.Pages // the frame of all pages, to which the pages of the node are added

	changed lastChange // what the undo form of the next page undoes

	today, settings, found, approvals, approval, inbox, item, conversations, conversation *httpapi.PageTemplate
	compose, peers, outbox, notices, audit, profile, connect, person                      *httpapi.PageTemplate
}

// viewFuncs are the methods that the templates call.
var viewFuncs = map[string]any{
	"shown":    func(v interface{ Shown() owner.ShownName }) owner.ShownName { return v.Shown() },
	"faceless": owner.ShownName.Faceless,
	"detail":   owner.Notice.Detail,

	"pending": askView.Pending, "outcome": askView.Outcome,
	"judgment": itemView.Judgment, "deed": content.Deed, "preview": content.Preview, "sentence": content.Sentence,
	"entry": logView.Entry, "linked": entryView.Linked,
	"alone": settingsView.Alone, "empty": todayView.Empty, "clock": weekEvent.Clock,
	"isFixed": Profile.IsFixed, "directoryLines": Profile.DirectoryLines, "noProgram": Programs.NoProgram,

	"matter": conversationView.Matter, "canAnswer": func(v interface{ CanAnswer() bool }) bool { return v.CanAnswer() },
	"first": part.First, "isLine": part.IsLine, "deeds": part.Deed,
	"element": offer.ID, "offered": offer.Offered, "length": offer.Length, "choices": offer.Choices,
	"agreedFacts": agreed.Facts, "when": agreedView.When,
	"agreedName": func(v interface{ Name() string }) string { return v.Name() },
	"decided":    func(v interface{ Decided() string }) string { return v.Decided() },
	"isEvent":    func(v interface{ IsEvent() bool }) bool { return v.IsEvent() },
}

// door is the name of the page in the audit log and in decisions.
const door = "page"

const (
	pageSize    = 25       // entries of a list
	maxPageForm = 3 << 20  // a message as a form
	maxShown    = 16 << 10 // bytes of a payload that a list shows in full
)

// Mount adds the pages of a node to the owner's page. Without a setup, the pages for the first run are left out. log
// gets errors that no page shows; nil discards them.
func Mount(shell *httpapi.Pages, n Node, setup Setup, log *slog.Logger) {
	read := func(name string) *httpapi.PageTemplate {
		return shell.Template(pageFiles, viewFuncs, "page/"+name+".html", "page/parts.html", "page/message.html")
	}
	p := &pages{
		n: namedNode{owner.WithNames(n), localNode{n}}, setup: setup, log: cmp.Or(log, slog.New(slog.DiscardHandler)), shell: shell,
		today: read("today"), settings: read("settings"), found: read("discover"), approvals: read("approvals"), approval: read("approval"), inbox: read("inbox"),
		item: read("item"), conversations: read("conversations"), conversation: read("conversation"),
		compose: read("compose"), peers: read("peers"), outbox: read("outbox"), notices: read("notices"),
		audit: read("log"), profile: read("profile"), connect: read("connect"), person: read("person"),
	}
	p.says = reader{p.n}
	shell.SetBar(func(context.Context) httpapi.Bar { return httpapi.Bar{Name: n.Card().Name, Paused: n.Paused()} })
	shell.NamePeers(p.nameOf)
	shell.Follow(p.followEvents)
	shell.Follow(p.followRefusals)
	shell.Add(
		httpapi.Nav{Path: "", Title: "Today"},
		httpapi.Nav{Path: "approvals", Title: "Approvals", Under: "Today", Count: p.countApprovals},
		httpapi.Nav{Path: "inbox", Title: "Inbox", Under: "Today", Count: p.countItems},
		httpapi.Nav{Path: "conversations", Title: "Conversations"},
		httpapi.Nav{Path: "compose", Title: "Write", Under: "Conversations"},
		httpapi.Nav{Path: "people", Title: "People"},
		httpapi.Nav{Path: "discover", Title: "Discover"},
		httpapi.Nav{Path: "settings", Title: "Settings"},
	)
	if setup != nil {
		shell.Add(httpapi.Nav{Path: "profile", Title: "Your agent", Under: "Settings"}, httpapi.Nav{Path: "connect", Title: "Connect", Under: "Settings"})
	}
	shell.Add(
		httpapi.Nav{Path: "outbox", Title: "Outbox", Under: "Settings"},
		httpapi.Nav{Path: "notices", Title: "Notices", Under: "Settings"},
		httpapi.Nav{Path: "log", Title: "Log", Under: "Settings"},
	)
	if setup != nil {
		shell.Follow(p.followPrograms)
		p.get("/profile", func(c echo.Context) error { return p.renderProfile(c, http.StatusOK, "", p.setup.Profile()) })
		p.post("/profile", p.saveProfile)
		p.post("/hello", p.sayHello)
		p.get("/connect", p.showConnect)
	}
	p.get("/", p.showToday)
	p.post("/pause", p.pause)
	p.get("/approvals", p.showApprovals)
	p.get("/approvals/:id", p.showApproval)
	p.post("/approvals/:id", p.decide)
	p.post("/approvals/strangers", p.rejectStrangers)
	p.get("/inbox", p.showInbox)
	p.get("/inbox/:id", p.showItem)
	p.post("/inbox/:id/ack", changeItem("read", p.n.Acknowledge))
	p.post("/inbox/:id/retry", changeItem("retried", p.n.RetryItem))
	p.get("/conversations", p.showConversations)
	p.get("/conversations/:peer/:id", p.showConversation)
	p.get("/conversations/:peer/:id/event.ics", p.getEvent)
	p.post("/conversations/:peer/:id/reply", p.reply)
	p.post("/conversations/:peer/:id/read", p.markRead)
	p.post("/conversations/:peer/:id/cancel", p.cancel)
	p.post("/conversations/:peer/:id/close", p.close)
	p.get("/compose", p.showCompose)
	p.post("/compose", p.send)
	p.get("/people", p.showPeers)
	p.post("/people", p.changePeer)
	p.get("/people/:id", p.showPerson)
	p.get("/discover", p.discover)
	p.get("/settings", p.showSettings)
	p.get("/outbox", p.showOutbox)
	p.get("/notices", p.showNotices)
	p.get("/log", p.showLog)
}

// get adds a page to the routes. It explains errors to the owner.
func (p *pages) get(path string, show echo.HandlerFunc) {
	p.shell.Group().GET(path, func(c echo.Context) error { return owner.Explain(show(c)) })
}

// post adds a form to the routes. It explains errors to the owner.
func (p *pages) post(path string, act func(c echo.Context, form url.Values) error) {
	p.shell.Group().POST(path, func(c echo.Context) error {
		form, err := httpapi.Form(c, maxPageForm)
		if err != nil {
			return err
		}
		return owner.Explain(act(c, form))
	})
}

// nameOf returns the name of a peer for the pages of bridges.
func (p *pages) nameOf(ctx context.Context, id string) string { return p.shownName(ctx, id).String() }

func (p *pages) shownName(ctx context.Context, id string) owner.ShownName {
	return owner.ShowName(p.namesOf(ctx, id), id, id)
}

// namesOf returns the names of a peer. It logs an error, because a page without a name is better than no page.
func (p *pages) namesOf(ctx context.Context, id string) owner.PeerNames {
	names, err := p.n.NamesOf(ctx, id)
	if err != nil {
		p.log.Warn("cannot look up a name", "peer", id, "err", err)
	}
	return names
}

// followEvents passes the topics of events to an open page.
func (p *pages) followEvents(ctx context.Context, changed func(string)) {
	events, stop := p.n.Watch()
	defer stop()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			changed(string(ev.Topic))
		case <-ctx.Done():
			return
		}
	}
}

// topicRefusals is a topic only for pages. The owner API has no events for refusals, because strangers cause them by
// the thousand.
const topicRefusals = "refusals"

// refusalPause is the minimum time between two updates of a page for refusals, so that strangers cannot keep it busy.
const refusalPause = time.Second

func (p *pages) followRefusals(ctx context.Context, changed func(string)) {
	for {
		_, next := p.n.Refusals() // before the page reads the list, so that it misses no refusal
		if !waiting.Pause(ctx, refusalPause) {
			return
		}
		select {
		case <-next:
			changed(topicRefusals)
		case <-ctx.Done():
			return
		}
	}
}

// countApprovals counts the questions that wait for a decision, up to the number that the navigation shows.
func (p *pages) countApprovals(ctx context.Context) int {
	n, err := p.n.CountApprovals(ctx, httpapi.MaxCount)
	if err != nil {
		p.log.Warn("cannot count questions", "err", err)
	}
	return n
}

func (p *pages) countItems(ctx context.Context) int {
	n, err := p.n.CountItems(ctx, owner.NeedsOwner, httpapi.MaxCount)
	if err != nil {
		p.log.Warn("cannot count inbox items", "err", err)
	}
	return n
}

// doneMessages are the texts for what a form did. The URL of the next page has the key.
var doneMessages = map[string]string{
	"approve": "Approved.", "once": "Approved, only this once.", "let-in": "Let in. What comes from there later does not wait for its sender any more.",
	"always":       "Approved, and the same holds for later messages.",
	"conversation": "Approved, and later messages in this conversation come in without asking.",
	"ask_again":    "The guard let it through, and it is on its way.",
	"reject":       "Rejected.", "block": "Blocked. Nothing comes in from there any more.",
	"sent": "It is on its way.", "held": "It waits for your decision under Approvals.", "closed": "The close is on its way.",
	"cancelled": "The cancellation is on its way.",
	"paused":    "Paused.", "resumed": "The agent accepts messages again.", "read": "Marked as read.", "retried": "The hook runs again.",
	"strangers": "All waiting strangers are rejected. Each stays rejected until you allow or forget it under People.",
	"profile":   "Saved. Your agent uses it from now on.", "hello": "You wrote to the echo agent. Its answer is below.",
	"unblocked": "The block is gone. What was rejected with it stays rejected.", "undone": "Undone. What came in meanwhile stays.",
	"peer": "Changed.", "added": "The card was added.",
}

// doneMessage returns the text for what the previous form did, and to whom.
func (p *pages) doneMessage(c echo.Context) string {
	text, who := doneMessages[c.QueryParam("did")], c.QueryParam("who")
	if text == "" || who == "" || len(who) > maxWho {
		return text
	}
	names := p.namesOf(c.Request().Context(), who)
	if names == (owner.PeerNames{}) { // the node does not know this peer; anybody can make such a link
		return text
	}
	return owner.ShowName(names, "", who).String() + ": " + text
}

// maxWho is the maximum length, in bytes, of the id of the peer that a form was about.
const maxWho = 512

// doneWith is [httpapi.Done] for a form that is about a peer.
func doneWith(c echo.Context, path, did, peer string) error {
	return httpapi.Done(c, path+"?who="+url.QueryEscape(peer), did)
}

// content is a payload as a page shows it: readable, and exactly as sent.
type content struct {
	owner.Said
	Exact json.RawMessage
	Large bool // too large for a list
}

// contentOf reads a payload that the node has stored.
func contentOf(payload json.RawMessage) content {
	return content{owner.Say(payload, false), json.RawMessage(wire.UnescapeHTML(payload)), len(payload) > maxShown}
}

// Preview returns the beginning of what the message says.
func (c content) Preview() string {
	const maxPreview = 280
	text := c.Words()
	for i := range text {
		if i > maxPreview {
			return text[:i] + "…"
		}
	}
	return text
}
