package web

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

type overviewView struct {
	Asks, Items string    // the numbers of questions and of inbox items that need the owner
	Queued      int       // messages that wait for delivery
	First       []askView // the oldest of the waiting questions
	NoProgram   bool      // see [Programs.NoProgram]
}

const (
	maxAsksOnOverview     = 3
	maxRefusalsOnSettings = 10
	maxRefusalsOnLimits   = 64
)

func (p *pages) showOverview(c echo.Context) error {
	if p.setup != nil && p.setup.Profile().Fresh { // the owner has not chosen a name yet
		return httpapi.Done(c, "profile", "")
	}
	ctx := c.Request().Context()
	status, err := p.n.Overview(ctx, httpapi.MaxCount)
	if err != nil {
		return err
	}
	view := overviewView{NoProgram: p.setup != nil && p.setup.Programs().NoProgram(), Asks: formatCount(status.Approvals), Items: formatCount(p.countItems(ctx)), Queued: status.Outbox["queued"]}
	asks, err := p.n.ListApprovals(ctx, owner.Query{State: string(acl.AskPending), Limit: maxAsksOnOverview})
	if err != nil {
		return err
	}
	view.First = viewAsks(asks.Items)
	return p.shell.Render(c, p.overview, httpapi.View{
		Title: "Needs you", Done: p.doneMessage(c), Data: view,
		Topics: []string{string(owner.TopicApprovals), string(owner.TopicInbox), string(owner.TopicOutbox), string(owner.TopicStatus)},
	})
}

type settingsView struct {
	owner.Status
	Refusals []refusalView
}

type refusalView struct {
	owner.Refusal
	Shown owner.ShownName
}

func (p *pages) viewRefusals(ctx context.Context, maxCount int) []refusalView {
	refusals, _ := p.n.Refusals()
	var views []refusalView
	for _, r := range refusals[:min(len(refusals), maxCount)] {
		views = append(views, refusalView{r, p.shownName(ctx, r.From)})
	}
	return views
}

func (p *pages) showSettings(c echo.Context) error {
	status, err := p.n.Overview(c.Request().Context(), httpapi.MaxCount)
	if err != nil {
		return err
	}
	view := settingsView{Status: status, Refusals: p.viewRefusals(c.Request().Context(), maxRefusalsOnSettings)}
	return p.shell.Render(c, p.settings, httpapi.View{
		Title: "Settings", Done: p.doneMessage(c), Data: view,
		Topics: []string{string(owner.TopicOutbox), string(owner.TopicStatus), topicRefusals},
	})
}

func (p *pages) pause(c echo.Context, form url.Values) error {
	paused := form.Get("paused") == "yes"
	if err := p.n.SetPaused(c.Request().Context(), paused, door); err != nil {
		return err
	}
	if paused {
		return httpapi.Done(c, "settings", "paused")
	}
	return httpapi.Done(c, "settings", "resumed")
}

// limitView is a limit as the page shows it.
type limitView struct{ What, Value string }

type limitsView struct {
	Mode      acl.Mode
	Messages  []limitView
	Waiting   []limitView
	Kept      []limitView
	HoldRules []acl.HoldRule
	Refusals  []refusalView
}

func (p *pages) showLimits(c echo.Context) error {
	limits := p.n.Limits()
	perHour := func(n int) string {
		if n <= 0 {
			return "no limit"
		}
		return httpapi.FormatNumber(int64(n)) + " an hour"
	}
	view := limitsView{
		Mode: limits.Mode,
		Messages: []limitView{
			{"New conversations of one sender", perHour(limits.Rates.NewConversations)},
			{"Messages in one conversation", perHour(limits.Rates.Conversation)},
			{"Messages in all", perHour(limits.Rates.Total)},
			{"Strangers together", "half of that, divided among their networks"},
		},
		Waiting: []limitView{
			{"Waiting messages of one stranger", "16, at most 64 KiB"},
			{"Strangers with waiting messages", httpapi.FormatNumber(int64(acl.SenderSlot("").Max))},
			{"Of a known sender, in one conversation", "16"},
			{"A question waits", formatDays(limits.HoldFor)},
		},
		Kept: []limitView{
			{"A silent conversation expires after", formatDays(limits.Idle)},
			{"An ended conversation is kept for", formatDays(limits.Retention)},
			{"Maximum number of conversations", httpapi.FormatNumber(int64(limits.MaxKept))},
			{"Maximum size of all messages", formatSize(limits.MaxBytes)},
		},
		HoldRules: limits.Hold, Refusals: p.viewRefusals(c.Request().Context(), maxRefusalsOnLimits),
	}
	return p.shell.Render(c, p.limits, httpapi.View{Title: "Limits", Topics: []string{topicRefusals}, Data: view})
}

type noticesView struct{ Notices listPage[owner.Notice] }

func (p *pages) showNotices(c echo.Context) error {
	list := func(ctx context.Context, q owner.Query) (owner.List[owner.Notice], error) {
		return owner.NamedNotices(ctx, p.n, q)
	}
	found, err := listLatest(c.Request().Context(), "note_", "", c.QueryParam("before"), func(n owner.Notice) string { return n.ID }, list)
	if err != nil {
		return err
	}
	return p.shell.Render(c, p.notices, httpapi.View{Title: "Notices", Topics: []string{string(owner.TopicNotices)}, Data: noticesView{found}})
}

// formatCount formats a count up to httpapi.MaxCount, the largest one that the navigation shows.
func formatCount(n int) string {
	if n >= httpapi.MaxCount {
		return httpapi.FormatNumber(httpapi.MaxCount) + "+"
	}
	return httpapi.FormatNumber(int64(n))
}

func formatSize(bytes int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes), 0
	for ; value >= 1024 && unit < len(units)-1; unit++ {
		value /= 1024
	}
	return strconv.FormatFloat(value, 'f', -1, 64) + " " + units[unit]
}

func formatDays(d time.Duration) string {
	if d >= 48*time.Hour {
		return httpapi.FormatNumber(int64(d/(24*time.Hour))) + " days"
	}
	return httpapi.FormatNumber(int64(d/time.Hour)) + " hours"
}
