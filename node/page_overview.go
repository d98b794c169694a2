package node

import (
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
)

type overviewView struct {
	AgentID     string
	Endpoint    string
	Fingerprint string
	Mode        acl.Mode
	Paused      bool
	Started     time.Time
	Store       string
	Asks, Items string
	Queued      int
	Notify      notify.Status
	Listings    []Listing
	First       []askView // of what waits, the oldest
	Refusals    []Refusal
}

const (
	overviewAsks     = 3
	overviewRefusals = 10
)

func (p *pages) showOverview(c echo.Context) error {
	ctx, n, id := c.Request().Context(), p.n, p.n.identity.Load()
	view := overviewView{
		AgentID: string(id.Card.ID), Endpoint: id.Card.Endpoint, Fingerprint: id.Key.Public().Fingerprint(),
		Mode: n.mode(), Paused: n.Paused(), Started: n.started, Store: n.storeState(ctx),
		Asks: capped(n.waitingAsks(ctx)), Items: capped(n.waitingItems(ctx)), Queued: n.outbox.Counts()["queued"],
		Listings: n.Listings(), Refusals: n.Refusals(),
	}
	told, err := n.notices.Status(ctx, time.Now())
	if err != nil {
		return ownerError(err)
	}
	view.Notify = told
	view.Refusals = view.Refusals[:min(len(view.Refusals), overviewRefusals)]
	asks, _, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, "", overviewAsks, time.Now())
	if err != nil {
		return ownerError(err)
	}
	if view.First, err = p.views(ctx, asks); err != nil {
		return ownerError(err)
	}
	return p.shell.Render(c, p.overview, httpapi.View{
		Title: "Overview", Said: said(c), Data: view,
		Topics: []string{
			string(TopicApprovals), string(TopicInbox), string(TopicOutbox), string(TopicStatus), topicRefusals,
		},
	})
}

func (p *pages) pause(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	paused := form.Get("paused") == "yes"
	if err := p.n.SetPaused(c.Request().Context(), paused, doorPage); err != nil {
		return ownerError(err)
	}
	if paused {
		return httpapi.Done(c, "", "paused")
	}
	return httpapi.Done(c, "", "resumed")
}

// ruleView is a limit as the page shows it.
type ruleView struct{ What, Value string }

type limitsView struct {
	Mode     acl.Mode
	Messages []ruleView
	Holds    []ruleView
	Kept     []ruleView
	Hold     []acl.HoldRule
	Refusals []Refusal
}

func (p *pages) showLimits(c echo.Context) error {
	cfg := p.n.cfg
	perHour := func(n int) string {
		if n <= 0 {
			return "no limit"
		}
		return plain(int64(n)) + " an hour"
	}
	view := limitsView{
		Mode: p.n.mode(),
		Messages: []ruleView{
			{"New conversations of one sender", perHour(cfg.Rates.NewConversations)},
			{"Messages in one conversation", perHour(cfg.Rates.Conversation)},
			{"Messages in all", perHour(cfg.Rates.Total)},
			{"Strangers together", "half of that, shared by source"},
		},
		Holds: []ruleView{
			{"Waiting messages of one stranger", "1"},
			{"Of all strangers", plain(int64(acl.SenderSlot("").Max))},
			{"Of a known sender, in one conversation", "16"},
			{"A question waits", days(cfg.HoldFor)},
		},
		Kept: []ruleView{
			{"A silent conversation expires after", days(p.n.book.IdleFor())},
			{"What has ended is kept", days(cfg.Retention)},
			{"Conversations at most", plain(int64(cfg.MaxKept))},
			{"Size of messages at most", size(cfg.MaxBytes)},
		},
		Hold: cfg.Policy.Hold, Refusals: p.n.Refusals(),
	}
	return p.shell.Render(c, p.limits, httpapi.View{Title: "Limits", Topics: []string{topicRefusals}, Data: view})
}

type noticesView struct{ Notices listed[noticeView] }

type noticeView struct {
	Kind, Title, Text, Peer, Conversation string
	At                                    time.Time
}

func (p *pages) showNotices(c echo.Context) error {
	ctx, now := c.Request().Context(), time.Now()
	found, err := latest("note_", c.QueryParam("before"), now, millis, noticeID, func(after string, limit int) ([]notify.Notice, string, error) {
		return p.n.notices.List(ctx, after, limit, now)
	})
	if err != nil {
		return ownerError(err)
	}
	view := noticesView{listed[noticeView]{Older: found.Older}}
	for _, one := range found.Items {
		view.Notices.Items = append(view.Notices.Items, noticeView{
			Kind: one.Kind, Title: one.Title, Text: one.Text, At: one.At, Peer: string(one.Peer), Conversation: string(one.Conversation),
		})
	}
	return p.shell.Render(c, p.notices, httpapi.View{Title: "Notices", Topics: []string{string(TopicNotices)}, Data: view})
}

func noticeID(n notify.Notice) string { return n.ID }

// capped writes a count that goes no further than the navigation's.
func capped(n int) string {
	if n >= httpapi.MaxCount {
		return plain(httpapi.MaxCount) + "+"
	}
	return plain(int64(n))
}

// plain writes a number with separators.
func plain(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// size writes bytes in the largest unit that fits.
func size(bytes int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes), 0
	for ; value >= 1024 && unit < len(units)-1; unit++ {
		value /= 1024
	}
	return strconv.FormatFloat(value, 'f', -1, 64) + " " + units[unit]
}

// days writes a span in days or hours.
func days(d time.Duration) string {
	if d >= 48*time.Hour {
		return plain(int64(d/(24*time.Hour))) + " days"
	}
	return plain(int64(d/time.Hour)) + " hours"
}
