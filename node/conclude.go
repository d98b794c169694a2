package node

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// agree records that an accept counts now: its recipient has answered it (AM-88). accept may be empty, see
// [rules.Counts]. If that makes an agreement, agree adds the notice and the calendar entry of an agreed event (AM-36), and
// our close if we opened the conversation (AM-39). written is when the answer was written, name the peer's name.
func (n *Node) agree(ctx context.Context, u *conversations.Unit, accept wire.MessageID, written time.Time, name string) error {
	if accept == "" {
		return nil
	}
	before := u.Conversation().Agreement
	err := u.Record(conversations.Event{Kind: conversations.AcceptCounts, At: u.Now, ID: accept, Written: written, Name: name})
	conv := u.Conversation()
	if err != nil || conv.Agreement == before {
		return err
	}
	peer := wire.AgentID(conv.Key.Peer)
	notice := n.notice(notify.Agreed, peer, name, conv.Key, u.Now)
	notice.Title, notice.Text = agreedText(*conv.Agreement, name)
	u.Add(n.notices.Change(notice))
	if conv.Agreement.Intent == wire.Schedule {
		u.Add(n.agreedEventChange(conv, peer, name, u.Now)...)
	}
	if !conv.Mine || conv.State != conversations.Open {
		return nil
	}
	_, err = n.enqueue(ctx, u, Outgoing{
		To: peer, Address: conv.Address, Conv: wire.ConversationID(conv.Key.ID), Intent: conv.Agreement.Intent,
		Payload: closePayload("completed"), InReplyTo: conv.Heard, Via: "node",
	})
	return err
}

// agreedEventChange returns the change that adds an agreed event to the owner's calendar, if the node has one and the
// agreement has a time and a duration. It cleans and shortens the texts, which come from the peer.
func (n *Node) agreedEventChange(conv conversations.Conversation, peer wire.AgentID, name string, now time.Time) []store.Change {
	start, ok := wire.ParseInstant(conv.Agreement.Time)
	length, known := calendar.ParseLength(conv.Agreement.Duration)
	if n.cfg.Agreed == nil || !ok || !known {
		return nil
	}
	return []store.Change{n.cfg.Agreed.Add(calendar.Event{
		UID: calendar.UID(conv.Key.Peer, conv.Key.ID), Title: cmp.Or(wire.OneLine(conv.Agreement.Title, 200), "Meeting"),
		Location: wire.OneLine(conv.Agreement.Location, 200), With: wire.OneLine(cmp.Or(name, string(peer)), 200),
		Start: start, Duration: length, Made: now,
		Peer: conv.Key.Peer, Address: conv.Address, Conversation: conv.Key.ID,
	})}
}

// countAccept records that an accept counts now, if there is one, because we answer the message of item. reply is the id
// of our answer if it leaves on the same connection, or "".
func (n *Node) countAccept(ctx context.Context, u *conversations.Unit, item Item, reply wire.MessageID) error {
	conv, confirmed := u.Conversation(), wire.MessageID("")
	if item.ConfirmsAccept {
		payload, _ := wire.Parse(item.Payload) // a payload that cannot be read confirms no accept
		if accept := conv.FindAnsweredAccept(payload); accept != nil {
			confirmed = accept.Message
		}
	}
	return n.agree(ctx, u, rules.Counts(conv, confirmed, item.MessageID, reply), time.Time{}, item.PeerName)
}

// agreedText returns the title of an agreement, and a line with what was agreed. The peer may have written these texts;
// [notify.Box] cleans them.
func agreedText(a conversations.Agreement, name string) (title, text string) {
	var parts []string
	title = cmp.Or(a.Title, "Meeting")
	if a.Intent == wire.Negotiate { // it has neither title nor time
		title, parts = "Offer", append(parts, a.String())
	}
	if at, ok := wire.ParseInstant(a.Time); ok {
		parts = append(parts, at.Format("Mon 2 Jan 2006 15:04 -07:00"))
	} else if a.Time != "" {
		parts = append(parts, a.Time)
	}
	if a.Location != "" {
		parts = append(parts, "at "+a.Location)
	}
	if a.Duration != "" {
		parts = append(parts, "("+a.Duration+")")
	}
	if name != "" {
		parts = append(parts, "with "+name)
	}
	return title, strings.Join(parts, " ")
}

// noticeTitles are the titles of notices by kind. They contain no text of a message (AM-36).
var noticeTitles = map[string]string{
	"message":     "a message came in",
	"approval":    "a message waits for your decision",
	"outgoing":    "a message of yours waits for your decision",
	"handoff":     "somebody asks to talk to you",
	"expiring":    "something waits for you and will soon expire",
	"listing":     "a directory will soon stop listing you",
	"unanswered":  "your agent did not answer a message",
	"hook-failed": "your agent could not answer a message",
	"interrupted": "a restart interrupted your agent",
	"closed":      "a conversation was closed",
	"key-change":  "a peer's key changed",

	kindUnreadable: "a sealed message could not be opened",
}

// notice returns a notice about a peer. Its title depends on the kind, and its text is the name and the short id of the
// peer.
func (n *Node) notice(kind string, peer wire.AgentID, name string, key store.ConvKey, now time.Time) notify.Notice {
	shown, who := owner.ShowName(owner.PeerNames{PeerName: name}, "", string(peer)), owner.ShortID(string(peer))
	if shown.Claimed {
		who = shown.String() + " (" + who + ")"
	}
	return notify.Notice{Kind: kind, Title: noticeTitles[kind], Text: who, At: now, Conv: key, Peer: peer}
}
