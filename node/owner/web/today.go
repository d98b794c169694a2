package web

import (
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// todayView is what happened lately and what the owner can do about it. Each list is short, newest first.
type todayView struct {
	First     []askView // the oldest of the waiting questions
	MoreAsks  string    // how many questions wait, if First lacks some
	Week      []weekDay // from today on; nil if nothing is agreed for it
	New       []newView
	MoreItems string // how many messages need the owner, if New lacks some
	Agreed    []agreedView
	Failed    []owner.OutboxEntry // what was not delivered
	Alone     []talkView          // where the agent answered without its owner
	Today     string              // how often it did so today; "" if never
	NoProgram bool                // see [Programs.NoProgram]
}

// Empty reports whether there is nothing to show.
func (v todayView) Empty() bool {
	return len(v.First)+len(v.New)+len(v.Agreed)+len(v.Failed)+len(v.Alone) == 0
}

// newView is a conversation with messages that need the owner.
type newView struct {
	itemView
	Path  string // below the page
	Words string // of the newest message
	More  int    // the number of its other messages
}

// agreedView is an agreement with the peer.
type agreedView struct {
	agreed
	Shown owner.ShownName
}

// When returns the agreed time in the zone of the owner.
func (a agreedView) When() string { return owner.LocalTime(a.Time) }

// weekDay is a day with what is agreed for it.
type weekDay struct {
	Day    string // such as "Fri 4"
	Events []weekEvent
}

type weekEvent struct {
	agreedView
	At time.Time
}

// Clock returns the time of day in the zone of the owner.
func (e weekEvent) Clock() string { return zone.In(e.At).Format("15:04") }

// planWeek returns seven days from now on with the events on them, or nil if there are none.
func planWeek(events []weekEvent, now time.Time) []weekDay {
	var days []weekDay
	planned := false
	for i := range 7 {
		day := zone.In(now).AddDate(0, 0, i)
		d := weekDay{Day: day.Format("Mon 2")}
		for _, e := range events {
			if zone.In(e.At).Format(time.DateOnly) == day.Format(time.DateOnly) {
				d.Events, planned = append(d.Events, e), true
			}
		}
		slices.SortFunc(d.Events, func(a, b weekEvent) int { return a.At.Compare(b.At) })
		days = append(days, d)
	}
	if !planned {
		return nil
	}
	return days
}

const (
	maxAsksToday = 3
	maxToday     = 5 // entries of each list
	recently     = 3 * 24 * time.Hour
)

func (p *pages) showToday(c echo.Context) error {
	if p.setup != nil && p.setup.Profile().Fresh { // the owner has not chosen a name yet
		return httpapi.Done(c, "profile", "")
	}
	ctx := c.Request().Context()
	status, err := p.n.Overview(ctx, httpapi.MaxCount)
	if err != nil {
		return err
	}
	view := todayView{NoProgram: p.setup != nil && p.setup.Programs().NoProgram()}
	for _, b := range status.Autonomy {
		if b.Name == "total" && b.Today.Used > 0 {
			view.Today = b.Today.String()
		}
	}
	asks, err := p.n.ListApprovals(ctx, owner.Query{State: string(acl.AskPending), Limit: maxAsksToday})
	if err != nil {
		return err
	}
	if view.First = viewAsks(asks.Items); status.Approvals > len(view.First) {
		view.MoreAsks = formatCount(status.Approvals)
	}
	if err := p.addNews(ctx, &view, status.NeedsOwner); err != nil {
		return err
	}
	if err := p.addUndelivered(ctx, &view, status.Delayed); err != nil {
		return err
	}
	if err := p.addDone(ctx, &view); err != nil {
		return err
	}
	return p.shell.Render(c, p.today, httpapi.View{
		Title: "Today", Done: p.doneMessage(c), Undo: p.undo(c), Data: view,
		Topics: []string{string(owner.TopicApprovals), string(owner.TopicInbox), string(owner.TopicOutbox), string(owner.TopicConversations), string(owner.TopicStatus)},
	})
}

// addNews adds the newest messages that need the owner, one entry for each conversation. total is their number.
func (p *pages) addNews(ctx context.Context, view *todayView, total int) error {
	items, err := p.n.ListItems(ctx, latest(owner.NeedsOwner, ""))
	if err != nil {
		return err
	}
	shown := 0
	for _, item := range items.Items {
		v := newView{itemView: viewItem(item), Path: convPath(string(item.Peer), string(item.Conversation))}
		if item.About != "" {
			v.Path = item.About
		}
		if i := slices.IndexFunc(view.New, func(n newView) bool { return n.Path == v.Path }); i >= 0 {
			view.New[i].More++
			shown++
			continue
		}
		if len(view.New) == maxToday {
			continue
		}
		shown++
		v.Words = messageView{Intent: item.Intent, Content: v.Content}.words()
		view.New = append(view.New, v)
	}
	if total > shown {
		view.MoreItems = formatCount(total)
	}
	return nil
}

// addUndelivered adds messages of ours that lately failed, and the one that waits for the longest.
func (p *pages) addUndelivered(ctx context.Context, view *todayView, delayed *owner.OutboxEntry) error {
	if delayed != nil {
		view.Failed = append(view.Failed, *delayed)
	}
	for _, state := range []owner.SendState{owner.SendFailed, owner.SendUnknown} {
		entries, err := p.n.ListOutbox(ctx, latest(state, ""))
		if err != nil {
			return err
		}
		for _, e := range entries.Items {
			if time.Since(e.Created) < recently && len(view.Failed) < maxToday {
				view.Failed = append(view.Failed, e)
			}
		}
	}
	return nil
}

// addDone adds what was agreed and the week that it makes, and where the agent answered alone, in the newest conversations.
func (p *pages) addDone(ctx context.Context, view *todayView) error {
	const conversations = 50
	list, err := p.n.ListConversations(ctx, owner.Query{Limit: conversations})
	if err != nil {
		return err
	}
	var alone []owner.Conversation
	var events []weekEvent
	for _, conv := range list.Items {
		for _, a := range conv.Agreements {
			at, hasTime := wire.ParseInstant(a.Time)
			shown := agreedView{agreed{a, convPath(conv.Peer, conv.ID)}, conv.Shown()}
			if hasTime && a.Standing == owner.StandingAgreed {
				events = append(events, weekEvent{shown, at})
			}
			isNews := time.Since(a.At) < recently || hasTime && at.After(time.Now())
			if isNews && len(view.Agreed) < maxToday {
				view.Agreed = append(view.Agreed, shown)
			}
		}
		isNew := slices.ContainsFunc(view.New, func(n newView) bool { return string(n.Conversation) == conv.ID })
		if conv.Turns != nil && conv.Turns.Used > 0 && time.Since(conv.Last) < 24*time.Hour && !isNew && len(alone) < maxToday {
			alone = append(alone, conv)
		}
	}
	view.Week = planWeek(events, time.Now())
	view.Alone, err = p.says.viewTalks(ctx, alone)
	return err
}
