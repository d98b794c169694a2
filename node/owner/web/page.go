// Package web is the owner's page of a node: what waits, what was said, who may write. It shows and does what the owner
// API shows and does, over the same types, with the same methods.
package web

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// Node is what the page needs of a node: what the owner API has, and what only the page shows. Counts are for people, so
// they end somewhere.
type Node interface {
	owner.Node
	// Overview is Status with counts up to most.
	Overview(ctx context.Context, most int) (owner.Status, error)
	// CountApprovals counts what waits for a decision, CountItems what is new in the inbox, up to most.
	CountApprovals(ctx context.Context, most int) (int, error)
	CountItems(ctx context.Context, most int) (int, error)
	// Aliases returns what the owner calls the peers: one alias of each that has any.
	Aliases(ctx context.Context) (map[string]string, error)
	// CheckTranscript returns an error if the hash chain of a transcript is broken.
	CheckTranscript(ctx context.Context, peer, id string) error
	// Audit returns the log of decisions.
	Audit() *acl.Audit
	Paused() bool
	Limits() owner.Limits
	// Refusals returns what was refused since the process started, newest first. The channel closes with the next one.
	Refusals() (list []owner.Refusal, next <-chan struct{})
	// Watch returns what happens from now on, until stop is called.
	Watch() (events <-chan owner.Event, stop func())
}

// pages is the node's part of the owner's page.
type pages struct {
	n     Node
	log   *slog.Logger
	shell *httpapi.Pages

	overview, approvals, approval, inbox, item, conversations, conversation *httpapi.PageTemplate
	compose, peers, outbox, limits, notices, audit                          *httpapi.PageTemplate
}

// door is how the audit log and a decision name the page.
const door = "page"

const (
	pageSize    = 25       // entries of a list
	maxPageForm = 3 << 20  // a message, written as a form
	maxShown    = 16 << 10 // bytes of a payload that a list shows whole
)

// Mount adds the pages of a node to the owner's page. log takes what goes wrong beside a page; nil discards it.
func Mount(shell *httpapi.Pages, n Node, log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	read := func(name string) *httpapi.PageTemplate {
		return shell.Template(pageFiles, "page/"+name+".html", "page/parts.html")
	}
	p := &pages{
		n: n, log: log, shell: shell,
		overview: read("overview"), approvals: read("approvals"), approval: read("approval"), inbox: read("inbox"),
		item: read("item"), conversations: read("conversations"), conversation: read("conversation"),
		compose: read("compose"), peers: read("peers"), outbox: read("outbox"), limits: read("limits"), notices: read("notices"),
		audit: read("log"),
	}
	shell.Title(func(context.Context) httpapi.Bar { return httpapi.Bar{Name: n.Card().Name, Paused: n.Paused()} })
	shell.Follow(p.followEvents)
	shell.Follow(p.followRefusals)
	shell.Add(
		httpapi.Nav{Path: "", Title: "Overview"},
		httpapi.Nav{Path: "approvals", Title: "Approvals", Count: p.countApprovals},
		httpapi.Nav{Path: "inbox", Title: "Inbox", Count: p.countItems},
		httpapi.Nav{Path: "conversations", Title: "Conversations"},
		httpapi.Nav{Path: "compose", Title: "Write"},
		httpapi.Nav{Path: "peers", Title: "Peers"},
		httpapi.Nav{Path: "outbox", Title: "Outbox"},
		httpapi.Nav{Path: "limits", Title: "Limits"},
		httpapi.Nav{Path: "notices", Title: "Notices"},
		httpapi.Nav{Path: "log", Title: "Log"},
	)
	g := shell.Group()
	g.GET("/", p.showOverview)
	g.POST("/pause", p.pause)
	g.GET("/approvals", p.showApprovals)
	g.GET("/approvals/:id", p.showApproval)
	g.POST("/approvals/:id", p.decide)
	g.POST("/approvals/strangers", p.rejectStrangers)
	g.GET("/inbox", p.showInbox)
	g.GET("/inbox/:id", p.showItem)
	g.POST("/inbox/:id/ack", p.acknowledge)
	g.GET("/conversations", p.showConversations)
	g.GET("/conversations/:peer/:id", p.showConversation)
	g.POST("/conversations/:peer/:id/reply", p.reply)
	g.POST("/conversations/:peer/:id/close", p.close)
	g.GET("/compose", p.showCompose)
	g.POST("/compose", p.send)
	g.GET("/peers", p.showPeers)
	g.POST("/peers", p.changePeer)
	g.GET("/outbox", p.showOutbox)
	g.GET("/limits", p.showLimits)
	g.GET("/notices", p.showNotices)
	g.GET("/log", p.showLog)
}

// followEvents passes the topics of what happens on to an open page.
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

// topicRefusals is a topic of pages alone: refusals are no events, because strangers make them by the thousand.
const topicRefusals = "refusals"

// refusalsRest is how long a page that was told of refusals is left alone: a stranger must not make it work.
const refusalsRest = time.Second

func (p *pages) followRefusals(ctx context.Context, changed func(string)) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		_, news := p.n.Refusals() // from here on nothing is missed
		select {
		case <-rest.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-news:
			changed(topicRefusals)
			rest.Reset(refusalsRest)
		case <-ctx.Done():
			return
		}
	}
}

// countApprovals counts what waits for a decision, up to what the navigation shows.
func (p *pages) countApprovals(ctx context.Context) int {
	n, err := p.n.CountApprovals(ctx, httpapi.MaxCount)
	if err != nil {
		p.log.Warn("count questions", "err", err)
	}
	return n
}

func (p *pages) countItems(ctx context.Context) int {
	n, err := p.n.CountItems(ctx, httpapi.MaxCount)
	if err != nil {
		p.log.Warn("count inbox", "err", err)
	}
	return n
}

// did are the texts for what a form did; the URL names one of them.
var did = map[string]string{
	"approve": "Approved. It goes on now.", "always": "Approved, and this sender may write from now on.",
	"conversation": "Approved, and what follows in this conversation comes in without asking.",
	"reject":       "Rejected.", "block": "Blocked. Nothing comes in from there any more.",
	"sent": "It is on its way.", "held": "It waits for your decision under Approvals.", "closed": "The close is on its way.",
	"paused": "Paused.", "resumed": "The agent takes messages again.", "read": "Marked as read.",
	"strangers": "Rejected, every stranger that waited. Each stays rejected until you allow or forget it under Peers.",
	"peer":      "Changed.", "added": "The card is known now.",
}

func said(c echo.Context) string { return did[c.QueryParam("did")] }

// fact is one line that a page shows of something: a label of ours, or a path in a payload, and its value.
type fact struct{ Label, Value string }

const (
	maxFacts     = 60
	maxFactDepth = 6
)

// factsOf lays a payload out as lines: "event › title: Coffee". What does not fit stays in the exact text beside it.
func factsOf(v wire.Value) []fact {
	var list []fact
	var walk func(path string, v wire.Value, depth int)
	walk = func(path string, v wire.Value, depth int) {
		if len(list) >= maxFacts {
			return
		}
		switch {
		case v.Kind() == wire.Object && v.Len() > 0 && depth < maxFactDepth:
			members := slices.Clone(v.Members())
			slices.SortStableFunc(members, func(a, b wire.Member) int { return cmp.Compare(leads(b.Key), leads(a.Key)) })
			for _, m := range members {
				walk(strings.TrimPrefix(path+" › "+m.Key, " › "), m.Value, depth+1)
			}
		case v.Kind() == wire.Array && v.Len() > 0 && depth < maxFactDepth:
			for i := range v.Len() {
				walk(path+" "+strconv.Itoa(i+1), v.At(i), depth+1)
			}
		default:
			text, ok := v.Str()
			if !ok {
				text = string(v.JSON())
			}
			list = append(list, fact{strings.ReplaceAll(path, "_", " "), readable(text)})
		}
	}
	if v.Len() > 0 {
		walk("", v, 0)
	}
	return list
}

// readable writes a time with a zone as people read it. One without is left as it is, for nobody knows when it is meant.
func readable(text string) string {
	at, ok := wire.ParseISO8601(text)
	if !ok || !strings.Contains(text, "T") || !strings.ContainsAny(text[len(text)-6:], "Z+-") {
		return text
	}
	return at.Format("Mon 2 Jan 2006, 15:04 -07:00")
}

// leads says how far in front a member of an object stands: what names a thing comes before what describes it.
func leads(key string) int {
	switch key {
	case "title", "name":
		return 2
	case "subject", "description":
		return 1
	}
	return 0
}

// content is a payload as a page shows it: what it says, and exactly what it is.
type content struct {
	Action string
	Text   string // of a message or question, which is read rather than laid out
	Facts  []fact
	Exact  json.RawMessage
	Large  bool // too large for a list
}

// contentOf reads a payload. What is no JSON object is shown as it is.
func contentOf(payload json.RawMessage) content {
	c := content{Exact: payload, Large: len(payload) > maxShown}
	v, err := wire.ParseObject(payload)
	if err != nil {
		return c
	}
	c.Action = v.GetStr("action")
	rest := v.Without("action")
	message, _ := v.Get("message")
	switch {
	case message.GetStr("body") != "":
		c.Text = message.GetStr("body")
		rest = rest.Without("message")
		if more := message.Without("body"); more.Len() > 0 {
			rest = rest.With("message", more)
		}
	case v.GetStr("question") != "":
		c.Text, rest = v.GetStr("question"), rest.Without("question")
	case v.GetStr("info") != "":
		c.Text, rest = v.GetStr("info"), rest.Without("info")
	}
	c.Facts = factsOf(rest)
	return c
}

// Preview is the beginning of what it says, for a list.
func (c content) Preview() string {
	text := c.Text
	for _, f := range c.Facts {
		if len(text) > 300 {
			break
		}
		text = strings.TrimPrefix(text+" · "+f.Label+": "+f.Value, " · ")
	}
	const most = 280
	for i := range text {
		if i > most {
			return text[:i] + "…"
		}
	}
	return text
}
