package web

import (
	"context"
	"net/url"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

type itemView struct {
	owner.Item
	Proof   string
	Content content
	// Waits reports whether the owner, or an agent of the owner, may answer the item here. A held item is decided on
	// the page of approvals.
	Waits bool
}

func viewItem(item owner.Item) itemView {
	return itemView{
		Item: item, Proof: proofText(item.Verified), Content: contentOf(item.Payload),
		Waits: item.State.IsUnanswered() && item.State != owner.ItemHeld,
	}
}

type inboxView struct {
	State  owner.ItemState // "" means all
	States []owner.ItemState
	Items  owner.List[itemView]
}

func (p *pages) showInbox(c echo.Context) error {
	view := inboxView{State: owner.ItemState(c.QueryParam("state")), States: []owner.ItemState{"", owner.NeedsOwner, owner.ItemNew, owner.ItemHeld, owner.ItemWaiting, owner.ItemAnswered, owner.ItemFailed, owner.Guarded}}
	if !slices.Contains(append(owner.ItemStates(), owner.NeedsOwner, owner.Guarded), view.State) {
		view.State = ""
	}
	items, err := p.n.ListItems(c.Request().Context(), latest(view.State, c.QueryParam("before")))
	if err != nil {
		return err
	}
	view.Items.Next = items.Next
	for _, item := range items.Items {
		view.Items.Items = append(view.Items.Items, viewItem(item))
	}
	return p.shell.Render(c, p.inbox, httpapi.View{Title: "Inbox", Topics: []string{string(owner.TopicInbox)}, Done: p.doneMessage(c), Data: view})
}

func (p *pages) showItem(c echo.Context) error {
	item, err := p.n.FindItem(c.Request().Context(), c.Param("id"))
	if err != nil {
		return err
	}
	return p.shell.Render(c, p.item, httpapi.View{
		Title: "Message", Topics: []string{string(owner.TopicInbox)}, Done: p.doneMessage(c), Data: viewItem(item),
	})
}

// changeItem returns the handler of a form that changes an item and has no fields. did names the text that the next
// page shows; see [httpapi.Done].
func changeItem(did string, change func(ctx context.Context, id string) (owner.Item, error)) func(echo.Context, url.Values) error {
	return func(c echo.Context, _ url.Values) error {
		if _, err := change(c.Request().Context(), c.Param("id")); err != nil {
			return err
		}
		return httpapi.Done(c, "inbox", did)
	}
}
