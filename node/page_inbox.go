package node

import (
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// itemView is a message in the inbox as the page shows it.
type itemView struct {
	Item
	Proof   string
	Content content
	Alias   string // what the owner calls the peer
	// Waits says that the owner, or the owner's agent, may still answer it.
	Waits bool
}

func viewItem(item Item) itemView {
	return itemView{
		Item: item, Proof: proofText(item.Verified), Content: contentOf(item.Payload),
		Waits: slices.Contains([]ItemState{ItemNew, ItemRead, ItemFailed, ItemInterrupted}, item.State),
	}
}

type inboxView struct {
	State  ItemState // "" for all
	States []ItemState
	Items  listed[itemView]
}

func (p *pages) showInbox(c echo.Context) error {
	ctx, now := c.Request().Context(), time.Now()
	view := inboxView{State: ItemState(c.QueryParam("state")), States: []ItemState{"", ItemNew, ItemHeld, ItemAnswered, ItemFailed}}
	if !slices.Contains(itemStates, view.State) {
		view.State = ""
	}
	items, err := latest("in_", c.QueryParam("before"), now, millis, func(i Item) string { return i.ID },
		func(after string, limit int) ([]Item, string, error) { return p.n.Inbox(ctx, view.State, after, limit) })
	if err != nil {
		return ownerError(err)
	}
	names, err := p.n.aliases(ctx)
	if err != nil {
		return ownerError(err)
	}
	view.Items.Older = items.Older
	for _, item := range items.Items {
		row := viewItem(item)
		row.Alias = names[string(item.Peer)]
		view.Items.Items = append(view.Items.Items, row)
	}
	return p.shell.Render(c, p.inbox, httpapi.View{Title: "Inbox", Topics: []string{string(TopicInbox)}, Said: said(c), Data: view})
}

func (p *pages) showItem(c echo.Context) error {
	item, err := p.n.findItem(c.Request().Context(), c.Param("id"))
	if err != nil {
		return ownerError(err)
	}
	return p.shell.Render(c, p.item, httpapi.View{
		Title: "Message", Topics: []string{string(TopicInbox)}, Said: said(c), Data: viewItem(item),
	})
}

func (p *pages) acknowledge(c echo.Context) error {
	if _, err := httpapi.Form(c, maxPageForm); err != nil {
		return err
	}
	item, err := p.n.findItem(c.Request().Context(), c.Param("id"))
	if err == nil {
		item, err = p.n.Acknowledge(c.Request().Context(), item.ID)
	}
	if err != nil {
		return ownerError(err)
	}
	return httpapi.Done(c, "inbox", "read")
}
