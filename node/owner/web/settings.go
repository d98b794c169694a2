package web

import (
	"context"
	"fmt"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

type settingsView struct {
	owner.Status
	Refusals []refusalView
}

// boundLabels name the bounds on what the agent does without its owner.
var boundLabels = map[string]string{
	"conversation": "In one conversation", "door": "In one conversation, with its own tools", "peer": "A day with one agent",
	"strangers": "A day with all strangers", "token": "A day with one caller that has a token", "total": "A day in all",
}

// Alone returns how often the agent may answer without its owner.
func (v settingsView) Alone() (list []owner.Fact) {
	for _, b := range v.Autonomy {
		text := "any number of times"
		if b.Most != nil {
			text = fmt.Sprintf("%d times", *b.Most)
		}
		if b.Today != nil {
			text += "; today " + b.Today.String()
		}
		list = append(list, owner.Fact{Label: boundLabels[b.Name], Value: text})
	}
	return list
}

type refusalView struct {
	owner.Refusal
	Shown owner.ShownName
}

func (p *pages) viewRefusals(ctx context.Context) []refusalView {
	refusals, _ := p.n.Refusals()
	var views []refusalView
	for _, r := range refusals {
		views = append(views, refusalView{r, p.shownName(ctx, r.From)})
	}
	return views
}

func (p *pages) showSettings(c echo.Context) error {
	status, err := p.n.Overview(c.Request().Context(), httpapi.MaxCount)
	if err != nil {
		return err
	}
	view := settingsView{Status: status, Refusals: p.viewRefusals(c.Request().Context())}
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

type noticesView struct{ Notices owner.List[owner.Notice] }

func (p *pages) showNotices(c echo.Context) error {
	found, err := owner.NamedNotices(c.Request().Context(), p.n, latest("", c.QueryParam("before")))
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
